"""Runs a command, and sees to it that none of its processes is left, however this or the caller's ends.

``supervise.py CALLER CPU COMMAND...``: CALLER is the caller's process id, CPU a processor to stay on or -1. A
User-Mode-Linux kernel starts helpers that would outlive it, some stopped in mid-trace: what loses its parent
becomes our child, and is killed. Run with ``python -I -S``: it imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def main() -> int:
    """The command's exit code; 128 and the signal if one killed it."""
    caller, cpu, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides what an interrupt means
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != caller:
        return 1
    own = os.getpid()
    child = os.fork()
    if child == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != own:
            os._exit(1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if cpu >= 0:
            os.sched_setaffinity(0, {cpu})
        try:
            os.execv(command[0], command)
        except OSError as error:
            print(f"{command[0]} cannot be started: {error.strerror}", flush=True)
            os._exit(127)
    while True:
        ended, status = os.wait()
        if ended == child:
            break
    kill_children()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _end(_signal: int, _frame: FrameType | None) -> None:
    kill_children()
    os._exit(1)


def kill_children() -> None:
    """Kills and reaps, again and again: what a killed process leaves becomes our child in turn."""
    own = str(os.getpid())
    while True:
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (path / "stat").read_text().rpartition(")")[2].split()[1] == own:
                    os.kill(int(path.name), signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(main())
