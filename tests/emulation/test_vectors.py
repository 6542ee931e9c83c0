"""Golden vectors: packets in, packets out, recorded from BMv2, on the kernel fabric; and again on BMv2 where it is.

tests/vectors/README.md says how they were made, and why the two fabrics differ where they do.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from testbed.fabric.bmv2 import PROGRAM, installation
from testbed.fabric.tables import mix32
from tests.vectors import vectors
from tests.vectors.vectors import PATH_SALT, SERVICE_NS, Case, Observed, Packet

REPLAY = """
from pathlib import Path
from testbed.stage.console import say
from tests.vectors import bmv2_switch, kernel_switch, vectors
recorded = vectors.load()
found = []
for case, expected, got in zip(recorded.cases, recorded.{side}, {call}):
    for line in vectors.disagreements(expected, vectors.observed_of(got)):
        found.append(f"{{case.group}}, {{case.name}}: {{line}}")
for line in found[:20]:
    say("line", line[:600])
say("line", f"{{len(recorded.cases)}} cases, {{len(found)}} disagreements")
"""
LEAST = {"forward": 9, "ttl": 5, "real": 6, "ecmp": 24, "foreign": 10, "control": 6, "trim": 12, "drop": 2, "ecn": 12}
"""Cases a group; 60 are asked for."""


@pytest.fixture(scope="module")
def recorded() -> vectors.Vectors:
    return vectors.load()


def named(recorded: vectors.Vectors, group: str, name: str) -> tuple[Case, Observed]:
    """A case, and what BMv2 did."""
    return next(
        (case, observed)
        for case, observed in zip(recorded.cases, recorded.bmv2, strict=True)
        if (case.group, case.name) == (group, name)
    )


def psns(packets: tuple[Packet, ...]) -> list[int]:
    return [int.from_bytes(packet.frame[42:46], "big") for packet in packets]


def test_the_kernel_fabric(guest: Callable[[str], list[str]], recorded: vectors.Vectors) -> None:
    """Same ports, bytes, order, times and counters; where there is a reason to differ, just that difference."""
    lines = guest(REPLAY.format(side="kernel", call="kernel_switch.run(cases=recorded.cases)"))
    assert lines == [f"{len(recorded.cases)} cases, 0 disagreements"]


def test_bmv2(guest: Callable[[str], list[str]], recorded: vectors.Vectors) -> None:
    """The recording can be repeated."""
    found = installation.find()
    if found is None:
        pytest.skip(installation.NEEDED)
    lines = guest(REPLAY.format(side="bmv2", call=f"bmv2_switch.run(recorded.cases, Path({str(found.program)!r}))"))
    assert lines == [f"{len(recorded.cases)} cases, 0 disagreements"]


def test_the_vectors_are_of_this_program(recorded: vectors.Vectors) -> None:
    program = hashlib.sha256(PROGRAM.read_bytes()).hexdigest()
    assert recorded.provenance["program_sha256"] == program, "run scripts/record-vectors.py, where BMv2 is"
    assert {"recorded", "bmv2", "scapy", "compiler", "version"} <= recorded.provenance.keys()


def test_enough_of_each_kind(recorded: vectors.Vectors) -> None:
    groups = Counter(case.group for case in recorded.cases)
    assert groups.keys() == LEAST.keys()
    assert all(groups[group] >= least for group, least in LEAST.items())
    assert len({(case.group, case.name) for case in recorded.cases}) == len(recorded.cases)


def test_differences_are_real_and_few(recorded: vectors.Vectors) -> None:
    """Each has its reason, which README.md names; one that has gone is to be struck out."""
    readme = (vectors.FOLDER / "README.md").read_text()
    for case, bmv2, kernel, reason in zip(
        recorded.cases, recorded.bmv2, recorded.kernel, recorded.reasons, strict=True
    ):
        assert bool(vectors.disagreements(bmv2, kernel)) == bool(reason), case.name
        assert not reason or f"`{case.group}`: {case.name}" in readme, case.name
    assert sum(map(bool, recorded.reasons)) <= len(recorded.cases) // 8


def test_every_packet_that_came_out_was_put_in(recorded: vectors.Vectors) -> None:
    """But for the bytes that a switch may change; and with a checksum that is right if it was."""
    for case, *sides in zip(recorded.cases, recorded.bmv2, recorded.kernel, strict=True):
        wrong = "checksum" in case.name
        given = Counter(unchangeable(packet.frame) for packet in case.packets)
        for observed in sides:
            came = Counter(unchangeable(packet.frame) for packet in observed.out)
            assert came <= given, case.name
            assert all(vectors.checksum_is_valid(packet.frame) != wrong for packet in observed.out), case.name
            lost = sum(observed.counters.get("foreign", {}).values()) + sum(observed.counters.get("drops", {}).values())
            assert (given - came).total() == lost, case.name


def unchangeable(frame: bytes) -> bytes:
    """All but the type of service, the lengths and the checksum; no padding."""
    kept = frame if frame[54:58] == b"IRFI" else vectors.unpadded(frame)
    return kept[:15] + kept[18:24] + kept[26:38] + kept[40:]


def test_uplinks_follow_from_the_hash(recorded: vectors.Vectors) -> None:
    """docs/model.md, Load balancing, on the packets' own bytes. All four are used."""
    taken = Counter[int]()
    for case, observed, reason in zip(recorded.cases, recorded.bmv2, recorded.reasons, strict=True):
        if case.group != "ecmp" or reason:
            continue
        for packet in observed.out:
            source, destination, ports = struct.unpack_from(">III", packet.frame, 26)
            s, d = source - 0x0A000001, destination - 0x0A000001
            words = mix32(PATH_SALT) + s * 0x9E3779B1 + d * 0x85EBCA77 + ports * 0xC2B2AE3D
            assert packet.port == 5 + (mix32(words & 0xFFFFFFFF) * 4 >> 32), case.name
            taken[packet.port] += 1
    assert all(taken[port] >= 4 for port in (5, 6, 7, 8))


