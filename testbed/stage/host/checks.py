"""What the host stage needs of the kernel at hand, and what brings it."""

from __future__ import annotations

import errno
import os
import platform
import threading
from collections.abc import Callable

from controller.errors import CannotRunError
from controller.nic.libbpf import can_load_tc_programs
from controller.nic.rtnetlink import RtNetlink
from testbed.stage.host.enter import NEW_NET, unshare

__all__ = ["missing", "require"]

_LOOPBACK_IFINDEX = 1
_PROBE_MAC = bytes.fromhex("020000000002")


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
    for what, attempt, remedy in (
        ("sch_fq", _fq, f"modprobe sch_fq (Debian: linux-image-amd64; Ubuntu: linux-modules-extra-{release})"),
        ("clsact", _clsact, "modprobe sch_ingress"),
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


def _fq(netlink: RtNetlink) -> None:
    netlink.set_fq(_LOOPBACK_IFINDEX)


def _clsact(netlink: RtNetlink) -> None:
    netlink.add_clsact(_LOOPBACK_IFINDEX)


def _veth(netlink: RtNetlink) -> None:
    netlink.add_pair("veth", "probe", 10, "probe-peer", 11, mtu_bytes=1500, address=_PROBE_MAC)


def _reason(attempt: Callable[[RtNetlink], None]) -> str | None:
    try:
        with RtNetlink() as netlink:
            attempt(netlink)
    except OSError as error:
        # "No such file or directory" is what the kernel says of a module that it does not find.
        return "not there" if error.errno in (errno.ENOENT, errno.EOPNOTSUPP) else os.strerror(error.errno or 0)
    return None
