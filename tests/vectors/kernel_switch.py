"""Leaf1 of the in-kernel fabric under the cases. Runs in the virtual stage, as root.

A packet is taken where it has passed its link, since marks are made there (ebpf/fabric/trunk.h, link_passed): on the
spine's far side, or at the host. Frames of the engine end in the host's NIC: these are taken as leaf1 sends them, unmarked.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
import traceback
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, NoReturn

from testbed.fabric.kernel import KernelFabric
from testbed.net import FabricNet
from testbed.topology import Wiring
from tests.vectors.vectors import (
    HOSTS,
    HOSTS_PER_LEAF,
    MARK_SALT,
    MTU_BYTES,
    PATH_SALT,
    SERVICE_NS,
    SLOW_PORTS,
    Case,
    Packet,
    network,
)
from tests.vectors.wires import Tap, play

_CLONE_NEWNET: Final = 0x40000000
_SETTLE_S: Final = 20
_DILATION: Final = Fraction(1)
_FRAME_BYTES: Final = 86
_MAGIC: Final = slice(54, 58)
_PORT_BYTES: Final = 128
_LIMIT_NS, _BYTE_NS = slice(16, 24), slice(24, 32)
"""Of struct port (ebpf/include/fabric.h)."""


class KernelSwitch:
    """A fabric with the constants of some cases, in a network namespace of its own."""

    def __init__(self, case: Case) -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        for name in ("all", "default"):  # a new namespace sends router solicitations
            Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
        topo, self._wiring, self._leaf = network()
        net = FabricNet(topo, self._wiring, mtu_bytes=MTU_BYTES, pairs=True, isolated_hosts=False)
        net.build()
        self._fabric = KernelFabric(
            net,
            self._wiring,
            dilation=_DILATION,
            path_salt=PATH_SALT,
            queue_bytes=0,
            mtu_bytes=MTU_BYTES,
            tracing=False,
            constants={
                "acknowledging": 0,
                "trimming": case.trimming,
                "ecn_kmin_bytes": case.kmin_packets * MTU_BYTES,
                "ecn_kmax_bytes": case.kmax_packets * MTU_BYTES,
                "mark_salt": MARK_SALT,
                "loss_salt": 0,
                "loss_data": 0,
                "loss_control": 0,
                "failing": 0,
            },
        )
        self._fresh = bytes(self._fabric.ports)
        ports = self._wiring.ports
        self._nics = [Tap(ports[host].name) for host in range(HOSTS)]
        self._access = [Tap(ports[ports[host].peer].name) for host in range(HOSTS_PER_LEAF)]
        # Number of the uplink, and the spine's port on to the other leaf.
        self._beyond = {
            self._leaf.number_of(port.index): Tap(_onward(self._wiring, port.peer_node))
            for port in _uplinks(self._wiring)
        }
        time.sleep(_SETTLE_S)

    def run(self, case: Case) -> dict[str, Any]:
        """One case, on ports that have forgotten all others."""
        self._fabric.ports[:] = self._fresh
        for port in range(HOSTS, len(self._wiring.ports)):
            byte_ns = self._fabric.ports[port * _PORT_BYTES :][_BYTE_NS].cast("Q")[0]
            limit_ns = case.queue_packets * MTU_BYTES * byte_ns >> 32
            self._fabric.ports[port * _PORT_BYTES :][_LIMIT_NS].cast("Q")[0] = limit_ns
        for tap in (*self._nics, *self._access, *self._beyond.values()):
            tap.drain(outgoing=True)
        began_ns = play(case, self._nics[case.host])
        out = sorted(
            (_begun(port, time_ns - began_ns, frame) for port, time_ns, frame in self._drain()),
            key=lambda packet: (packet.port, packet.time_ns),
        )
        return {
            "out": [[packet.port, packet.time_ns, packet.frame.hex()] for packet in out],
            "counters": self._counters(),
        }

    def _drain(self) -> list[Packet]:
        packets = []
        for host, tap in enumerate(self._access):
            delivered = iter([frame for _, frame in self._nics[host].drain(outgoing=False)])
            for time_ns, frame in tap.drain(outgoing=True):
                packets.append(Packet(host + 1, time_ns, frame if _is_frame(frame) else next(delivered)))
        for number, tap in self._beyond.items():
            packets += [Packet(number, *captured) for captured in tap.drain(outgoing=True)]
        for tap in self._nics[HOSTS_PER_LEAF:]:
            tap.drain(outgoing=False)
        return packets

    def _counters(self) -> dict[str, dict[int, int]]:
        """By the names of p4src/queue.p4. What is foreign a NIC counts, before it is on the link to leaf1."""
        counted: dict[str, dict[int, int]] = {}
        counters = self._fabric.port_counters()
        for port in self._leaf.ports:
            values = {name: counters[port][kept] for name, kept in _NAMES.items()}
            peer = self._wiring.ports[port].peer
            if peer < HOSTS:
                values["foreign"] += counters[peer]["foreign"]
            for name, value in values.items():
                if value:
                    counted.setdefault(name, {})[self._leaf.number_of(port)] = value
        return counted


_NAMES: Final = {
    "trims": "trims",
    "drops": "drops",
    "marks": "marks",
    "control_packets": "control",
    "foreign": "foreign",
}


def _is_frame(frame: bytes) -> bool:
    return len(frame) >= _FRAME_BYTES and frame[_MAGIC] == b"IRFI"


def _begun(port: int, far_end_ns: int, frame: bytes) -> Packet:
    """With the time at which the port began to send, as BMv2 has it, in place of when the packet was at the far end."""
    wire_bytes = 14 + int.from_bytes(frame[16:18], "big")
    service_ns = wire_bytes * SERVICE_NS // MTU_BYTES if port in SLOW_PORTS else 0
    return Packet(port, far_end_ns - service_ns, frame)


def _uplinks(wiring: Wiring) -> Iterable[Any]:
    return (port for port in wiring.ports if port.node == "leaf1" and port.peer_node.startswith("spine"))


def _onward(wiring: Wiring, spine: str) -> str:
    return next(port.name for port in wiring.ports if port.node == spine and port.peer_node == "leaf2")


def run(cases: list[Case]) -> list[dict[str, Any]]:
    """What each case gave. A process for each set of constants: with it goes a fabric, which is large."""
    results: dict[int, dict[str, Any]] = {}
    for key in sorted({_constants(case) for case in cases}):
        chosen = [number for number, case in enumerate(cases) if _constants(case) == key]
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            _child(reader, writer, [cases[number] for number in chosen])
        os.close(writer)
        with open(reader, encoding="ascii") as file:
            results |= zip(chosen, json.load(file), strict=True)
        os.waitpid(child, 0)
    return [results[number] for number in range(len(cases))]


def _child(reader: int, writer: int, cases: list[Case]) -> NoReturn:
    """Runs the cases on a fabric and ends. If it fails, the parent finds nothing to read."""
    try:
        os.close(reader)
        switch = KernelSwitch(cases[0])
        with open(writer, "w", encoding="ascii") as file:
            json.dump([switch.run(case) for case in cases], file)
    except BaseException:  # noqa: BLE001 (whatever it was, this process must not go on as its parent)
        traceback.print_exc()
    finally:
        os._exit(0)


def _constants(case: Case) -> tuple[int, ...]:
    return case.trimming, case.kmin_packets, case.kmax_packets
