"""The virtual machine: what it leaves behind (nothing), and what it says when it cannot go on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from controller.errors import CannotRunError
from testbed.experiment.keys import LEAST_MEMORY_MIB
from testbed.stage.virtual import kernel
from testbed.stage.virtual.machine import VirtualMachine, clean_stale, work_folder
from testbed.workload.zipf import zipf
from tests.emulation.conftest import write_matrix

COMMAND = [str(Path(sys.executable).with_name("incastfree"))]


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment whose temporary folder is the test's own."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return {**os.environ, "TMPDIR": str(folder)}


@pytest.fixture
def long_run(tmp_path: Path) -> list[str]:
    """A comparison of some seconds, the longer run last: round robin that nothing controls."""
    file = write_matrix(tmp_path / "demand.csv", zipf(32, 1.0, 40_000_000, 4096, 0))
    return [
        *COMMAND,
        "compare",
        "--demand",
        str(file),
        "--unit",
        "wire-bytes",
        "--schedule",
        "rate,rr",
        "--out",
        str(tmp_path / "out"),
    ]


def machines(folder: str) -> list[int]:
    """Living processes that have a folder in their command line, the zombies left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            if folder in (path / "cmdline").read_text() and state != "Z" and int(path.name) != os.getpid():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    """Polls."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("delay_s", [0.3, 1.0, 2.5])
def test_kill_leaves_nothing(long_run: list[str], home: dict[str, str], delay_s: float) -> None:
    """kill -9 at several moments: no process stays, and the next start removes the folder."""
    process = subprocess.Popen(long_run, env=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(delay_s)
    process.kill()
    process.wait()
    assert wait_for(lambda: not machines(home["TMPDIR"]), 10), machines(home["TMPDIR"])
    mounts = Path("/proc/mounts").read_text()
    assert home["TMPDIR"] not in mounts
    for folder in Path(home["TMPDIR"]).iterdir():  # as if it had been left a while ago
        os.utime(folder, (0, 0))
    subprocess.run([*COMMAND, "clean"], env=home, check=True, stdout=subprocess.DEVNULL)
    assert not list(Path(home["TMPDIR"]).iterdir())


def test_interrupt(long_run: list[str], home: dict[str, str], tmp_path: Path) -> None:
    """Ctrl-C ends within two seconds, says so, exits with 130; a finished schedule's result is kept."""
    result = tmp_path / "out" / "result.json"
    seconds: list[float] = []
    while len(seconds) < 3 and min(seconds, default=9.0) > 2:  # a busy host may take its time, not every time
        result.unlink(missing_ok=True)
        one_after_the_other = ["taskset", "-c", "0"]
        process = subprocess.Popen(
            [*one_after_the_other, *long_run], env=home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert wait_for(lambda: machines(home["TMPDIR"]), 30)
        assert wait_for(result.exists, 60)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
        seconds.append(time.monotonic() - begin)
        if process.returncode == 0:
            pytest.fail("both schedules had ended before the interrupt: make the run longer")
        assert process.returncode == 130
        assert stderr.strip().splitlines()[-1].startswith("incastfree: interrupted")
        assert "Traceback" not in stderr
        assert not machines(home["TMPDIR"])
        assert not list(Path(home["TMPDIR"]).iterdir())
        assert len(json.loads(result.read_text())["runs"]) == 1
    assert min(seconds) < 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination(long_run: list[str], home: dict[str, str], number: signal.Signals) -> None:
    """Ends as an interrupt does: one line, nothing left."""
    process = subprocess.Popen(long_run, env=home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert wait_for(lambda: machines(home["TMPDIR"]), 30)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert stderr.strip().splitlines()[-1].startswith("incastfree: interrupted")
    assert not machines(home["TMPDIR"])
    assert not list(Path(home["TMPDIR"]).iterdir())


def test_work_folders_do_not_remove_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many threads and cleaners at once."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def use(_: int) -> bool:
        with work_folder() as work:
            clean_stale()
            return (work / "lock").exists()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(2000)))
    assert not list(tmp_path.iterdir())


