"""Departure times of ebpf/include/edt.h, compiled for this machine, against exact arithmetic."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.conftest import Compile

ONE = 2**32
PROGRAM = """
#include <stdio.h>
#include "edt.h"
int main(void)
{
	struct edt_flow flow = { .packets = 1 }; /* one left at 0 */
	unsigned long long now_ns, wire_ns, departure_ns;
	unsigned int steps;

	while (scanf("%llu %llu %u", &now_ns, &wire_ns, &steps) == 3) {
		departure_ns = edt_depart(&flow, now_ns, wire_ns, steps);
		printf("%llu %llu %u %u\\n", departure_ns, (unsigned long long)flow.departed_ns, flow.remainder,
			flow.packets);
	}
	return 0;
}
"""


class Packet(NamedTuple):
    now_ns: int
    wire_ns: int
    steps: int


class State(NamedTuple):
    """What the function returned, and the flow after it."""

    departure_ns: int
    departed_ns: int
    remainder: int
    packets: int


Depart = Callable[[Sequence[Packet]], list[State]]


@pytest.fixture(scope="module")
def program(compile_c: Compile) -> Path:
    return compile_c(PROGRAM)


@pytest.fixture(scope="module")
def depart(program: Path) -> Depart:
    """Sends the packets of one flow, of which one has left at time 0."""

    def run(packets: Sequence[Packet]) -> list[State]:
        lines = "".join(f"{p.now_ns} {p.wire_ns} {p.steps}\n" for p in packets)
        output = subprocess.run([program], input=lines, capture_output=True, text=True, check=True).stdout
        states = [State(*map(int, line.split())) for line in output.splitlines()]
        assert len(states) == len(packets)
        return states

    return run


def gap(wire_ns: int, steps: int) -> Fraction:
    return Fraction(wire_ns * ONE, steps)


wires = st.one_of(st.integers(1, 2**31 - 1), st.just(4096), st.integers(1, 10))
rates = st.one_of(st.integers(1, ONE - 1), st.integers(0, 31).map(lambda bit: 1 << bit), st.just(ONE - 1))
# Kernel times of a run of a day, and rates that keep a few packets within it.
modest_rates = st.integers(2**10, ONE - 1)


@settings(max_examples=60, deadline=None)
@given(wire_ns=st.integers(1, 2**20), steps=modest_rates, count=st.integers(1, 300))
def test_n_packets_take_n_gaps_cut_once(depart: Depart, wire_ns: int, steps: int, count: int) -> None:
    states = depart([Packet(0, wire_ns, steps)] * count)
    assert [s.departure_ns for s in states] == [floor(n * gap(wire_ns, steps)) for n in range(1, count + 1)]
    assert [s.packets for s in states] == list(range(2, count + 2))


def test_a_fraction_of_a_nanosecond_adds_up(depart: Depart) -> None:
    # A gap is 2,867,200.26 ns.
    steps = ONE // 700
    states = depart([Packet(0, 4096, steps)] * 10_000)
    assert states[-1].departure_ns == floor(10_000 * gap(4096, steps)) > 10_000 * 2_867_200 + 2600


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 2**20), min_size=1, max_size=50), steps=modest_rates)
def test_packets_of_any_size_take_their_sum_cut_once(depart: Depart, sizes: list[int], steps: int) -> None:
    states = depart([Packet(0, size, steps) for size in sizes])
    assert [s.departure_ns for s in states] == [floor(gap(sum(sizes[:n]), steps)) for n in range(1, len(sizes) + 1)]


def test_a_short_last_packet_leaves_when_the_last_byte_is_due(depart: Depart) -> None:
    # At half the line rate: two packets of 4,096 ns and one of 100 ns.
    states = depart([Packet(0, 4096, ONE // 2), Packet(0, 4096, ONE // 2), Packet(0, 100, ONE // 2)])
    assert [s.departure_ns for s in states] == [8192, 16384, 16584]


@settings(max_examples=60, deadline=None)
@given(
    start_ns=st.integers(0, 2**50),
    wire_ns=st.integers(1, 2**20),
    steps=modest_rates,
    count=st.integers(1, 100),
)
def test_a_flow_that_starts_late_is_never_early_and_at_most_1_ns_late(
    depart: Depart, start_ns: int, wire_ns: int, steps: int, count: int
) -> None:
    one = gap(wire_ns, steps)
    # Later than the first gap: the first packet has earned its bytes long ago and leaves at once.
    start_ns += floor(one) + 1
    departures = [s.departure_ns for s in depart([Packet(start_ns, wire_ns, steps)] * (count + 1))]
    assert departures[0] == start_ns
    for n, departure_ns in enumerate(departures):
        assert 0 <= departure_ns - start_ns - floor(n * one) <= 1


def test_a_pause_earns_nothing(depart: Depart) -> None:
    half = ONE // 2
    packets = [Packet(0, 100, half), Packet(10_000, 100, half), Packet(10_000, 100, half), Packet(10_001, 100, half)]
    assert [s.departure_ns for s in depart(packets)] == [200, 10_000, 10_200, 10_400]


def test_a_packet_that_comes_in_time_waits_for_the_rest_of_its_gap(depart: Depart) -> None:
    half = ONE // 2
    packets = [Packet(0, 100, half), Packet(399, 100, half), Packet(601, 100, half)]
    assert [s.departure_ns for s in depart(packets)] == [200, 400, 601]


@settings(max_examples=100, deadline=None)
@given(
    old=modest_rates,
    new=modest_rates,
    before=st.integers(1, 30),
    after=st.integers(1, 30),
    wire_ns=st.integers(1, 2**20),
)
def test_the_debt_stays_across_a_change_of_rate(
    depart: Depart, old: int, new: int, before: int, after: int, wire_ns: int
) -> None:
    # All are offered at once, so that the flow is ahead of its time when the rate changes.
    states = depart([Packet(0, wire_ns, old)] * before + [Packet(0, wire_ns, new)] * after)
    exact = before * gap(wire_ns, old)
    reached_ns = floor(exact)
    assert states[before - 1].departure_ns == reached_ns
    # The part of a nanosecond that was cut is owed in bytes, and paid at the new rate.
    owed_ns = (exact - reached_ns) * old / ONE
    assert 0 <= owed_ns < 1
    for n in range(1, after + 1):
        assert states[before + n - 1].departure_ns == floor(reached_ns + (n * wire_ns + owed_ns) * ONE / new)


def test_the_debt_of_a_slow_rate_holds_back_a_fast_one(depart: Depart) -> None:
    slow, fast = ONE // 1000, ONE // 2
    states = depart([Packet(0, 100, slow), Packet(50, 100, fast)])
    assert states[0].departure_ns >= 100_000
    assert states[1].departure_ns == states[0].departure_ns + 200


@given(now_ns=st.integers(0, 2**63), wire_ns=wires)
@settings(max_examples=30, deadline=None)
def test_an_unpaced_packet_passes(depart: Depart, now_ns: int, wire_ns: int) -> None:
    assert depart([Packet(now_ns, wire_ns, 0)]) == [State(now_ns, 0, 0, 2)]


def test_unpaced_packets_leave_the_clock_alone(depart: Depart) -> None:
    third = ONE // 3
    paced = [Packet(0, 1000, third)] * 2
    alone = depart(paced)
    mixed = depart([paced[0], Packet(17, 1000, 0), Packet(18, 5, 0), paced[1]])
    assert [mixed[1].departure_ns, mixed[2].departure_ns] == [17, 18]
    assert (mixed[3].departure_ns, mixed[3].remainder) == (alone[1].departure_ns, alone[1].remainder)
    assert mixed[3].packets == 5


@settings(max_examples=60, deadline=None)
@given(packets=st.lists(st.builds(Packet, st.integers(0, 2**40), wires, modest_rates), min_size=1, max_size=30))
def test_departures_never_go_back_and_never_precede_the_packet(depart: Depart, packets: list[Packet]) -> None:
    states = depart(packets)
    for packet, earlier, later in zip(packets[1:], states, states[1:], strict=False):
        assert later.departure_ns >= max(earlier.departure_ns, packet.now_ns)
    assert all(s.remainder < p.steps for p, s in zip(packets, states, strict=True))


@pytest.mark.parametrize("wire_ns", [1, 2**31 - 1])
@pytest.mark.parametrize("steps", [1, 2, ONE // 2, ONE - 1])
def test_the_ends_of_the_range_do_not_overflow(depart: Depart, wire_ns: int, steps: int) -> None:
    (state,) = depart([Packet(0, wire_ns, steps)])
    assert state.departure_ns == floor(gap(wire_ns, steps))
    assert state.remainder == wire_ns * ONE % steps


@settings(max_examples=60, deadline=None)
@given(wire_ns=st.integers(1, 2**30), first=rates, second=rates)
def test_two_packets_at_any_two_rates(depart: Depart, wire_ns: int, first: int, second: int) -> None:
    states = depart([Packet(0, wire_ns, first), Packet(0, wire_ns, second)])
    whole, rest = divmod(wire_ns * ONE, first)
    assert states[0].departure_ns == whole
    assert states[1].departure_ns == whole + (wire_ns * ONE + rest) // second


def test_the_first_packet_of_a_flow_leaves_when_it_is_ready(tmp_path: Path) -> None:
    """Whatever its gap: nothing was sent before it. The next one is a gap later."""
    source = tmp_path / "first.c"
    source.write_text(
        '#include <stdio.h>\n#include "edt.h"\n'
        "int main(void) { struct edt_flow flow = {0};\n"
        "for (int i = 0; i < 3; i++)\n"
        'printf("%llu ", (unsigned long long)edt_depart(&flow, 5, 1u << 30, 1u << 16)); return 0; }\n'
    )
    program = tmp_path / "first"
    include = Path(__file__).resolve().parents[2] / "ebpf" / "include"
    subprocess.run(["gcc", "-I", str(include), "-o", str(program), str(source)], check=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    assert [int(word) for word in printed.split()] == [5, 5 + 2**46, 5 + 2**47]
