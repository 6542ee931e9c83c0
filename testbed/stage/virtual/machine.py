"""One run of the virtual-time kernel: starts it, follows it, and leaves nothing of it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from controller.errors import CannotRunError
from testbed.stage.machine import GUEST_ENVIRONMENT, MEBIBYTE, Line, Machine, check_memory
from testbed.stage.virtual import kernel, supervise
from testbed.stage.virtual.running import busiest

__all__ = ["Line", "VirtualMachine", "clean_stale", "work_folder"]

_PREFIX: Final = "incastfree-"
_UNNAMED: Final = ".incastfree-"
_NAMING_S: Final = 10
_LOCK: Final = "lock"
_TIME_TRAVEL: Final = ("time-travel=inf-cpu", "time-travel-start=0")

_NO_PTRACE: Final = (
    "the host does not let a process trace its children, which the virtual stage needs: "
    "allow ptrace (kernel.yama.ptrace_scope below 3, in a container the capability SYS_PTRACE)"
)
_NO_MEMORY: Final = "the virtual machine ran out of memory: give it more with --memory-mib"
_CRASHES: Final = (
    ("ptrace: Operation not permitted", _NO_PTRACE),
    ("deadlocked on memory", _NO_MEMORY),
    ("Out of memory", _NO_MEMORY),
    ("check_ptrace", _NO_PTRACE),
    ("Too few physical memory", _NO_MEMORY),
    ("Kernel panic", "the virtual-time kernel panicked"),
    ("Failed to allocate", "the host has no memory for the virtual machine: use a smaller memory_mib"),
)


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """A folder in $TMPDIR for one machine, gone afterwards; if we are killed, the next start removes it.

    It gets its name when its lock is held already, so that nobody takes it for a stale one.
    """
    base = _temporary_folder()
    clean_stale(base)
    folder: Path | None = None
    try:
        unnamed = folder = Path(tempfile.mkdtemp(prefix=f"{_UNNAMED}{os.getuid()}-", dir=base))
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = base / unnamed.name.replace(_UNNAMED, _PREFIX)
        unnamed.rename(folder)
    except OSError as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise CannotRunError(f"no temporary folder in {base}: {error.strerror}; set TMPDIR to one with room") from None
    try:
        yield folder
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise CannotRunError(f"{base}: {error.strerror}; set TMPDIR to a folder with room") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _temporary_folder() -> Path:
    """$TMPDIR or the system's. Raises CannotRunError where TMPDIR names what is no folder."""
    named = os.environ.get("TMPDIR")
    if named and not Path(named).is_dir():
        raise CannotRunError(f"TMPDIR is {named}, which is not a folder: set it to one, or unset it")
    return Path(named or tempfile.gettempdir())


