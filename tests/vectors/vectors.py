"""The vectors as the tests read them, and what two switches must agree in. Nothing here needs scapy, BMv2 or a kernel."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, NamedTuple

from testbed.fabric.tables import SwitchTables, fabric_tables
from testbed.topology import Wiring, leaf_spine, wire

FOLDER: Final = Path(__file__).resolve().parent
CASES, IN_PCAP, OUT_PCAP = FOLDER / "cases.json", FOLDER / "in.pcap", FOLDER / "out.pcap"

# One network for all cases. The switch under test is leaf1: BMv2's ports 1 to 4 face h1 to h4, 5 to 8 the spines.
HOSTS: Final = 8
HOSTS_PER_LEAF: Final = 4
MTU_BYTES: Final = 4096
SERVICE_NS: Final = 10_000_000
"""Of a full packet at a slow port."""
SLOW_LINKS: Final = ("h1", "leaf1-spine1")
SLOW_PORTS: Final = (1, 5)
PATH_SALT: Final = 0x2545F491
MARK_SALT: Final = 0x9E377EE9
"""One with which the first packet is not marked between the thresholds: README.md says why."""
TIME_TOLERANCE_NS: Final = SERVICE_NS // 4
"""For headers that delay data in the kernel fabric and not on BMv2."""

_PCAP_NS: Final = 0xA1B23C4D
_GLOBAL, _RECORD = struct.Struct("<IHHiIII"), struct.Struct("<IIII")


class Packet(NamedTuple):
    """A frame on one of the switch's ports, by BMv2's number; the time counts from the start of its case."""

    port: int
    time_ns: int
    frame: bytes


@dataclass(frozen=True)
class Case:
    """How the switch is set, and what goes in."""

    name: str
    group: str
    ingress: int
    """Port of the switch."""
    host: int
    """Host that sends, by index, where there is a whole network: its packets come in at ``ingress``."""
    queue_packets: int
    """What a port holds, 0 is unlimited."""
    trimming: bool
    kmin_packets: int
    kmax_packets: int
    marking: int
    """Slow port that its marks are drawn for."""
    packets: tuple[Packet, ...]


_SETTINGS: Final = [field.name for field in fields(Case) if field.name != "packets"]


@dataclass(frozen=True)
class Observed:
    """What came out: per port in the order in which the port began to send, and what the switch counted."""

    out: tuple[Packet, ...]
    counters: dict[str, dict[int, int]]
    """Only what is not 0, by name and port."""


def network() -> tuple[Any, Wiring, SwitchTables]:
    """The topology, its wiring, and what leaf1 forwards by."""
    fast, slow = Fraction(800), Fraction(8 * MTU_BYTES, SERVICE_NS)
    topo = leaf_spine(HOSTS, HOSTS_PER_LEAF, fast, Fraction(1000), dict.fromkeys(SLOW_LINKS, slow), {})
    wiring = wire(topo)
    return topo, wiring, fabric_tables(wiring, PATH_SALT).switches[0]


def read_pcap(path: Path) -> Iterator[tuple[int, bytes]]:
    """(time in ns, frame) of a little-endian nanosecond pcap."""
    data = path.read_bytes()
    magic, *_, link = _GLOBAL.unpack_from(data)
    if (magic, link) != (_PCAP_NS, 1):
        raise ValueError(f"{path}: no nanosecond pcap of Ethernet frames")
    at = _GLOBAL.size
    while at < len(data):
        seconds, nanoseconds, length, _ = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        yield seconds * 10**9 + nanoseconds, data[at : at + length]
        at += length


@dataclass(frozen=True)
class Vectors:
    """All of cases.json and the captures, in the order of the cases."""

    provenance: dict[str, str]
    cases: list[Case]
    bmv2: list[Observed]
    kernel: list[Observed]
    """The same as ``bmv2`` where there is no reason to differ."""
    reasons: list[str]
    """Why the two differ, "" where they do not."""


def load() -> Vectors:
    """Reads the three files."""
    document = json.loads(CASES.read_text())
    given, came = list(read_pcap(IN_PCAP)), list(read_pcap(OUT_PCAP))
    vectors = Vectors(document["provenance"], [], [], [], [])
    for number, entry in enumerate(document["cases"]):
        epoch_ns = case_epoch_ns(number)
        first, count = entry["in"]
        packets = tuple(Packet(entry["ingress"], at - epoch_ns, frame) for at, frame in given[first : first + count])
        vectors.cases.append(Case(**{name: entry[name] for name in _SETTINGS}, packets=packets))
        for name, observed in (("bmv2", vectors.bmv2), ("kernel", vectors.kernel)):
            side = entry.get(name, entry["bmv2"])
            out = tuple(Packet(port, came[at][0] - epoch_ns, came[at][1]) for port, at in side["out"])
            observed.append(Observed(out, _by_port(side["counters"])))
        vectors.reasons.append(entry.get("difference", ""))
    return vectors


def _by_port(counters: dict[str, dict[str, int]]) -> dict[str, dict[int, int]]:
    return {name: {int(port): count for port, count in ports.items()} for name, ports in counters.items()}


def case_epoch_ns(number: int) -> int:
    """Where a case begins in the captures: they are ten seconds apart, the first at one."""
    return (1 + 10 * number) * 10**9


def checksum_is_valid(frame: bytes) -> bool:
    """Of an IPv4 header without options (RFC 1071)."""
    total = sum(struct.unpack_from(">10H", frame, 14))
    return bool((total & 0xFFFF) + (total >> 16) == 0xFFFF)


def unpadded(frame: bytes) -> bytes:
    """Without what fills a short frame up: it is no part of the packet."""
    return frame[: 14 + int.from_bytes(frame[16:18], "big")]


def disagreements(expected: Observed, got: Observed) -> list[str]:
    """In which ports, bytes, order, times and counters; empty if the two are equal."""
    found = []
    ports = sorted({packet.port for packet in (*expected.out, *got.out)})
    for port in ports:
        one = [packet for packet in expected.out if packet.port == port]
        other = [packet for packet in got.out if packet.port == port]
        if len(one) != len(other):
            found.append(f"port {port}: {len(one)} packets expected, {len(other)} came")
            continue
        for place, (a, b) in enumerate(zip(one, other, strict=True)):
            if unpadded(a.frame) != unpadded(b.frame):
                at = next(
                    (n for n, (x, y) in enumerate(zip(unpadded(a.frame), unpadded(b.frame), strict=False)) if x != y),
                    -1,
                )
                found.append(
                    f"port {port}: packet {place} differs from byte {at} on: {a.frame[:90].hex()} ({len(a.frame)} B) expected, "
                    f"{b.frame[:90].hex()} ({len(b.frame)} B) came"
                )
            elif abs(a.time_ns - b.time_ns) > TIME_TOLERANCE_NS:
                found.append(f"port {port}: packet {place} expected at {a.time_ns} ns, came at {b.time_ns}")
    if expected.counters != got.counters:
        found.append(f"counters: {expected.counters} expected, {got.counters} read")
    return found


def encode_cases(cases: Iterable[Case]) -> str:
    """As JSON, for a guest."""
    return json.dumps(
        [{**case.__dict__, "packets": [[p.port, p.time_ns, p.frame.hex()] for p in case.packets]} for case in cases]
    )


def decode_cases(text: str) -> list[Case]:
    """The inverse."""
    return [Case(**{**entry, "packets": packets_of(entry["packets"])}) for entry in json.loads(text)]


def packets_of(rows: Iterable[tuple[int, int, str]]) -> tuple[Packet, ...]:
    """From (port, time, hexadecimal frame)."""
    return tuple(Packet(port, time_ns, bytes.fromhex(frame)) for port, time_ns, frame in rows)


def observed_of(value: dict[str, Any]) -> Observed:
    """What a guest said of one case."""
    return Observed(packets_of(value["out"]), _by_port(value["counters"]))
