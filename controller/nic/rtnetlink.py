"""Links, qdiscs and tc programs over rtnetlink, many messages a system call.

Why not a library: pyroute2 has no encoder for sch_fq, and at about 1 ms a message (measured) it would take
ten seconds for the network of 512 hosts, which every cell of a grid sets up anew. Formats: rtnetlink(7),
include/uapi/linux/{if_link,pkt_sched,pkt_cls}.h.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Final

__all__ = ["HORIZON_US", "ROOT", "NetlinkError", "Qdisc", "RtNetlink"]

_HEADER: Final = struct.Struct("=IHHII")
_IFINFO: Final = struct.Struct("=BxHiII")
_TCMSG: Final = struct.Struct("=BxxxiIII")
_IFADDR: Final = struct.Struct("=BBBBi")
_ATTRIBUTE: Final = struct.Struct("=HH")

_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_REQUEST, _ACK, _EXCL, _CREATE, _REPLACE, _DUMP = 1, 4, 0x200, 0x400, 0x100, 0x300
_NEWLINK, _GETLINK, _SETLINK, _NEWADDR = 16, 18, 19, 20
_NEWQDISC, _DELQDISC, _GETQDISC, _NEWTFILTER, _DELTFILTER, _GETTFILTER = 36, 37, 38, 44, 45, 46

_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_TXQLEN, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 1, 3, 4, 13, 18, 28
_IFLA_INFO_KIND, _IFLA_INFO_DATA = 1, 2
_PEER_INFO = 1  # VETH_INFO_PEER and IFLA_NETKIT_PEER_INFO
_IFLA_NETKIT_MODE, _NETKIT_L2 = 5, 0
_IFLA_NUM_TX_QUEUES, _IFLA_NUM_RX_QUEUES, _IFLA_GSO_MAX_SEGS = 31, 32, 40
_IFF_UP, _IFF_NOARP = 0x1, 0x80
_TCA_KIND, _TCA_OPTIONS, _TCA_STAB = 1, 2, 8
_TCA_FQ_PLIMIT, _TCA_FQ_FLOW_PLIMIT, _TCA_FQ_BUCKETS_LOG, _TCA_FQ_ORPHAN_MASK = 1, 2, 8, 10
_TCA_FQ_TIMER_SLACK, _TCA_FQ_HORIZON, _TCA_FQ_HORIZON_DROP = 13, 14, 15
_TCA_BPF_FD, _TCA_BPF_NAME, _TCA_BPF_FLAGS, _BPF_FLAG_DIRECT_ACTION = 6, 7, 8, 1
ROOT: Final = 0xFFFFFFFF
"""Parent of a root qdisc."""
_TC_H_CLSACT: Final = 0xFFFFFFF1
_TC_H_INGRESS, _TC_H_EGRESS = 0xFFFFFFF2, 0xFFFFFFF3
_CLSACT_HANDLE: Final = 0xFFFF0000
_ETH_P_ALL: Final = 0x0003
_BATCH_BYTES: Final = 16384

HORIZON_US: Final = 2**32 - 1
"""How far ahead sch_fq takes a packet: the most that it can say, 71 minutes. Its default of 10 s drops."""
_FQ_PACKETS: Final = 2**31 - 1


class NetlinkError(OSError):
    """The kernel refused a message; ``what`` says which."""


@dataclass(frozen=True)
class Qdisc:
    """One queueing discipline, as the kernel tells of it, and as it is made again."""

    parent: int
    """ROOT, or the handle of a qdisc plus the number of its class."""
    handle: int
    """0: the kernel put it there by itself."""
    kind: str
    options: bytes = b""
    """Payload of TCA_OPTIONS. What a kind says of itself it also takes, but for some (prio, netem, HTB)."""
    sized: bool = False
    """Whether it has a size table (tc stab), which cannot be read back."""

    @property
    def limits(self) -> tuple[int, int]:
        """Of fq: packets, and packets of one flow."""
        found = _attributes(self.options)
        packets, of_a_flow = (struct.unpack("=I", found[kind])[0] for kind in (_TCA_FQ_PLIMIT, _TCA_FQ_FLOW_PLIMIT))
        return packets, of_a_flow


def _attribute(kind: int, payload: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + bytes(-length % 4)


def _u32(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("=I", value))


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


class RtNetlink:
    """Collects messages and sends them together; ``flush`` raises on the first that the kernel refused."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.bind((0, 0))
        self._sequence = 0
        self._pending: list[tuple[int, str]] = []
        self._buffer = bytearray()

    def __enter__(self) -> RtNetlink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self._socket.close()

    # ---- messages ----

    def add_pair(
        self,
        kind: str,
        name: str,
        index: int,
        peer_name: str,
        peer_index: int,
        *,
        mtu_bytes: int,
        address: bytes,
        peer_namespace_fd: int | None = None,
    ) -> None:
        """Two interfaces with given indices, back to back, both down; the peer may lie in another namespace.

        ``kind``: "veth", or "netkit" (Linux 6.7), whose programs run where the packet is sent.
        Packets are cut to the MTU before they are sent: no segment is left for a network card to cut.
        """
        common = (
            _u32(_IFLA_MTU, mtu_bytes)
            + _attribute(_IFLA_ADDRESS, address)
            + _u32(_IFLA_TXQLEN, 1000)
            + _u32(_IFLA_NUM_TX_QUEUES, 1)
            + _u32(_IFLA_NUM_RX_QUEUES, 1)
            + _u32(_IFLA_GSO_MAX_SEGS, 1)
        )
        peer = _IFINFO.pack(0, 0, peer_index, 0, 0) + _text(_IFLA_IFNAME, peer_name) + common
        if peer_namespace_fd is not None:
            peer += _u32(_IFLA_NET_NS_FD, peer_namespace_fd)
        data = _attribute(_PEER_INFO, peer)
        if kind == "netkit":
            data += _u32(_IFLA_NETKIT_MODE, _NETKIT_L2)
        info = _text(_IFLA_INFO_KIND, kind) + _attribute(_IFLA_INFO_DATA, data)
        body = _IFINFO.pack(0, 0, index, 0, 0) + _text(_IFLA_IFNAME, name) + common
        self._add(_NEWLINK, _CREATE | _EXCL, body + _attribute(_IFLA_LINKINFO, info), f"link {name}")

    def set_up(self, index: int, *, arp: bool = True) -> None:
        """Brings an interface up; without ARP every neighbour has the interface's own address."""
        flags = _IFF_UP | (0 if arp else _IFF_NOARP)
        self._add(_SETLINK, 0, _IFINFO.pack(0, 0, index, flags, _IFF_UP | _IFF_NOARP), f"set link {index} up")

    def add_ipv4(self, index: int, address: str, prefix_bits: int) -> None:
        """An address on an interface."""
        packed = socket.inet_aton(address)
        body = _IFADDR.pack(socket.AF_INET, prefix_bits, 0, 0, index) + _attribute(1, packed) + _attribute(2, packed)
        self._add(_NEWADDR, _CREATE | _EXCL, body, f"address {address}")

    def add_clsact(self, index: int) -> None:
        """The hooks for tc programs; an error if they are there already."""
        body = _TCMSG.pack(0, index, _CLSACT_HANDLE, _TC_H_CLSACT, 0) + _text(_TCA_KIND, "clsact")
        self._add(_NEWQDISC, _CREATE | _EXCL, body, f"clsact on {index}")

    def delete_clsact(self, index: int) -> None:
        """Removes the hooks with the programs on them."""
        body = _TCMSG.pack(0, index, _CLSACT_HANDLE, _TC_H_CLSACT, 0) + _text(_TCA_KIND, "clsact")
        self._add(_DELQDISC, 0, body, f"remove clsact from {index}")

    def set_fq(
        self,
        index: int,
        *,
        flows: int = 0,
        parent: int = ROOT,
        orphan_mask: int = 0,
        limits: tuple[int, int] = (_FQ_PACKETS, _FQ_PACKETS),
    ) -> None:
        """sch_fq without the limits that drop silently: horizon, packets, packets a flow. One that is there is changed.

        Its timers are exact (timer_slack 0; the default is 10 us). ``flows``: how many skb->hash tells apart,
        0 for the usual thousand. ``orphan_mask``: which bits of the hash tell apart what has no connected socket.
        ``limits``: packets, and packets of one flow.
        """
        options = (
            _u32(_TCA_FQ_PLIMIT, limits[0])
            + _u32(_TCA_FQ_FLOW_PLIMIT, limits[1])
            + _u32(_TCA_FQ_TIMER_SLACK, 0)
            + _u32(_TCA_FQ_HORIZON, HORIZON_US)
            + _attribute(_TCA_FQ_HORIZON_DROP, b"\0")
        )
        if orphan_mask:
            options += _u32(_TCA_FQ_ORPHAN_MASK, orphan_mask)
        if flows:
            bits = max(1, flows.bit_length())
            options += _u32(_TCA_FQ_BUCKETS_LOG, bits) + _u32(_TCA_FQ_ORPHAN_MASK, (1 << bits) - 1)
        self.set_qdisc(index, Qdisc(parent, 0, "fq", options))

    def set_qdisc(self, index: int, qdisc: Qdisc) -> None:
        """Puts it in the place of its parent's child; changes the options of one that has its kind and handle."""
        body = _TCMSG.pack(0, index, qdisc.handle, qdisc.parent, 0) + _text(_TCA_KIND, qdisc.kind)
        if qdisc.options:
            body += _attribute(_TCA_OPTIONS, qdisc.options)
        self._add(_NEWQDISC, _CREATE | _REPLACE, body, f"{qdisc.kind} on {index}")

    def delete_root_qdisc(self, index: int) -> None:
        """Gives the interface its default qdisc back."""
        self._add(_DELQDISC, 0, _TCMSG.pack(0, index, 0, ROOT, 0), f"remove the qdisc of {index}")

    def attach(
        self, index: int, program_fd: int, name: str, *, egress: bool, handle: int = 1, replace: bool = False
    ) -> None:
        """A tc program in direct-action mode, first in order; takes the place of one, or an error if one has it.

        Every packet runs through one of the two.
        """
        options = (
            _u32(_TCA_BPF_FD, program_fd) + _text(_TCA_BPF_NAME, name) + _u32(_TCA_BPF_FLAGS, _BPF_FLAG_DIRECT_ACTION)
        )
        parent = _TC_H_EGRESS if egress else _TC_H_INGRESS
        info = 1 << 16 | socket.htons(_ETH_P_ALL)
        body = _TCMSG.pack(0, index, handle, parent, info) + _text(_TCA_KIND, "bpf")
        flags = _CREATE | (_REPLACE if replace else _EXCL)
        self._add(_NEWTFILTER, flags, body + _attribute(_TCA_OPTIONS, options), f"program {name} on {index}")

    def detach_egress(self, index: int, *, handle: int = 1) -> None:
        """Removes the program that attach put on the egress hook."""
        body = _TCMSG.pack(0, index, handle, _TC_H_EGRESS, 1 << 16 | socket.htons(_ETH_P_ALL))
        self._add(_DELTFILTER, 0, body + _text(_TCA_KIND, "bpf"), f"remove the program of {index}")

    # ---- queries ----

    def qdiscs(self, index: int) -> list[Qdisc]:
        """Of sending: the root and all below it, as far as the kernel shows them."""
        return [
            qdisc
            for qdisc in self._all_qdiscs(index)
            if qdisc.parent == ROOT or qdisc.parent >> 16 != _TC_H_CLSACT >> 16
        ]

    def has_clsact(self, index: int) -> bool:
        """Whether the hooks for tc programs are there."""
        return any(qdisc.kind == "clsact" for qdisc in self._all_qdiscs(index))

    def filters(self, index: int, *, egress: bool) -> list[str]:
        """What is on a hook: names of BPF programs, kinds of other filters."""
        names = []
        parent = _TC_H_EGRESS if egress else _TC_H_INGRESS
        for body in self._dump(_GETTFILTER, _TCMSG.pack(0, index, 0, parent, 0)):
            attributes = _attributes(body[_TCMSG.size :])
            options = _attributes(attributes.get(_TCA_OPTIONS, b""))
            if not options:
                continue  # the head of a priority, whose filters follow
            name = options.get(_TCA_BPF_NAME, b"").rstrip(b"\0").decode(errors="replace")
            kind = attributes.get(_TCA_KIND, b"").rstrip(b"\0").decode()
            names.append(name if kind == "bpf" and name else kind)
        return names

    def tx_queues(self, index: int) -> int:
        """How many queues the interface could send from, those in use among them."""
        for body in self._dump(_GETLINK, _IFINFO.pack(0, 0, 0, 0, 0)):
            if _IFINFO.unpack_from(body)[2] == index:
                count = _attributes(body[_IFINFO.size :]).get(_IFLA_NUM_TX_QUEUES)
                return int(struct.unpack("=I", count)[0]) if count else 1
        raise NetlinkError(errno.ENODEV, f"interface {index}: {os.strerror(errno.ENODEV)}")

    def _all_qdiscs(self, index: int) -> list[Qdisc]:
        found = []
        for body in self._dump(_GETQDISC, _TCMSG.pack(0, index, 0, 0, 0)):
            _, interface, handle, parent, _ = _TCMSG.unpack_from(body)
            if interface == index:
                attributes = _attributes(body[_TCMSG.size :])
                kind = attributes.get(_TCA_KIND, b"").rstrip(b"\0").decode()
                options = attributes.get(_TCA_OPTIONS, b"")
                found.append(Qdisc(parent, handle, kind, options, _TCA_STAB in attributes))
        return found

    # ---- transport ----

    def flush(self) -> None:
        """Sends what was collected and waits for every answer."""
        if not self._buffer:
            return
        self._socket.send(self._buffer)
        self._buffer.clear()
        waiting, self._pending = dict(self._pending), []
        failed: NetlinkError | None = None
        while waiting:
            data = self._socket.recv(1 << 17)
            for kind, sequence, body in _messages(data):
                if kind != _NLMSG_ERROR or sequence not in waiting:
                    continue
                what = waiting.pop(sequence)
                number = -struct.unpack_from("=i", body)[0]
                if number and failed is None:
                    failed = NetlinkError(number, f"{what}: {os.strerror(number)}")
        if failed:
            raise failed

    def _add(self, kind: int, flags: int, body: bytes, what: str) -> None:
        self._sequence += 1
        self._buffer += _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _ACK | flags, self._sequence, 0) + body
        self._pending.append((self._sequence, what))
        if len(self._buffer) > _BATCH_BYTES:
            self.flush()

    def _dump(self, kind: int, body: bytes) -> list[bytes]:
        self.flush()
        self._sequence += 1
        header = _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _DUMP, self._sequence, 0)
        self._socket.send(header + body)
        found: list[bytes] = []
        while True:
            for answer, _, content in _messages(self._socket.recv(1 << 17)):
                if answer == _NLMSG_DONE:
                    return found
                if answer == _NLMSG_ERROR:
                    number = -struct.unpack_from("=i", content)[0]
                    raise NetlinkError(number, os.strerror(number))
                found.append(content)


def _messages(data: bytes) -> list[tuple[int, int, bytes]]:
    found, offset = [], 0
    while offset < len(data):
        length, kind, _, sequence, _ = _HEADER.unpack_from(data, offset)
        found.append((kind, sequence, data[offset + _HEADER.size : offset + length]))
        offset += -(-length // 4) * 4
    return found


def _attributes(data: bytes) -> dict[int, bytes]:
    found, offset = {}, 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        found[kind & 0x3FFF] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += -(-max(length, _ATTRIBUTE.size) // 4) * 4
    return found
