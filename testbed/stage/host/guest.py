"""The first process of a run in real time: makes its namespaces habitable, runs one task, ends.

``python -m testbed.stage.host.guest TASK WORK``. Its end is the end of all processes that it has started (enter.py).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from controller.nic.rtnetlink import RtNetlink
from testbed.stage.console import reported

__all__ = ["main"]

_NOSUID, _NODEV, _NOEXEC, _REC, _PRIVATE = 2, 4, 8, 16384, 1 << 18
_LOOPBACK_IFINDEX: Final = 1
_FIRST_TO_GO: Final = "1000"
_OWN_SYSCTLS: Final = {"net/ipv6/conf/all/disable_ipv6": "1", "net/ipv6/conf/default/disable_ipv6": "1"}
"""Of this network namespace alone. Backlogs and budgets (net/core) are the whole machine's, and stay as they are."""


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, None):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount {kind or source} on {target}: {os.strerror(number)}")


def _prepare() -> None:
    _mount("none", "/", "", _REC | _PRIVATE)  # before all else: what is mounted here is not to be seen outside
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    # Shows the interfaces of our network namespace, and hides the machine's pinned BPF objects.
    _mount("sysfs", "/sys", "sysfs", _NOSUID | _NODEV | _NOEXEC)
    for name, value in _OWN_SYSCTLS.items():
        file = Path("/proc/sys") / name
        if file.exists():  # not where the kernel has no IPv6
            file.write_text(value)
    # Where memory runs out, it is to be ours that is taken.
    Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
    with RtNetlink() as netlink:
        netlink.set_up(_LOOPBACK_IFINDEX)


def main() -> None:
    """Runs testbed.stage.tasks.TASK on the folder WORK."""
    work = Path(sys.argv[2])
    with reported():
        _prepare()
        from testbed.stage import tasks

        task: Callable[[Path], None] = getattr(tasks, sys.argv[1])
        task(work)
        (work / "done").touch()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
