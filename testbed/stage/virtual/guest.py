"""The first process of the virtual-time kernel: prepares the machine, runs one task, switches off.

Talks to the host in lines on its standard output that start with "@" (machine.py reads them). No NumPy
here: importing it would cost more than many runs.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from testbed.stage.console import reported

__all__ = ["VISIBLE", "main"]

VISIBLE: Final = "visible"
"""File of the work folder: paths, a line each, that are to stay visible."""
_POWER_OFF: Final = 0x4321FEDC
_NOSUID, _NODEV, _BIND = 2, 4, 4096
_SCRATCH: Final = ("/tmp", "/var/tmp", "/var/run", "/var/log")
_SYSCTLS: Final = {
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
    # Softirq work is not to be put off to a kernel thread, and no backlog may drop.
    "net/core/netdev_max_backlog": "100000000",
    "net/core/netdev_budget": "100000000",
    "net/core/netdev_budget_usecs": "100000000",
    "net/core/dev_weight": "100000",
    "net/core/default_qdisc": "pfifo_fast",
    "kernel/panic_on_oops": "1",
}


def _mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount {kind} on {target}: {os.strerror(number)}")


def _prepare(work: Path) -> None:
    """The host's root is ours, read only: tmpfs over what must be written, one folder that is the host's."""
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV)
    _mount("sys", "/sys", "sysfs", _NOSUID | _NODEV)
    _mount("bpf", "/sys/fs/bpf", "bpf", _NOSUID)
    _mount("dev", "/dev", "devtmpfs", _NOSUID)
    for name, options in (("pts", "newinstance,ptmxmode=0666"), ("shm", "")):
        os.makedirs(f"/dev/{name}", exist_ok=True)
        _mount(name, f"/dev/{name}", "devpts" if name == "pts" else "tmpfs", _NOSUID, options)
    ptmx = Path("/dev/ptmx")
    ptmx.unlink(missing_ok=True)
    ptmx.symlink_to("pts/ptmx")
    Path("/dev/fd").symlink_to("/proc/self/fd")
    _mount("run", "/run", "tmpfs", _NOSUID)
    os.mkdir("/run/work")
    _mount("none", "/run/work", "hostfs", 0, str(work))
    for target in _SCRATCH:
        if os.path.isdir(target) and not os.path.islink(target):
            _cover(target, Path("/run/work"))
    for name, value in _SYSCTLS.items():
        with open(f"/proc/sys/{name}", "w", encoding="ascii") as file:
            file.write(value)


def _cover(target: str, work: Path) -> None:
    """A tmpfs over ``target``, through which the code that is running stays visible, and what the work folder's list names."""
    code = {str(Path(__file__).resolve().parents[3]), sys.prefix, sys.base_prefix}
    if (work / VISIBLE).exists():
        code |= set((work / VISIBLE).read_text().splitlines())
    kept = [path for path in sorted(code) if path.startswith(f"{target}/")]
    for number, path in enumerate(kept):
        _make_like(path, f"/run/kept/{number}")
        _mount(path, f"/run/kept/{number}", "", _BIND)
    _mount("tmp", target, "tmpfs", _NOSUID)
    for number, path in enumerate(kept):
        _make_like(f"/run/kept/{number}", path)
        _mount(f"/run/kept/{number}", path, "", _BIND)


def _make_like(path: str, target: str) -> None:
    """A place to show a file or a folder at."""
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    Path(target).touch()


def _power_off() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.sync()
    ctypes.CDLL(None).reboot(_POWER_OFF)


def main() -> None:
    """``guest.py TASK WORK``: runs testbed.stage.tasks.TASK on the folder WORK."""
    os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    os.environ["HOME"] = "/tmp"
    with reported():
        _prepare(Path(sys.argv[2]))
        from testbed.stage import tasks

        task: Callable[[Path], None] = getattr(tasks, sys.argv[1])
        task(Path("/run/work"))
        Path("/run/work/done").touch()
    _power_off()


if __name__ == "__main__":
    main()
