"""The qdiscs of a paced interface: fq in their place, and afterwards what was there before.

Where the root is mq, as on a NIC with many queues, each queue gets an fq of its own and they stay parallel: packets
have their departure times before a queue is chosen, so that it does not matter which one it is.
"""

from __future__ import annotations

from typing import Final

from controller.errors import CannotRunError
from controller.nic.rtnetlink import ROOT, Qdisc, RtNetlink

__all__ = ["check_restorable", "install_fq", "restore", "root_of", "unpaced_parts"]

_RESTORABLE: Final = ("fq", "fq_codel", "pfifo", "bfifo", "pfifo_fast", "noqueue")
"""Kinds that take the options that they tell of themselves."""
_LIMITS: Final = (1 << 18, 1 << 15)
"""Packets, and packets of one flow: more than sockets let themselves have in a qdisc, less than what fills memory."""
_WHOLE_HASH: Final = 0xFFFFFFFF
"""With fq's usual 1,024 values a stranger could come behind a paced packet and wait for it."""


def root_of(qdiscs: list[Qdisc]) -> Qdisc:
    """The root, of kind "" where the kernel has put none there (an interface that was never up)."""
    return next((qdisc for qdisc in qdiscs if qdisc.parent == ROOT), Qdisc(ROOT, 0, ""))


def check_restorable(interface: str, before: list[Qdisc]) -> None:
    """Raises CannotRunError where somebody has put a qdisc there that restore could not put back."""
    root = root_of(before)
    for qdisc in before:
        under_mq = root.kind == "mq" and qdisc.parent >> 16 == root.handle >> 16
        fits = qdisc.kind in _RESTORABLE or (qdisc.kind == "mq" and qdisc.parent == ROOT)
        if qdisc.handle and (not fits or qdisc.sized or not (qdisc.parent == ROOT or under_mq)):
            raise CannotRunError(
                f"{interface} has the qdisc {qdisc.kind}{' with a size table' if qdisc.sized else ''}, which pacing would "
                f"replace by fq and could not put back: remove it first (tc qdisc del dev {interface} root)"
            )


def install_fq(netlink: RtNetlink, index: int, before: list[Qdisc]) -> int:
    """Puts fq at the root, or at each queue of mq, and returns the root's handle. Raises NetlinkError."""
    root = root_of(before)
    if root.kind != "mq":
        _set_fq(netlink, index, ROOT, before)
        netlink.flush()
        return root_of(netlink.qdiscs(index)).handle
    handle = root.handle
    if not handle:
        # Classes of a root that the kernel put there have no names: no message reaches them.
        netlink.set_qdisc(index, Qdisc(ROOT, 0, "mq"))
        netlink.flush()
        handle = root_of(netlink.qdiscs(index)).handle
    for queue in range(1, netlink.tx_queues(index) + 1):  # also those that ethtool may bring into use later
        _set_fq(netlink, index, handle | queue, before)
    netlink.flush()
    return handle


def _set_fq(netlink: RtNetlink, index: int, parent: int, before: list[Qdisc]) -> None:
    limits = _LIMITS
    for qdisc in before:
        if qdisc.parent == parent and qdisc.handle and qdisc.kind == "fq":
            limits = (max(limits[0], qdisc.limits[0]), max(limits[1], qdisc.limits[1]))
    netlink.set_fq(index, parent=parent, orphan_mask=_WHOLE_HASH, limits=limits)


def unpaced_parts(netlink: RtNetlink, index: int, root_handle: int) -> str:
    """Why rates are not in force, if somebody has changed the qdiscs since; "" if nobody has."""
    now = netlink.qdiscs(index)
    root = root_of(now)
    if root.handle != root_handle or root.kind not in ("fq", "mq"):
        return f"its qdisc has been replaced by {root.kind or 'none'}"
    strangers = [qdisc for qdisc in now if qdisc is not root and qdisc.kind != "fq"]
    if strangers:
        return f"its queue {strangers[0].parent & 0xFFFF} has the qdisc {strangers[0].kind}"
    return ""


def restore(netlink: RtNetlink, index: int, before: list[Qdisc]) -> None:
    """Puts back what was there before install_fq. Raises NetlinkError.

    An fq that was there has been changed only, and is changed back, its packets kept. Others are made anew: what was
    queued is lost.
    """
    if netlink.qdiscs(index) == before:
        return
    root = root_of(before)
    wanted = [qdisc for qdisc in before if qdisc.handle]
    if root.kind != "mq" and root.handle and root.kind == "fq":
        netlink.set_qdisc(index, root)
    elif root.kind == "mq" and root.handle and len(wanted) == 1 + netlink.tx_queues(index):
        for qdisc in wanted:
            if qdisc is not root:
                netlink.set_qdisc(index, qdisc)
    else:
        # A queue's default comes with a new mq alone.
        if root_of(netlink.qdiscs(index)).handle:
            netlink.delete_root_qdisc(index)
            netlink.flush()
        for qdisc in wanted:
            netlink.set_qdisc(index, qdisc)
    netlink.flush()
