"""Processes of runs in real time whose command is gone. By construction (enter.py) there are none."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
from pathlib import Path
from typing import Final

from testbed.stage.host.machine import GUEST_MODULE

__all__ = ["end_strays"]

_LOCK: Final = "lock"
"""Of the work folder; the command holds it as long as it lives (testbed/stage/virtual/machine.py)."""
_WAIT_S: Final = 5.0


def end_strays() -> int:
    """Kills them; returns how many. Leaves alone whatever is not ours, belongs to a living command, or to another user."""
    ended = 0
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ended += _end_if_stray(int(path.name))
    return ended


def _end_if_stray(pid: int) -> bool:
    process = os.pidfd_open(pid)  # so that it is this process which is killed, even if its number is given away
    try:
        if not _is_stray(Path(f"/proc/{pid}")):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)  # type: ignore[attr-defined,unused-ignore]
        select.select([process], [], [], _WAIT_S)
        return True
    finally:
        os.close(process)


def _is_stray(process: Path) -> bool:
    words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    if len(words) < 4 or words[-4:-2] != [b"-m", GUEST_MODULE.encode()] or process.stat().st_uid != os.geteuid():
        return False
    # As the process sees it: it may live in a container with another root.
    folder = Path(f"{process}/root{os.fsdecode(words[-1])}")
    if not (process / "root").exists():
        return False
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
