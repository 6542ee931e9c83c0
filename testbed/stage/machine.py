"""What all stages have in common: a process that runs one task, followed by the lines that it says."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from controller.errors import CannotRunError, InputError

__all__ = ["GUEST_ENVIRONMENT", "MEBIBYTE", "Line", "Machine", "check_memory"]

_LOG_LINES: Final = 200
MEBIBYTE: Final = 1 << 20
_SPARE_BYTES: Final = 256 * MEBIBYTE

GUEST_ENVIRONMENT: Final[dict[str, str]] = {
    **({"INCASTFREE_DEBUG": "1"} if "INCASTFREE_DEBUG" in os.environ else {}),
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    # Mininet imports distutils while there is one; setuptools would put its own in place, at a second a boot.
    **({"SETUPTOOLS_USE_DISTUTILS": "stdlib"} if sys.version_info < (3, 12) else {}),
}
"""What the first process of any stage gets, besides PATH, HOME and PYTHONPATH."""

Line = Callable[[str, str], None]
"""Called with the kind and the text of each line "@kind text" of the guest."""


def check_memory(memory_mib: int, at_once: int) -> None:
    """Raises CannotRunError where the host has no room for so many runs of that size."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        with open("/proc/meminfo", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("MemAvailable"))
        available = int(line.split()[1]) * 1024
        if available < memory_mib * at_once * MEBIBYTE + _SPARE_BYTES:
            raise CannotRunError(
                f"{at_once} run(s) at once may need {memory_mib} MiB each, but the host has {available // MEBIBYTE} MiB "
                "free: use fewer hosts, less demand or --memory-mib"
            )


class Machine(ABC):
    """Runs one task (testbed.stage.tasks) on a work folder, in processes of its own."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._process: subprocess.Popen[bytes] | None = None
        self._why_killed = ""
        self._stopped = threading.Event()
        self._log: list[str] = []

    def run(self, task: str, on_line: Line, *, limit_s: float) -> None:
        """Starts, runs the task, returns when it is done.

        Raises CannotRunError with the reason in one line, and InputError where it lies in what the user wrote.
        """
        failure, bad_input = "", False

        def follow(stream: IO[bytes]) -> None:
            nonlocal failure, bad_input
            for raw in stream:
                line = raw.decode(errors="replace").rstrip()
                if not line.startswith("@"):
                    self._log = [*self._log[-_LOG_LINES:], line]
                    continue
                kind, _, text = line[1:].partition(" ")
                if kind in ("error", "input"):
                    failure, bad_input = text, kind == "input"
                else:
                    on_line(kind, text)

        if self._stopped.is_set():
            raise CannotRunError(self._why_killed)
        process = self._start(task, interactive=False)
        if self._stopped.is_set():  # while it was starting
            self.kill(self._why_killed)
        timer = threading.Timer(limit_s, lambda: self.kill(self._overran(limit_s)))
        timer.start()
        try:
            with self._outlived(process):
                assert process.stdout is not None
                follow(process.stdout)
        finally:
            timer.cancel()
        if failure or not self._done():
            if os.environ.get("INCASTFREE_DEBUG"):
                print("\n".join(self._log), file=sys.stderr)
            if bad_input:
                raise InputError(failure)
            raise CannotRunError(failure or self._why_killed or self._crash(process.returncode))

    @contextlib.contextmanager
    def _outlived(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Waits for the machine to end; whatever interrupts us ends it."""
        try:
            yield
            process.wait()
        except BaseException:
            self.kill("interrupted")
            process.wait()
            raise

    def _overran(self, limit_s: float) -> str:
        """What is said at the limit of wall time, before the machine is killed."""
        return f"the limit of {limit_s:g} s of wall time was reached{self._culprit() or ': give more by --limit-s'}"

    def _culprit(self) -> str:
        """What may have used the time up, as the end of that line; empty where only more time helps."""
        return ""

    def _done(self) -> bool:
        """The guest leaves a file when its task has ended well."""
        return (self._work / "done").exists()

    def kill(self, why: str) -> None:
        """Ends the machine at once; all its processes die with it."""
        self._why_killed = self._why_killed or why
        self._stopped.set()
        if self._process and self._process.poll() is None:
            self._process.terminate()  # the process that we started kills all of it

    @abstractmethod
    def _start(self, task: str, *, interactive: bool) -> subprocess.Popen[bytes]:
        """Starts the process whose output is followed, and keeps it in ``_process``."""

    @abstractmethod
    def _crash(self, code: int) -> str:
        """Why it may have ended without a word, in one line; ``code`` is its exit status."""

    def _last_words(self) -> str:
        """The last line that was not meant for us."""
        return next((line.strip() for line in reversed(self._log) if line.strip()), "no output")[:160]
