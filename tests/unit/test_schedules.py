"""Schedules of stages: what they send, in how many stages, and how long those last."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from controller.demand import Demand
from controller.errors import CannotRunError, InputError
from controller.schedule import SCHEDULES, check_schedule, has_barrier, make_plan
from controller.schedule.chronos import wavefront
from controller.schedule.decomposition import decompose, padding, stages_of
from controller.schedule.dfs import balanced
from controller.schedule.matching import MATCHINGS
from controller.schedule.plan import (
    Discipline,
    Plan,
    Setting,
    Stages,
    check_plan,
    durations_s,
    payload_of,
    staged,
)
from controller.schedule.servers import moves
from testbed.workload.zipf import zipf

pytest.importorskip("scipy", reason="schedules of stages find their matchings with scipy")

MTU = 4096
GBPS = Fraction(10**9)
STAGED = [name for name, schedule in SCHEDULES.items() if schedule.staged]


def speeds(hosts: int) -> list[Fraction]:
    return [800 * GBPS] * hosts


@st.composite
def matrices(draw: st.DrawFn, most: int = 60) -> NDArray[np.int64]:
    """Whole numbers with an empty diagonal; some rows and columns may be empty."""
    hosts = draw(st.integers(2, 7))
    entries = draw(st.lists(st.integers(0, most) | st.just(0), min_size=hosts**2, max_size=hosts**2))
    matrix = np.array(entries, dtype=np.int64).reshape(hosts, hosts)
    np.fill_diagonal(matrix, 0)
    return matrix


def bytes_of(packets: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """With a last packet of its own length a flow."""
    short = np.random.default_rng(seed).integers(0, MTU - 64, size=packets.shape)
    return np.where(packets > 0, packets * MTU - short, 0)


def largest(matrix: NDArray[np.int64]) -> int:
    return int(max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max()))


@settings(max_examples=60, deadline=None)
@given(matrix=matrices(), matching=st.sampled_from(sorted(MATCHINGS)))
def test_a_decomposition_is_exact_in_integers(matrix: NDArray[np.int64], matching: str) -> None:
    """Permutations whose weights add up to the largest sum, and which cover the padded matrix, and no more."""
    padded = matrix + padding(matrix)
    most = largest(matrix)
    assert (padded.sum(axis=0) == most).all()
    assert (padded.sum(axis=1) == most).all()
    assert (padded >= matrix).all()
    covered, total, count = np.zeros_like(matrix), 0, 0
    for columns, weight in decompose(padded, matching):
        assert sorted(columns) == list(range(len(matrix)))
        assert weight > 0
        covered[np.arange(len(matrix)), columns] += weight
        total, count = total + weight, count + 1
    assert np.array_equal(covered, padded)
    assert total == most
    assert count <= len(matrix) ** 2 - 2 * len(matrix) + 2


@settings(max_examples=60, deadline=None)
@given(matrix=matrices(), matching=st.sampled_from(sorted(MATCHINGS)))
def test_stages_last_as_long_as_the_largest_sum(matrix: NDArray[np.int64], matching: str) -> None:
    sent, length = np.zeros_like(matrix), 0
    for stage in stages_of(matrix, matching):
        assert len({i for i, _, _ in stage}) == len({j for _, j, _ in stage}) == len(stage)
        for i, j, amount in stage:
            sent[i, j] += amount
        length += max(amount for *_, amount in stage)
    assert np.array_equal(sent, matrix)
    assert length == largest(matrix)


@settings(max_examples=40, deadline=None)
@given(matrix=matrices(), seed=st.integers(0, 99), name=st.sampled_from(STAGED), gpus=st.sampled_from([1, 2, 3]))
def test_every_schedule_sends_the_demand_in_matchings(
    matrix: NDArray[np.int64], seed: int, name: str, gpus: int
) -> None:
    """Said again beside check_plan, which make_plan has called: bytes, stages and bounds by plain loops."""
    hosts = len(matrix) // gpus * gpus
    if hosts < 2:
        return
    wire = bytes_of(matrix[:hosts, :hosts], seed)
    servers = np.arange(hosts) // gpus
    wire[servers[:, None] == servers[None, :]] = 0
    demand = Demand(wire)
    plan = make_plan(name, demand, speeds(hosts), gpus_per_server=gpus)
    carried = plan.carries or demand
    assert payload_of(carried.wire_bytes, MTU).sum() == payload_of(wire, MTU).sum()
    sent = np.zeros_like(wire)
    for number in range(plan.stage_count):
        stage = plan.stages[plan.stages["stage"] == number]
        assert len(stage) == len(set(stage["source"].tolist())) == len(set(stage["destination"].tolist())) > 0
        for row in stage:
            sent[row["source"], row["destination"]] += row["bytes"]
    assert np.array_equal(sent, carried.wire_bytes)
    if SCHEDULES[name].exact and gpus == 1:
        assert sum(-(-plan.stage_bytes // MTU)) == largest(-(-wire // MTU))


@settings(max_examples=60, deadline=None)
@given(matrix=matrices(), name=st.sampled_from(["fast", "dfs"]))
def test_what_servers_move_makes_what_the_network_carries(matrix: NDArray[np.int64], name: str) -> None:
    """Of two GPUs a server: by what is moved before, each GPU has what it sends; after, each what was for it."""
    hosts = len(matrix) // 2 * 2
    wire = bytes_of(matrix[:hosts, :hosts], 1)
    servers = np.arange(hosts) // 2
    wire[servers[:, None] == servers[None, :]] = 0
    plan = make_plan(name, Demand(wire), speeds(hosts), gpus_per_server=2)
    assert plan.inner
    assert plan.carries
    before, after = (payload_of(moved, MTU) for moved in plan.inner)
    meant, carried = payload_of(wire, MTU), payload_of(plan.carries.wire_bytes, MTU)
    assert not before[servers[:, None] != servers[None, :]].any()
    assert not after[servers[:, None] != servers[None, :]].any()
    assert np.array_equal(meant.sum(axis=1) - before.sum(axis=1) + before.sum(axis=0), carried.sum(axis=1))
    assert np.array_equal(carried.sum(axis=0) - after.sum(axis=1) + after.sum(axis=0), meant.sum(axis=0))


@settings(max_examples=60, deadline=None)
@given(block=matrices(), room=st.integers(0, 5))
def test_a_block_is_balanced(block: NDArray[np.int64], room: int) -> None:
    most = -(-int(block.sum()) // len(block)) + room
    middle, even = balanced(block, most)
    assert np.array_equal(middle.sum(axis=0), block.sum(axis=0))
    assert np.array_equal(even.sum(axis=1), middle.sum(axis=1))
    assert largest(even) <= most
    assert even.min() >= 0
    assert even.sum() == block.sum()


@given(
    pairs=st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=5),
    shift=st.integers(0, 2),
)
def test_moves_bring_what_is_wanted(pairs: list[tuple[int, int, int]], shift: int) -> None:
    has = np.array(pairs, dtype=np.int64)
    wants = np.roll(has, shift, axis=1)
    moved = moves(has, wants)
    assert np.array_equal(moved.sum(axis=0) - moved.sum(axis=1), (wants - has).sum(axis=0))
    assert not moved.diagonal().any()


def test_bottleneck_needs_a_sixth_of_the_stages() -> None:
    """N = 64, Zipf s = 0.5, 32,768 packets a row (facts: 341 against 3,791)."""
    demand = Demand(zipf(64, 0.5, 32768 * MTU, MTU, 1))
    bottleneck, whichever = (make_plan(f"bvn:{how}", demand, speeds(64)).stage_count for how in ("bottleneck", "any"))
    assert 6 * bottleneck <= whichever


def test_a_wavefront_is_maximal_and_prefers_early_diagonals() -> None:
    """The sweep by hand: one entry at a time, by i + j and then by row."""
    rng = np.random.default_rng(3)
    for _ in range(50):
        requests = rng.random((9, 9)) < rng.random()
        rows: set[int] = set()
        columns: set[int] = set()
        expected = [-1] * 9
        for i, j in sorted(np.argwhere(requests).tolist(), key=lambda at: (at[0] + at[1], at[0])):
            if i not in rows and j not in columns:
                rows.add(i)
                columns.add(j)
                expected[i] = j
        assert wavefront(requests).tolist() == expected


def test_chronos_merges_planes() -> None:
    """3 packets in both directions: bits 1 and 2 have the same matching, which is one stage of 3."""
    plan = make_plan("chronos", Demand(np.array([[0, 3 * MTU], [3 * MTU, 0]])), speeds(2))
    assert plan.stages.tolist() == [(0, 0, 1, 3 * MTU), (0, 1, 0, 3 * MTU)]


def test_gmwd_takes_the_heaviest_matching_whole() -> None:
    wire = np.array([[0, 900, 100], [100, 0, 900], [900, 100, 0]])
    plan = make_plan("gmwd", Demand(wire), speeds(3))
    assert plan.stage_bytes.tolist() == [900, 100]


def test_spreadout_shifts() -> None:
    wire = np.array([[0, 100, 200], [300, 0, 400], [500, 600, 0]])
    plan = make_plan("spreadout", Demand(wire), speeds(3))
    assert plan.stages.tolist() == [
        (0, 0, 1, 100),
        (0, 1, 2, 400),
        (0, 2, 0, 500),
        (1, 0, 2, 200),
        (1, 1, 0, 300),
        (1, 2, 1, 600),
    ]
    assert plan.length_bytes == 1100


def test_same_index_sends() -> None:
    """FAST: GPU g of a server sends to GPU g of another, even parts; four GPUs on two servers, all for one of them."""
    wire = np.zeros((4, 4), dtype=np.int64)
    wire[0, 3] = 2 * MTU
    plan = make_plan("fast", Demand(wire), speeds(4), gpus_per_server=2)
    assert plan.carries is not None
    assert plan.inner is not None
    assert plan.carries.wire_bytes.tolist() == [[0, 0, MTU, 0], [0, 0, 0, MTU], [0, 0, 0, 0], [0, 0, 0, 0]]
    before, after = (np.argwhere(moved).tolist() for moved in plan.inner)
    assert (before, after) == ([[0, 1]], [[2, 3]])
    assert plan.stage_count == 1


def test_durations_are_those_of_the_slowest_pair() -> None:
    plan = staged(3, [[(0, 1, 1000), (1, 2, 2000)], [(2, 0, 500)]])
    assert durations_s(plan, [8 * GBPS, 16 * GBPS, 4 * GBPS]) == [Fraction(4, 10**6), Fraction(1, 10**6)]


def test_modes_and_options() -> None:
    demand = Demand(np.array([[0, MTU], [MTU, 0]]))
    assert make_plan("bvn", demand, speeds(2)).mode is Stages.BARRIER
    assert make_plan("bvn", demand, speeds(2), stages="free").mode is Stages.FREE
    assert make_plan("bvn:any:clock", demand, speeds(2), stages="free").mode is Stages.CLOCK
    assert has_barrier("bvn:any", "barrier")
    assert not has_barrier("bvn:clock", "barrier")
    assert not has_barrier("rate", "barrier")
    assert has_barrier("bvn:barrier", "clock")


def test_a_margin_slows_all_flows() -> None:
    demand = Demand(np.array([[0, 5 * MTU], [3 * MTU, 0]]))
    full, less = (make_plan(name, demand, speeds(2)) for name in ("rate", "rate:0.98"))
    assert less.steps[0, 1] == pytest.approx(0.98 * full.steps[0, 1], rel=1e-6)
    assert np.array_equal(full.steps, make_plan("rate:1", demand, speeds(2)).steps)


def test_turns_in_proportion() -> None:
    wire = np.array([[0, 300 * MTU, 100 * MTU], [MTU, 0, 0], [10**6 * MTU, 64, 0]])
    plan = make_plan("rr-bytes:demand", Demand(wire), speeds(3))
    assert plan.discipline is Discipline.DEFICIT
    assert plan.quanta_bytes is not None
    assert plan.quanta_bytes.tolist() == [[0, 6144, 2048], [4096, 0, 0], [8192, 64, 0]]
    given_bytes = make_plan("rr-bytes:9000", Demand(wire), speeds(3)).quanta_bytes
    assert given_bytes is not None
    assert np.unique(given_bytes).tolist() == [0, 9000]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rate:2", "rate:2: give the share of R that is used, 0.01 to 1"),
        ("rate:0.1x", "schedule rate has no option '0.1x': use 1, 0.98, or a number"),
        ("rate:1/3", "schedule rate has no option '1/3'"),
        ("rate:1/../../evil", "schedule rate has no option '1/../../evil'"),
        ("rr-bytes:1²", "schedule rr-bytes has no option '1²'"),
        (f"rr-bytes:{'0' * 5000}64", "schedule rr-bytes has no option '000"),
        (f"rate:0.{'9' * 5000}", "schedule rate has no option '0.99"),
        ("rr-bytes:1", "rr-bytes:1: give whole bytes a turn, 64 to"),
        ("rr:1", "schedule rr has no option '1': it has none"),
        ("bvn:0.5", "schedule bvn has no option '0.5': use bottleneck, any, weight, barrier, clock, free"),
        ("none", "schedule 'none' is not known: use rr or rate or"),
    ],
)
def test_what_cannot_be_planned_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        make_plan(text, Demand(np.array([[0, MTU], [MTU, 0]])), speeds(2))
    assert reason in str(caught.value)


OF_ONES_OWN = """
from dataclasses import replace
import numpy as np
from controller.demand import Demand
from controller.schedule.plan import STAGE, Discipline, Plan, Schedule, staged

