"""``pip install .`` into an empty environment: the controller with NumPy alone, with and without compilers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import REPOSITORY

Installed = Callable[[str], Path]
PAPER = "0,1000,2000\n800,0,2000\n2000,1000,0\n"


def command(*words: object, **keywords: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | keywords
    return subprocess.run([str(word) for word in words], check=False, capture_output=True, text=True, env=environment)


def copy_sources(target: Path) -> Path:
    """What a clone has: nothing that was built."""
    built = shutil.ignore_patterns("*.so", "*.o", "__pycache__", "*.egg-info", "build")
    for name in ("controller", "testbed", "ebpf"):
        shutil.copytree(REPOSITORY / name, target / name, ignore=built)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, target / name)
    return target


@pytest.fixture(scope="module", params=("compilers", "no compilers"))
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Whether it was built with compilers, and the folder of the environment's programs."""
    for module in ("pip", "setuptools", "wheel", "venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(
                f"needs {module} to build without the package index: apt-get install python3-venv python3-wheel"
            )
    if request.param == "compilers" and not (shutil.which("gcc") and shutil.which("clang")):
        pytest.skip("needs compilers: apt-get install gcc clang")
    work = tmp_path_factory.mktemp("install")
    path = os.environ["PATH"]
    if request.param == "no compilers":
        (work / "empty").mkdir()
        path = str(work / "empty")
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", work / "wheels")
    built = command(sys.executable, "-m", "pip", "wheel", *options, copy_sources(work / "source"), PATH=path)
    assert built.returncode == 0, built.stderr
    base = getattr(sys, "_base_executable", sys.executable)
    made = command(base, "-m", "venv", work / "environment")
    assert made.returncode == 0, made.stderr
    programs = work / "environment" / "bin"
    (wheel,) = (work / "wheels").iterdir()
    put = command(programs / "pip", "install", "--no-index", "--no-deps", wheel)
    assert put.returncode == 0, put.stderr
    # In the place of the package index, which may be out of reach.
    (packages,) = (work / "environment").glob("lib/python*/site-packages")
    needed = [Path(np.__file__).parent, Path(np.__file__).parent.with_name("numpy.libs")]
    if sys.version_info < (3, 11):
        import tomli

        needed.append(Path(tomli.__file__).parent)
    for folder in needed:
        if folder.is_dir():
            (packages / folder.name).symlink_to(folder)
    return str(request.param), programs


def test_rates(installed: tuple[str, Path], tmp_path: Path) -> None:
    """The same numbers, in C and in NumPy."""
    (tmp_path / "paper.csv").write_text(PAPER)
    out = tmp_path / "R.csv"
    done = command(installed[1] / "incastfree", "rates", tmp_path / "paper.csv", "--unit", "wire-bytes", "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^M +4000 B$", done.stdout, re.MULTILINE)
    expected = [[0, 0.25, 0.5], [0.2, 0, 0.5], [0.5, 0.25, 0]]
    assert np.abs(np.loadtxt(out, delimiter=",") - expected).max() < 2.0**-29


def test_the_interface(installed: tuple[str, Path]) -> None:
    """Works, and brings nothing of the testbed along."""
    code = """
import sys
import numpy, controller
rates = controller.compute_rates(numpy.array([[0, 3], [1, 0]]))
assert rates.tolist() == [[0, 2**32 - 3], [-(-(2**32 - 3) // 3), 0]], rates
assert not {name for name in sys.modules if name.split(".")[0] in ("testbed", "mininet", "pyarrow")}
"""
    done = command(installed[1] / "python", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_doctor_says_what_was_built(installed: tuple[str, Path]) -> None:
    done = command(installed[1] / "incastfree", "doctor")
    assert (done.returncode, done.stderr) == (0, "")
    state = "works" if installed[0] == "compilers" else "missing"
    lines = {line.split(": ")[0].strip(): line for line in done.stdout.splitlines()}
    assert re.search(rf"^  {state} +the same in C: ", done.stdout, re.MULTILINE)
    assert re.search(rf"^  {state} +pacer object: ", done.stdout, re.MULTILINE)
    assert re.search(r"^  works +rates: numpy", done.stdout, re.MULTILINE)
    if state == "missing":
        assert "NumPy computes the same" in done.stdout
    assert any("engine" in name and name.startswith("missing") for name in lines)


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "--demand", "paper.csv", "--unit", "wire-bytes", "--out", "results"),
        ("agree", "--demand", "paper.csv", "--unit", "wire-bytes", "--out", "results"),
        ("run", "paper.toml", "--out", "results"),
        ("shell", "paper.toml"),
        ("figure", "2", "--out", "results"),
    ],
    ids=lambda words: str(words[0]),
)
def test_verbs_of_the_testbed_say_what_they_need(
    installed: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """One line, exit code 1, nothing written."""
    monkeypatch.chdir(tmp_path)
    Path("paper.csv").write_text(PAPER)
    Path("paper.toml").write_text('[[demand]]\nfile = "paper.csv"\nunit = "wire-bytes"\n')
    done = command(installed[1] / "incastfree", *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "make setup" in done.stderr
    assert not Path("results").exists()