def test_full_temporary_folder(long_run: list[str], home: dict[str, str], tmp_path: Path) -> None:
    """One line, exit code 1."""
    if os.geteuid() != 0:
        pytest.skip("filling a file system needs one of our own, and mounting it root: run the tests as root")
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)], check=True)
    try:
        (full / "ballast").write_bytes(bytes(60 * 1024))
        done = subprocess.run(long_run, env={**home, "TMPDIR": str(full)}, capture_output=True, text=True, check=False)
    finally:
        subprocess.run(["umount", str(full)], check=True)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "TMPDIR" in done.stderr


def test_not_enough_memory(long_run: list[str], home: dict[str, str]) -> None:
    """More than the host has: refused before anything starts. Less than the run needs: said afterwards."""
    done = subprocess.run([*long_run, "--memory-mib", "900000"], env=home, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "MiB" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    done = subprocess.run(
        [*long_run, "--memory-mib", str(LEAST_MEMORY_MIB)], env=home, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "memory" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_no_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a kernel that has the clock edits a run refuses to start, and says what makes one."""
    cache = tmp_path / "incastfree" / "kernel" / "other"
    cache.mkdir(parents=True)
    stock = {"version": "6.12", "key": "other", "recipe": "of a kernel without the edits", "built": 1}
    (cache / "build.json").write_text(json.dumps(stock))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(CannotRunError, match=r"clock edits.*run make"):
        kernel.find()


def test_guest_error_is_one_line(guest: Callable[[str], list[str]]) -> None:
    """What goes wrong in the guest reaches the user without a trace."""
    with pytest.raises(CannotRunError, match=r"^ValueError: too much of it$"):
        guest("raise ValueError('too much\\nof it')")


def test_guest_crash_is_one_line(guest: Callable[[str], list[str]]) -> None:
    """Even if the first process dies."""
    with pytest.raises(CannotRunError, match="panicked"):
        guest("import os; os._exit(3)")


def test_time_limit() -> None:
    """A guest that never sleeps stops virtual time: the limit of wall time ends it."""
    with work_folder() as work:
        (work / "script.py").write_text("while True: pass")
        machine = VirtualMachine(work, memory_mib=256, cpu=0)
        with pytest.raises(CannotRunError, match="limit of 2 s"):
            machine.run("script", lambda *_: None, limit_s=2)


def test_the_clock_is_exact(guest: Callable[[str], list[str]]) -> None:
    """Single nanoseconds: a sleep ends when it is due, and reading the clock costs one."""
    lines = guest(
        """
import ctypes, time
from testbed.stage.console import say
ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)
time.sleep(1)
wake = time.monotonic_ns() // 10**9 * 10**9 + 10**9
libc = ctypes.CDLL(None)
class Timespec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]
for offset in (0, 1, 7):
    due = wake + offset * 1_000_000 + offset
    libc.clock_nanosleep(1, 1, ctypes.byref(Timespec(due // 10**9, due % 10**9)), None)
    say("line", str(time.monotonic_ns() - due))
"""
    )
    assert [int(line) for line in lines] == [pytest.approx(3, abs=3)] * 3


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_runs_without_root(open_folder: Path) -> None:
    """As another user, who has nothing but the kernel and a folder."""
    if os.geteuid() != 0:
        pytest.skip("this suite runs without root already")
    code = Path(kernel.__file__).resolve().parents[3]
    for parent in (code, *code.parents):
        if not parent.stat().st_mode & 0o001:
            pytest.skip(f"{parent} is closed to other users: the checkout cannot be run by them")
    built = kernel.find()
    cache = open_folder / "cache" / "incastfree" / "kernel" / built.key
    cache.mkdir(parents=True)
    for name in ("linux", "build.json"):
        shutil.copy2(built.path.with_name(name), cache / name)
    file = write_matrix(open_folder / "demand.csv", np.array([[0, 8192], [4096, 0]]))
    nobody = 65534
    for path in (open_folder, *open_folder.rglob("*")):
        os.chown(path, nobody, nobody)
    done = subprocess.run(
        [*COMMAND, "compare", "--demand", str(file), "--unit", "wire-bytes", "--out", str(open_folder / "out")],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(open_folder),
            "TMPDIR": str(open_folder),
            "XDG_CACHE_HOME": str(open_folder / "cache"),
        },
        user=nobody,
        group=nobody,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((open_folder / "out" / "result.json").read_text())["runs"]