def clean_stale(base: Path | None = None) -> int:
    """Removes work folders of commands that were killed; returns how many."""
    base = base or _temporary_folder()
    removed = 0
    for folder in base.glob(f"{_UNNAMED}{os.getuid()}-*"):
        with contextlib.suppress(OSError):  # killed before it had its name, unless that is about to happen
            if time.time() - folder.stat().st_mtime > _NAMING_S:
                shutil.rmtree(folder)
                removed += 1
    for folder in base.glob(f"{_PREFIX}{os.getuid()}-*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            lock = -1  # its removal was interrupted
        try:
            if lock >= 0:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
        except OSError:
            pass  # in use
        finally:
            if lock >= 0:
                os.close(lock)
    return removed


class VirtualMachine(Machine):
    """Runs one guest task (testbed.stage.tasks) on a work folder."""

    def __init__(
        self, work: Path, *, memory_mib: int, cpu: int | None, at_once: int = 1, time_travel: bool = True
    ) -> None:
        """``cpu``: the processor to stay on, which halves the time; None leaves it to the host.

        ``at_once``: how many such machines will need memory together. ``time_travel``: without it the kernel's clock
        is the host's: a machine for tests of what runs in real time.
        """
        super().__init__(work)
        self._kernel = kernel.find()
        self._memory_mib = memory_mib
        self._cpu = cpu
        self._time_travel = time_travel
        self._check_memory(at_once)

    def run_interactive(self, task: str) -> None:
        """The same with the terminal of this process as the guest's console."""
        terminal = sys.stdin.fileno() if sys.stdin.isatty() else -1
        attributes = termios.tcgetattr(terminal) if terminal >= 0 else None
        process = self._start(task, interactive=True)
        try:
            with self._outlived(process):
                pass
        finally:
            if attributes is not None:
                termios.tcsetattr(terminal, termios.TCSADRAIN, attributes)
        if not self._done():
            raise CannotRunError("the virtual machine ended early: what it printed above says why")

    def _culprit(self) -> str:
        """The program of a rank that was computing, if there is one: it may have stopped virtual time."""
        found = busiest(self._process.pid) if self._process else None
        if found is None or found.rank is None:
            return ""
        return f"; rank {found.rank} was running ({found.command}): what computes without end stops virtual time"

    def _start(self, task: str, *, interactive: bool) -> subprocess.Popen[bytes]:
        uml = self._work / "uml"
        uml.mkdir(exist_ok=True)
        code = Path(__file__).resolve().parents[3]
        console = "con0=fd:0,fd:1" if interactive else "con0=null,fd:1"
        command = [
            sys.executable,
            "-I",
            "-S",
            str(Path(supervise.__file__)),
            str(os.getpid()),
            str(-1 if self._cpu is None else self._cpu),
            str(self._kernel.path),
            f"mem={self._memory_mib}M",
            *(_TIME_TRAVEL if self._time_travel else ()),
            "root=/dev/root",
            "rootfstype=hostfs",
            "rootflags=/",
            "ro",
            "con=null",
            console,
            f"uml_dir={uml}",
            "umid=machine",
            "quiet",
            # Words that the kernel does not know become the environment of the first process.
            *(f"{name}={value}" for name, value in GUEST_ENVIRONMENT.items()),
            f"PYTHONPATH={code}",
            f"init={sys.executable}",
            "--",
            "-m",
            "testbed.stage.virtual.guest",
            task,
            str(self._work),
        ]
        for path in (sys.executable, code, self._work, self._kernel.path):
            if len(str(path).split()) != 1:
                raise CannotRunError(f"{path}: a kernel's command line takes no spaces: use a path without them")
        environment = {"PATH": os.environ.get("PATH", ""), "TMPDIR": self._memory_folder()}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=None if interactive and sys.stdin.isatty() else subprocess.DEVNULL,
                stdout=None if interactive else subprocess.PIPE,
                stderr=None if interactive else subprocess.STDOUT,
                env=environment,
                start_new_session=not interactive,
            )
        except OSError as error:
            raise CannotRunError(f"{self._kernel.path} cannot be started: {error.strerror}: run make setup") from None
        return self._process

    def _memory_folder(self) -> str:
        """Where the guest's memory lies, as an unlinked file: tmpfs if there is one that has room."""
        shared = Path("/dev/shm")
        with contextlib.suppress(OSError):
            if os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > self._memory_mib * MEBIBYTE:
                return str(shared)
        return str(_temporary_folder())

    def _check_memory(self, at_once: int) -> None:
        check_memory(self._memory_mib, at_once)
        needed = self._memory_mib * at_once * MEBIBYTE
        folder = self._memory_folder()
        if shutil.disk_usage(folder).free < needed:
            raise CannotRunError(
                f"neither /dev/shm nor {folder} has room for {self._memory_mib} MiB of guest memory: "
                "set TMPDIR to a folder with room"
            )

    def _crash(self, code: int) -> str:
        text = "\n".join(self._log)
        for mark, meaning in _CRASHES:
            if mark in text:
                return meaning
        return f"the virtual machine ended early (status {code}): {self._last_words()}"
