"""Rates: the paper's example, and what must hold of every matrix, in exact fractions."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from controller.demand import Demand, load_demand
from controller.errors import InputError
from controller.nic.rate_table import RATE_ONE
from controller.schedule import SCHEDULES, make_plan, rate
from controller.schedule.plan import Discipline

pytestmark = pytest.mark.usefixtures("part")

FEW = 2**20
GBPS = Fraction(10**9)
SPEEDS = [Fraction(speed) * GBPS for speed in (800, 400, 200, 100, Fraction("123.456"), Fraction(1600, 3))]
LARGEST_TOTAL = 2**63 - 1


def check(wire: NDArray[np.int64], speeds: Sequence[Fraction], steps: NDArray[np.uint32], one: int) -> None:
    """No port above its speed, rates where there is demand and only there, none ends after T* / lambda."""
    hosts = len(wire)
    amounts, rates = wire.tolist(), steps.tolist()
    assert [[bool(cell) for cell in row] for row in rates] == [[bool(cell) for cell in row] for row in amounts]
    unit = [speed / one for speed in speeds]
    for i in range(hosts):
        assert sum(rates[i]) <= one, f"sender {i} is oversubscribed"
        assert sum(rates[j][i] * unit[j] for j in range(hosts)) <= speeds[i], f"receiver {i} is oversubscribed"
    loads = [8 * sum(amounts[i]) / speeds[i] for i in range(hosts)]
    loads += [8 * sum(row[j] for row in amounts) / speeds[j] for j in range(hosts)]
    latest_s = max(loads) / rate.slack(hosts, speeds, one)
    for i in range(hosts):
        for j in range(hosts):
            # D / r <= T* / lambda
            assert 8 * amounts[i][j] <= latest_s * rates[i][j] * unit[i], f"flow {i} to {j} ends late"


def rates_of(wire: NDArray[np.int64], speeds: Sequence[Fraction], one: int) -> NDArray[np.uint32]:
    demand = Demand(wire)
    if one == RATE_ONE:
        plan = rate.plan(demand, speeds)
        assert plan.discipline is Discipline.PACED
        return plan.steps
    time_s = demand.bottleneck(speeds).time_s
    return rate.rate_steps(wire, time_s / rate.slack(len(wire), speeds, one), speeds, one)


def test_the_papers_example(tmp_path: Path) -> None:
    path = tmp_path / "paper.csv"
    path.write_text("0,1000,2000\n800,0,2000\n2000,1000,0\n")
    demand = load_demand(path, unit="wire-bytes")
    speeds = [800 * GBPS] * 3
    assert demand.max_port_bytes == 4000
    bottleneck = demand.bottleneck(speeds)
    assert (str(bottleneck), bottleneck.load_bytes) == ("receiver 2", 4000)
    assert bottleneck.time_s == Fraction(8 * 4000, 800 * 10**9)
    plan = make_plan("rate", demand, speeds)
    expected = np.array([[0, 0.25, 0.5], [0.2, 0, 0.5], [0.5, 0.25, 0]])
    shares = rate.step_share(plan.steps)
    # Rounded, and scaled down by a few steps of 2^32 so that rounding up fits.
    assert np.abs(shares - expected).max() < 8 / RATE_ONE
    assert shares.sum(axis=0).max() == pytest.approx(1, abs=16 / RATE_ONE)
    check(demand.wire_bytes, speeds, plan.steps, RATE_ONE)


def test_round_robin_has_no_rates() -> None:
    plan = make_plan("rr", Demand(np.array([[0, 5000], [6000, 0]])), [GBPS] * 2)
    assert plan.discipline is Discipline.ROUND_ROBIN
    assert plan.steps.tolist() == [[0, 0], [0, 0]]


def test_the_schedules_of_this_version() -> None:
    others = ["bvn", "chronos", "dfs", "fast", "gmwd", "rr-bytes", "spreadout"]
    assert list(SCHEDULES) == ["rr", "rate", *others]
    assert all(each.source and each.complexity and each.length for each in SCHEDULES.values())


def test_nothing_to_send_has_no_rates() -> None:
    assert not rate.plan(Demand(np.zeros((3, 3), dtype=np.int64)), [GBPS] * 3).steps.any()


@st.composite
def matrices(draw: st.DrawFn) -> NDArray[np.int64]:
    """Dense, sparse, skewed and huge ones, with at least one flow."""
    hosts = draw(st.integers(2, 9))
    bits = draw(st.sampled_from([1, 8, 20, 40, 63]))
    largest = min(2**bits, LARGEST_TOTAL // (hosts * hosts))
    skewed = st.builds(lambda power: largest >> power, st.integers(0, bits))
    cell = st.one_of(st.just(0), skewed, st.integers(0, largest))
    cells = draw(st.lists(cell, min_size=hosts * hosts, max_size=hosts * hosts))
    wire = np.array(cells, dtype=np.int64).reshape(hosts, hosts)
    np.fill_diagonal(wire, 0)
    if not wire.any():
        wire[0, draw(st.integers(1, hosts - 1))] = largest
    return wire


@settings(max_examples=150, deadline=None, derandomize=True)
@given(matrices(), st.sampled_from([RATE_ONE, FEW]), st.sampled_from(SPEEDS))
def test_equal_speeds(wire: NDArray[np.int64], one: int, speed: Fraction) -> None:
    speeds = [speed] * len(wire)
    check(wire, speeds, rates_of(wire, speeds, one), one)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(matrices(), st.sampled_from([RATE_ONE, FEW]), st.data())
def test_unequal_speeds(wire: NDArray[np.int64], one: int, data: st.DataObject) -> None:
    speeds = data.draw(st.lists(st.sampled_from(SPEEDS), min_size=len(wire), max_size=len(wire)))
    check(wire, speeds, rates_of(wire, speeds, one), one)


@pytest.mark.parametrize("one", [RATE_ONE, FEW])
def test_one_byte_beside_the_largest_flow(one: int) -> None:
    wire = np.array([[0, 2**62, 1], [1, 0, 1], [0, 2**61, 0]])
    steps = rates_of(wire, [GBPS] * 3, one)
    assert (steps[0, 2], steps[1, 0]) == (1, 1)
    check(wire, [GBPS] * 3, steps, one)


def test_no_flow_is_late_by_what_a_float_cannot_hold() -> None:
    # D lambda 2^32 / M is here a whole number and 1 / M more, which a double rounds away.
    scaled = RATE_ONE * rate.slack(2, [GBPS] * 2)
    largest = 10**9 + 7
    just_above = pow(int(scaled), -1, largest)
    assert just_above * scaled % largest == 1
    wire = np.array([[0, largest], [just_above, 0]])
    check(wire, [GBPS] * 2, rates_of(wire, [GBPS] * 2, RATE_ONE), RATE_ONE)


def test_a_thousand_hosts() -> None:
    rng = np.random.default_rng(1)
    wire = np.floor(1e6 * rng.pareto(1.1, (1000, 1000))).astype(np.int64)
    np.fill_diagonal(wire, 0)
    steps = rates_of(wire, [800 * GBPS] * 1000, RATE_ONE)
    assert ((steps > 0) == (wire > 0)).all()
    assert max(steps.sum(axis=0, dtype=np.int64).max(), steps.sum(axis=1, dtype=np.int64).max()) <= RATE_ONE
    largest = max(wire.sum(axis=0).max(), wire.sum(axis=1).max())
    # In whole numbers of Python: D / R <= M / lambda.
    share = rate.slack(1000, [800 * GBPS] * 1000)
    limit = int(largest) * share.denominator
    needed = wire.astype(object) * (RATE_ONE * share.numerator)
    assert (needed <= steps.astype(object) * limit).all()


def test_the_slack_is_small() -> None:
    assert rate.slack(1000, [800 * GBPS] * 1000) > 1 - Fraction(1, 10**6)
    assert rate.slack(1000, [800 * GBPS] * 1000) < 1
    assert rate.slack(512, [100 * GBPS] + [800 * GBPS] * 511) > 1 - Fraction(1, 10**5)


@pytest.mark.parametrize(
    ("hosts", "slowest", "fastest", "one"),
    [(1000, 1, 2, 1000), (1000, 1, 1050, FEW), (2, 1, 2**32, RATE_ONE)],
    ids=["few steps", "speeds far apart", "speeds very far apart"],
)
def test_too_coarse_steps_are_refused(hosts: int, slowest: int, fastest: int, one: int) -> None:
    speeds = [Fraction(slowest)] + [Fraction(fastest)] * (hosts - 1)
    with pytest.raises(InputError) as caught:
        rate.slack(hosts, speeds, one)
    assert "\n" not in str(caught.value)
    assert f"{hosts} hosts" in str(caught.value)


def test_the_plan_refuses_too_coarse_steps() -> None:
    with pytest.raises(InputError):
        rate.plan(Demand(np.array([[0, 1], [1, 0]])), [Fraction(1), Fraction(2**32)])


@pytest.mark.parametrize("one", [1, 2, 3])
def test_a_share_of_nothing_is_refused(one: int) -> None:
    # 1 - N / Q is -2, -1/2 and 0.
    with pytest.raises(InputError):
        rate.slack(3, [GBPS] * 3, one)


def test_a_share_that_is_not_refused_is_one() -> None:
    accepted = []
    for one in range(4, 20):
        with contextlib.suppress(InputError):
            accepted.append(rate.slack(3, [GBPS] * 3, one))
    assert accepted
    assert all(0 < share < 1 for share in accepted)


def test_a_small_share_is_not_refused() -> None:
    assert 0 < rate.slack(3, [GBPS] * 3, 8) <= 1 - Fraction(3, 8)
    wire = np.array([[0, 5, 1], [7, 0, 0], [1, 1, 0]])
    check(wire, [GBPS] * 3, rates_of(wire, [GBPS] * 3, 8), 8)
