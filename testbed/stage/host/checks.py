"""What the host stage needs of the kernel at hand, and what brings it."""

from __future__ import annotations

import errno
import os
import platform
import re
import threading
from collections.abc import Callable
from typing import Final

from controller.errors import CannotRunError
from controller.nic.libbpf import can_load_tc_programs
from controller.nic.rtnetlink import RtNetlink
from testbed.stage.host.enter import NEW_NET, unshare

__all__ = ["missing", "require"]

_LOOPBACK_IFINDEX: Final = 1
_PROBE_MAC: Final = bytes.fromhex("020000000002")
_NO_FD: Final = 2**31 - 1
_RPS: Final = "/proc/sys/net/core/rps_default_mask"
_LEAST_LINUX: Final = (6, 0)
"""Before it a value of an array map is at most what kmalloc takes, 4 MiB; the fabric's records have 50
(kernel/bpf/arraymap.c; "bpf: remove obsolete KMALLOC_MAX_SIZE restriction on array map value size", July 2022)."""


def require() -> None:
    """Raises CannotRunError with all that is missing, in one line."""
    if lines := missing():
        raise CannotRunError("; ".join(lines))


def missing() -> list[str]:
    """One line for each thing that is missing, with the remedy; tried out in a network namespace that goes at once."""
    if os.geteuid() != 0:
        return ["stage host needs root: run it with sudo, or use stage virtual"]
    found: list[str] = []
    # Namespaces are a thread's: what is tried in one that ends leaves nothing.
    thread = threading.Thread(target=_try_all, args=(found,))
    thread.start()
    thread.join()
    return found


def _try_all(found: list[str]) -> None:
    try:
        unshare(NEW_NET)
    except OSError as error:
        found.append(
            f"stage host may not make a network namespace here ({error.strerror}): run it outside of the container, "
            "or use stage virtual"
        )
        return
    release = platform.release()
    if _version(release) < _LEAST_LINUX:
        found.append(
            f"kernel {release} does not load the fabric's eBPF programs, Linux 6.0 does: boot a newer one (Ubuntu 22.04: "
            "apt-get install linux-image-generic-hwe-22.04)"
        )
    if "PREEMPT_RT" in platform.version():
        found.append(
            f"kernel {release} is PREEMPT_RT, where the fabric's programs interrupt each other: boot one that is not, or use stage "
            "virtual"
        )
    if _spreads_packets():
        found.append(
            f"{_RPS} is not 0, so that packets are handled by several processors, and the fabric's programs share their state "
            "without locks: set it to 0, or use stage virtual"
        )
    for what, attempt, remedy in (
        ("sch_fq", _fq, f"modprobe sch_fq (Debian: linux-image-amd64; Ubuntu: linux-modules-extra-{release})"),
        ("clsact", _clsact, "modprobe sch_ingress"),
        ("cls_bpf", _cls_bpf, "modprobe cls_bpf"),
        ("veth", _veth, "modprobe veth"),
    ):
        if (reason := _reason(attempt)) is not None:
            found.append(f"kernel {release} has no {what} ({reason}), which stage host needs: {remedy}")
    try:
        allowed = can_load_tc_programs()
    except CannotRunError as error:
        found.append(str(error))
        return
    if not allowed:
        found.append(
            f"kernel {release} does not let root load eBPF programs: give the container CAP_BPF, CAP_NET_ADMIN and "
            "CAP_PERFMON, end the kernel's lockdown, or use stage virtual"
        )


def _spreads_packets() -> bool:
    """Whether new interfaces get receive packet steering (Documentation/admin-guide/sysctl/net.rst)."""
    try:
        with open(_RPS, encoding="ascii") as file:
            return bool(file.read().strip("0,\n"))
    except OSError:
        return False  # a kernel without it


def _fq(netlink: RtNetlink) -> None:
    netlink.set_fq(_LOOPBACK_IFINDEX)


def _clsact(netlink: RtNetlink) -> None:
    netlink.add_clsact(_LOOPBACK_IFINDEX)


def _cls_bpf(netlink: RtNetlink) -> None:
    """A program that does not exist: a kernel that knows the classifier complains of the program."""
    netlink.attach(_LOOPBACK_IFINDEX, _NO_FD, "probe", egress=True)
    try:
        netlink.flush()
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise


def _veth(netlink: RtNetlink) -> None:
    netlink.add_pair("veth", "probe", 10, "probe-peer", 11, mtu_bytes=1500, address=_PROBE_MAC)


def _version(release: str) -> tuple[int, ...]:
    """Such as (6, 8) of 6.8.0-45-generic."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else _LEAST_LINUX


def _reason(attempt: Callable[[RtNetlink], None]) -> str | None:
    try:
        with RtNetlink() as netlink:
            attempt(netlink)
    except OSError as error:
        # "No such file or directory" is what the kernel says of a module that it does not find.
        return "not there" if error.errno in (errno.ENOENT, errno.EOPNOTSUPP) else os.strerror(error.errno or 0)
    return None
