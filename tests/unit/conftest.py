"""What several unit tests need."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from controller import native
from testbed.fabric.bmv2 import installation
from tests.conftest import REPOSITORY

if TYPE_CHECKING:
    from testbed.fabric.bmv2.pipeline import Pipeline
    from tests.unit.p4runtime_server import P4RuntimeServer
    from tests.unit.p4runtime_switches import Switch

Compile = Callable[[str], Path]


@pytest.fixture(scope="module", params=("c", "numpy"))
def part(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which part of the controller computes: its C part, or NumPy alone."""
    if request.param == "c" and native.part is None:
        pytest.skip(f"needs the controller's C part, which was not built ({native.MISSING}): run make setup")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(native, "part", None)
        yield request.param


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compiles a C program against the headers of ebpf/include, testbed/engine and dpu; returns the executable."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc: apt-get install gcc libc6-dev")

    def compile_source(source: str) -> Path:
        folder = tmp_path_factory.mktemp("c")
        (folder / "program.c").write_text(source)
        headers = [f"-I{REPOSITORY / name}" for name in ("ebpf/include", "testbed/engine", "dpu")]
        command = [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", *headers, "program.c", "-o", "program"]
        subprocess.run(command, cwd=folder, check=True)
        return folder / "program"

    return compile_source


@pytest.fixture(params=("in-process", "bmv2"))
def switch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Switch]:
    """A switch without a program: the tests' own, and BMv2 where it is."""
    from tests.unit.p4runtime_server import P4RuntimeServer
    from tests.unit.p4runtime_switches import Bmv2

    if request.param == "in-process":
        started: Switch = P4RuntimeServer()
    else:
        found = installation.find()
        if found is None:
            pytest.skip(installation.NEEDED)
        started = Bmv2(found, tmp_path / "switch.log")
    yield started
    started.kill()


@pytest.fixture
def server() -> Iterator[P4RuntimeServer]:
    """The tests' own switch, for what BMv2 does not do when asked."""
    from tests.unit.p4runtime_server import P4RuntimeServer

    started = P4RuntimeServer()
    yield started
    started.kill()


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    """p4src/fabric.p4 as it is compiled."""
    from testbed.fabric.bmv2.program import fabric_pipeline

    return fabric_pipeline()
