"""REPS (testbed/engine/reps.c), compiled for this machine, against a model of its rules."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import mix32
from tests.unit.conftest import Compile

RING, VALUES = 8, 64
PROGRAM = """
#include <stdio.h>
#include "reps.c"
int main(int argc, char **argv)
{
	struct reps reps = {0};
	unsigned long long number;
	unsigned int seed = 0;
	char what;

	if (argc == 2)
		sscanf(argv[1], "%u", &seed);
	while (scanf(" %c %llu", &what, &number) == 2) {
		if (what == 'u' || what == 'm')
			reps_hear(&reps, (uint8_t)number, what == 'm');
		else if (what == 'f')
			reps_freeze(&reps, number);
		else
			printf("%u\\n", reps_take(&reps, seed, number));
	}
	return 0;
}
"""
Step = tuple[str, int]
"""An ACK without (u) or with (m) a mark and its value; a timeout (f), and until when the flow is frozen; a packet (t), when."""
Take = Callable[..., list[int]]


@pytest.fixture(scope="module")
def program(compile_c: Compile) -> Path:
    return compile_c(PROGRAM)


@pytest.fixture(scope="module")
def take(program: Path) -> Take:
    """The values of the packets among the steps of one flow."""

    def run(steps: Sequence[Step], seed: int = 0) -> list[int]:
        lines = "".join(f"{what} {number}\n" for what, number in steps)
        output = subprocess.run([program, str(seed)], input=lines, capture_output=True, text=True, check=True).stdout
        return [int(line) for line in output.splitlines()]

    return run


def drawn(count: int, seed: int = 0) -> list[int]:
    """The first random values."""
    return [mix32(seed + n) % VALUES for n in range(count)]


def heard(*values: int) -> list[Step]:
    return [("u", value) for value in values]


def packets(count: int, now_ns: int = 0) -> list[Step]:
    return [("t", now_ns)] * count


def test_without_feedback_values_are_random(take: Take) -> None:
    values = take(packets(6400), seed=5)
    assert values == drawn(6400, 5)
    counts = Counter(values)
    assert set(counts) == set(range(VALUES))
    assert max(counts.values()) < 150
    assert take(packets(100), seed=6) != values[:100]


def test_each_good_value_is_used_once_the_oldest_first(take: Take) -> None:
    assert take([*heard(7, 3, 7), *packets(5)]) == [7, 3, 7, *drawn(2)]
    assert take([*heard(7), *packets(1), *heard(9), *packets(2)]) == [7, 9, *drawn(1)]


def test_the_value_of_a_marked_ack_is_not_used(take: Take) -> None:
    assert take([("m", 7), *heard(3), ("m", 9), *packets(2)]) == [3, *drawn(1)]
    marked = [("m", 63)] * 1000
    assert take([*marked, *packets(100)]) == drawn(100)


def test_of_more_than_eight_the_latest_are_kept(take: Take) -> None:
    assert take([*heard(*range(20)), *packets(9)]) == [*range(12, 20), *drawn(1)]


def test_after_a_timeout_known_values_alone(take: Take) -> None:
    """Used ones, too; and what comes in takes the place of the oldest."""
    before = [*heard(1, 2, 3), *packets(3), ("f", 1000)]
    assert take([*before, *packets(7, 999)])[3:] == [1, 2, 3, 1, 2, 3, 1]
    # 1 is next, when 4 becomes the fourth of them.
    assert take([*before, *packets(3, 500), *heard(4), *packets(5, 500)])[3:] == [1, 2, 3, 1, 2, 3, 4, 1]
    full = [*heard(*range(8)), ("f", 1000), *heard(8), *packets(8)]
    assert take(full) == [8, 1, 2, 3, 4, 5, 6, 7]


def test_a_flow_that_knows_nothing_goes_on_at_random(take: Take) -> None:
    assert take([("f", 1000), *packets(3)]) == drawn(3)


def test_a_second_timeout_does_not_prolong_the_first(take: Take) -> None:
    assert take([*heard(5), ("f", 1000), ("f", 5000), *packets(1, 999), *packets(1, 1000)]) == [5, *drawn(1)]


def test_in_the_end_all_is_forgotten(take: Take) -> None:
    steps = [*packets(2), *heard(1, 2), ("f", 1000), *packets(2, 10), *packets(2, 1000), *heard(9), *packets(2, 1001)]
    assert take(steps) == [*drawn(2), 1, 2, *drawn(4)[2:], 9, *drawn(5)[4:]]


def model(steps: Sequence[Step], seed: int) -> list[int]:
    """The rules, with lists."""
    slots: list[int] = []
    written = taken = turn = draws = 0
    thaw_ns: int | None = None
    found = []
    for what, number in steps:
        if what == "u":
            if len(slots) < RING:
                slots.append(number)
            else:
                slots[written % RING] = number
            written += 1
            taken = max(taken, written - RING)
        elif what == "f":
            thaw_ns = number if thaw_ns is None else thaw_ns
        elif what == "t":
            if thaw_ns is not None and number >= thaw_ns:
                slots, written, taken, turn, thaw_ns = [], 0, 0, 0, None
            if thaw_ns is not None and slots:
                found.append(slots[turn])
                turn = (turn + 1) % len(slots)
            elif taken < written:
                found.append(slots[taken % RING])
                taken += 1
            else:
                found.append(mix32(seed + draws) % VALUES)
                draws += 1
    return found


steps_of_a_flow = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("um"), st.integers(0, VALUES - 1)),
        st.tuples(st.just("t"), st.integers(0, 100)),
        st.tuples(st.just("f"), st.integers(1, 120)),
    ),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(steps=steps_of_a_flow, seed=st.integers(0, 2**32 - 1))
def test_any_order_of_events(take: Take, steps: list[Step], seed: int) -> None:
    assert take(steps, seed) == model(steps, seed)