@pytest.mark.parametrize("limit", [2, 3, 4, 8, 11, 12])
def test_a_full_queue_cuts_what_comes(recorded: vectors.Vectors, limit: int) -> None:
    """As many whole packets as the limit, the others as headers that overtake them."""
    _, observed = named(recorded, "trim", f"{limit} of 12")
    data = [packet for packet in observed.out if packet.frame[15] < 48 << 2]
    headers = tuple(packet for packet in observed.out if packet not in data)
    assert psns(tuple(data)) == list(range(limit))
    assert psns(headers) == list(range(limit, 12))
    for packet in headers:
        assert (packet.frame[15], packet.frame[16:18], packet.frame[38:40]) == (50 << 2, b"\0\x32", b"\0\x1e")
        assert len(packet.frame) == 86
        assert packet.time_ns < data[1].time_ns
    assert [packet.time_ns for packet in data] == [
        pytest.approx(n * SERVICE_NS, abs=SERVICE_NS // 20) for n in range(limit)
    ]


@pytest.mark.parametrize("name", ["between", "between, longer", "uplink, between", "DSCP stays"])
def test_marks_are_linear_between_the_thresholds(recorded: vectors.Vectors, name: str) -> None:
    """Some and not all; none of those that leave no more than kmin behind; only in the two bits of ECN."""
    case, observed = named(recorded, "ecn", name)
    marked = [place for place, packet in enumerate(observed.out) if packet.frame[15] & 3 == 3]
    behind = [len(observed.out) - 1 - place for place in marked]
    assert 0 < len(marked) < len(observed.out) - case.kmin_packets - 1
    assert min(behind) > case.kmin_packets
    assert {packet.frame[15] >> 2 for packet in observed.out} == {case.packets[0].frame[15] >> 2}


def test_marks_above_and_below(recorded: vectors.Vectors) -> None:
    """A burst of ten with kmax 4: five leave more behind, on BMv2 all but the first of them are marked."""
    for name in ("above kmax", "uplink, above kmax"):
        for side, first in ((recorded.bmv2, 1), (recorded.kernel, 0)):
            place = next(n for n, case in enumerate(recorded.cases) if (case.group, case.name) == ("ecn", name))
            ecn = [packet.frame[15] & 3 for packet in side[place].out]
            assert ecn[:5] == [2] * first + [3] * (5 - first)
            assert ecn[8:] == [2, 2]
    for name in ("off", "below kmin", "exactly kmin behind", "packets apart"):
        case, observed = named(recorded, "ecn", name)
        assert [packet.frame[15] & 3 for packet in observed.out] == [2] * len(case.packets)


def test_disagreements_are_seen(recorded: vectors.Vectors) -> None:
    """A byte, a port, an order, a time, a packet too few, a counter."""
    _, observed = named(recorded, "trim", "4 of 12")
    first, second, *rest = observed.out
    changed = bytearray(first.frame)
    changed[20] ^= 1
    swapped = (second._replace(time_ns=first.time_ns), first._replace(time_ns=second.time_ns))
    others = [
        replace(observed, out=(first._replace(frame=bytes(changed)), second, *rest)),
        replace(observed, out=(first._replace(port=2), second, *rest)),
        replace(observed, out=(*swapped, *rest)),
        replace(observed, out=(first._replace(time_ns=first.time_ns + SERVICE_NS), second, *rest)),
        replace(observed, out=(second, *rest)),
        replace(observed, counters={**observed.counters, "trims": {1: 7}}),
    ]
    assert vectors.disagreements(observed, observed) == []
    for other in others:
        assert vectors.disagreements(observed, other)