def sent():
    return staged(2, [[(0, 1, 8192), (1, 0, 64)]])

def stages(*rows, dtype=STAGE):
    return replace(staged(2, []), stages=np.array(list(rows), dtype=dtype))

def words(value, dtype=np.uint32, hosts=2):
    return np.full((hosts, hosts), value, dtype=dtype)

def plan(demand, setting):
    {body}

SCHEDULE = Schedule(name="own", source="a test", complexity="", length="", plan=plan)
"""
NO_PLANS = {
    "demand.wire_bytes[:] = 0": "read-only",
    "demand.wire_bytes.setflags(write=True); demand.wire_bytes[:] = 0; return staged(2, [])": "another amount",
    "return Plan(7, words(1))": "7 is no Discipline",
    "return Plan(Discipline.PACED, words(0))": "steps are 0 for a flow that is sent",
    "return Plan(Discipline.PACED, words(0.5, float))": "steps are no array of 2 x 2 uint32",
    "return Plan(Discipline.PACED, words(1, hosts=3))": "steps are no array of 2 x 2 uint32",
    "return Plan(Discipline.DEFICIT, words(0))": "quanta_bytes are no array of 2 x 2 uint32",
    "return Plan(Discipline.DEFICIT, words(0), quanta_bytes=words(0))": "quanta_bytes are 0 for a flow that is sent",
    "return stages((0, 0, 1, 8192), (2, 1, 0, 64))": "stages do not count from 0",
    "return stages((1, 0, 1, 8192), (2, 1, 0, 64))": "stages do not count from 0",
    "return stages((-1, 0, 1, 8192), (0, 1, 0, 64))": "stages do not count from 0",
    "return stages((0, 0, 1, 8192), (0, 1, -2, 64))": "a destination is none of 2 hosts",
    "return stages((0, 0, 1, 8192), (0, 2, 0, 64))": "a source is none of 2 hosts",
    "return stages((0, 0, 1, 1000), (0, 1, 0, 64), (1, 0, 1, 7192))": "not its flow's last is no whole packets",
    "return replace(stages(), stages=np.zeros(2))": "stages are no array of STAGE",
    "return replace(sent(), steps=None)": "steps are no array of 2 x 2 uint32",
    "return replace(sent(), quanta_bytes=words(1, hosts=3))": "quanta_bytes are no array of 2 x 2 uint32",
    "return Plan(Discipline.DEFICIT, words(0), quanta_bytes=words(2**32 - 1))": "quanta_bytes are above 1073741824",
    "return replace(sent(), carries=5)": "carries is no Demand",
    "return Plan(Discipline.PACED, words(1), carries=Demand(demand.wire_bytes[:1, :1]))": "is no array of 2 x 2 int64",
    "return replace(sent(), carries=Demand(-demand.wire_bytes))": "carries.wire_bytes is negative",
    "return replace(sent(), carries=Demand(demand.wire_bytes[::-1].copy()))": "carries sends from a host to itself",
    "return replace(sent(), carries=Demand(demand.wire_bytes.T))": "its servers send another amount than the demand",
    "return replace(sent(), inner=5)": "inner is no pair of arrays",
    "return replace(sent(), inner=(5, 5))": "inner is no array of 2 x 2 int64",
    "return replace(sent(), inner=(demand.wire_bytes, demand.wire_bytes))": "inner moves from one server to another",
}


@pytest.mark.parametrize("body", NO_PLANS)
def test_a_file_whose_plan_is_none_is_one_line_that_names_it(tmp_path: Path, body: str) -> None:
    file = tmp_path / "own.py"
    file.write_text(OF_ONES_OWN.replace("{body}", body))
    demand = Demand(np.array([[0, 2 * MTU], [64, 0]]))
    with pytest.raises(InputError) as caught:
        make_plan(str(file), demand, speeds(2))
    assert NO_PLANS[body] in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert demand.wire_bytes.tolist() == [[0, 2 * MTU], [64, 0]]


def test_a_file_s_whole_plan_is_taken(tmp_path: Path) -> None:
    """What the wrong ones above are made of."""
    (tmp_path / "own.py").write_text(OF_ONES_OWN.replace("{body}", "return replace(sent(), carries=demand)"))
    plan = make_plan(str(tmp_path / "own.py"), Demand(np.array([[0, 2 * MTU], [64, 0]])), speeds(2))
    assert plan.stages.tolist() == [(0, 0, 1, 2 * MTU), (0, 1, 0, 64)]


def test_options_of_a_file_are_no_paths(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OF_ONES_OWN.replace("{body}", "pass"))
    with pytest.raises(InputError, match="an option is empty or has a slash"):
        check_schedule("own.py:a/../../b", str(tmp_path))


def test_servers_must_be_full() -> None:
    for name in ("fast", "dfs"):
        with pytest.raises(InputError, match="3 hosts are no whole number of servers of 2"):
            make_plan(name, Demand(np.ones((3, 3), dtype=np.int64)), speeds(3), gpus_per_server=2)


WRONG: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "not in order": (lambda plan: replace(plan, stages=plan.stages[::-1]), "not in order"),
    "two from one": (lambda plan: joined_stages(plan), "no matching: a source occurs in it twice"),
    "too little": (lambda plan: replace(plan, stages=plan.stages[:-1]), "send another amount"),
    "too long": (lambda plan: one_a_stage(plan), "its stages last 4 packets, the bound is 2"),
}


def joined_stages(plan: Plan) -> Plan:
    stages = plan.stages.copy()
    stages["stage"] = 0
    return replace(plan, stages=stages)


def one_a_stage(plan: Plan) -> Plan:
    stages = plan.stages.copy()
    stages["stage"] = np.arange(len(stages))
    return replace(plan, stages=stages)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_plan_is_found(case: str) -> None:
    wrong, reason = WRONG[case]
    demand = Demand(np.array([[0, MTU, MTU], [MTU, 0, 0], [0, MTU, 0]]))
    plan = make_plan("bvn", demand, speeds(3))
    with pytest.raises(ValueError, match=reason):
        check_plan(SCHEDULES["bvn"], wrong(plan), demand, Setting(tuple(speeds(3))))


def test_without_scipy_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("scipy"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(CannotRunError, match=r"scipy is missing.*incastfree\[schedules\]"):
        make_plan("bvn", Demand(np.array([[0, MTU], [MTU, 0]])), speeds(2))
    make_plan("rate", Demand(np.array([[0, MTU], [MTU, 0]])), speeds(2))


IMPORTS = "from controller.schedule.plan import Schedule, staged"
BROKEN = {
    "not Python": ("def plan(:\n", "line 1: not valid Python"),
    "no schedule": ("plan = 1\n", "must define SCHEDULE"),
    "no plan": (
        f"{IMPORTS}\nSCHEDULE = Schedule('x', '-', '-', '-', lambda demand, setting: None)\n",
        "a NoneType is no Plan",
    ),
    "an error while planning": (
        f"{IMPORTS}\nSCHEDULE = Schedule('x', '-', '-', '-', lambda demand, setting: [][1])\n",
        "line 2: made no plan (IndexError: list index out of range): correct it",
    ),
    "another amount": (
        f"{IMPORTS}\nSCHEDULE = Schedule('x', '-', '-', '-', lambda demand, setting: staged(2, [[(0, 1, 5)]]))\n",
        "x: the stages send another amount than the demand",
    ),
    "a name that is none": (f"{IMPORTS}\nSCHEDULE = Schedule(1, '-', '-', '-', print)\n", "SCHEDULE.name is no text"),
    "options that are none": (
        f"{IMPORTS}\nSCHEDULE = Schedule('x', '-', '-', '-', print, options=None)\n",
        "SCHEDULE.options is no tuple of texts",
    ),
    "options that are one text": (
        f"{IMPORTS}\nSCHEDULE = Schedule('x', '-', '-', '-', print, options=('any'))\n",
        "SCHEDULE.options is no tuple of texts",
    ),
    "an error": ("x = 1\ny = x / 0\n", "line 2: cannot be imported (ZeroDivisionError: division by zero)"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_of_the_users_that_is_none(tmp_path: Path, case: str) -> None:
    source, reason = BROKEN[case]
    file = tmp_path / "mine.py"
    file.write_text(source)
    with pytest.raises(InputError) as caught:
        make_plan(check_schedule("mine.py", str(tmp_path)), Demand(np.array([[0, MTU], [MTU, 0]])), speeds(2))
    line = str(caught.value)
    assert reason in line
    assert str(file) in line
    assert "\n" not in line
