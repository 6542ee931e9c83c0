"""Reads the pinned state of a live NIC through bcc (Debian's python3-bpfcc), without its compiler."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from dataclasses import dataclass
from typing import Any

from controller.errors import CannotRunError
from controller.nic.ebpf import ADDRESS_BYTES, FLOW_BYTES, PEER, Address, pin_folder, unpack_address
from controller.nic.rate_table import RATE_SLOTS

__all__ = ["FlowState", "read_flows"]

_LOCKED_FLOW = struct.Struct("<IIQIIQ")
"""struct locked_flow (ebpf/nic/pacer.bpf.c)."""
assert _LOCKED_FLOW.size == FLOW_BYTES


@dataclass(frozen=True)
class FlowState:
    """One paced flow. Counts are of what it sent since it became a peer."""

    slot: int
    address: Address
    packets: int
    """As the qdisc gets them: segmentation may make several of one."""
    wire_bytes: int
    ahead_ns: int
    """How far ahead its latest packet leaves: what it has sent too early and owes; 0 if it owes nothing."""
    drops: int
    """Packets of no socket that would have waited for more than a second."""


def read_flows(interface: str) -> list[FlowState]:
    """The peers of an interface in the order of their slots. Raises CannotRunError without bcc, and without the right."""
    try:
        from bcc.libbcc import lib
    except ImportError:
        raise CannotRunError(
            "counters are read through bcc, which is missing: apt-get install python3-bpfcc, "
            "and use a virtual environment with system packages"
        ) from None
    peers = _read(lib, interface, "peers", ADDRESS_BYTES, PEER.size, RATE_SLOTS)
    flows = _read(lib, interface, "edt_flows", 4, _LOCKED_FLOW.size, RATE_SLOTS)
    now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    clocks = {struct.unpack("<I", key)[0]: _LOCKED_FLOW.unpack(value) for key, value in flows}
    found = []
    for key, value in peers:
        slot, clock = PEER.unpack(value)
        _, drops, departed_ns, _, packets, wire_bytes = clocks[clock]
        ahead_ns = max(0, departed_ns - now_ns)
        found.append(FlowState(slot, unpack_address(key), packets, wire_bytes, ahead_ns, drops))
    return sorted(found, key=lambda flow: flow.slot)


def _read(
    lib: Any, interface: str, name: str, key_bytes: int, value_bytes: int, entries: int
) -> list[tuple[bytes, bytes]]:
    """All elements of a pinned map in one batch."""
    path = pin_folder(interface) / name
    fd = lib.bpf_obj_get(os.fsencode(path))
    if fd < 0:
        raise CannotRunError(f"{path} cannot be opened: {os.strerror(ctypes.get_errno())}; run as root")
    try:
        keys = (ctypes.c_uint32 * (key_bytes // 4 * entries))()
        values = (ctypes.c_uint32 * (value_bytes // 4 * entries))()
        position = (ctypes.c_uint32 * (max(8, key_bytes) // 4))()
        count = ctypes.c_uint32(entries)
        # An error at the end (ENOENT) says that the end was reached: what was read until then counts.
        lib.bpf_lookup_batch(fd, None, position, keys, values, ctypes.byref(count))
        key_data, value_data = bytes(keys), bytes(values)
        return [
            (key_data[i * key_bytes : (i + 1) * key_bytes], value_data[i * value_bytes : (i + 1) * value_bytes])
            for i in range(count.value)
        ]
    finally:
        os.close(fd)
