"""Plans are made from the estimate, and what is sent is the demand, to the byte."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from controller.demand import HEADER_BYTES, Demand
from controller.errors import InputError
from controller.schedule import make_plan
from controller.schedule.plan import Discipline, Plan
from testbed.engine import FLOW_FIELDS, STAGE_FIELDS
from testbed.estimate import estimate_of, for_traffic
from testbed.experiment import from_mapping
from testbed.job import prepare_job
from testbed.phases import Phase, phases_of
from testbed.scenario import Scenario, prepare
from testbed.workload.zipf import zipf

MTU = 4096
NOTHING = Fraction(0)


def random_demand(hosts: int, gpus: int = 1) -> Demand:
    sizes = np.random.default_rng(hosts).integers(100, 300_000, (hosts, hosts))
    servers = np.arange(hosts) // gpus
    sizes[servers[:, None] == servers[None, :]] = 0
    last = sizes % MTU
    return Demand(sizes + np.where((last > 0) & (last < HEADER_BYTES), HEADER_BYTES - last, 0))


def estimate(demand: Demand, *, stale: float = 0, error: float = 0, seed: int = 1, **keys: Any) -> NDArray[np.int64]:
    given = {"stale": Fraction(str(stale)), "error": Fraction(str(error)), "seed": seed, **keys}
    return estimate_of(demand, **given).wire_bytes


def test_without_a_share_it_is_the_demand_itself() -> None:
    demand = random_demand(5)
    assert estimate_of(demand, stale=NOTHING, error=NOTHING, seed=1) is demand


def test_each_flow_is_off_by_its_share_up_or_down() -> None:
    demand = random_demand(12)
    off = estimate(demand, error=0.2) - demand.wire_bytes
    sent = demand.wire_bytes > 0
    assert not off[~sent].any()
    # To whole bytes; a last packet is filled up to its header.
    assert (np.abs(np.abs(off[sent]) - 0.2 * demand.wire_bytes[sent]) <= HEADER_BYTES).all()
    assert 0.3 < (off[sent] > 0).mean() < 0.7


def test_it_is_the_seeds_own_and_each_phases() -> None:
    demand = random_demand(6)
    shares: list[dict[str, Any]] = [{"stale": 0.5}, {"error": 0.5}]
    for keys in shares:
        first = estimate(demand, **keys)
        assert np.array_equal(first, estimate(demand, **keys))
        assert not np.array_equal(first, estimate(demand, **keys, seed=2))
        assert not np.array_equal(first, estimate(demand, **keys, phase=1))


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_an_older_demand_has_other_favourites(gpus: int) -> None:
    """Wholly out of date it is the same demand with all servers in other places; by half it is half of each."""
    demand = random_demand(12, gpus)
    older = estimate(demand, stale=1, gpus_per_server=gpus)
    assert sorted(older.ravel()) == sorted(demand.wire_bytes.ravel())
    # All amounts differ, so that each host's row says whose place it had.
    rows = [sorted(row) for row in demand.wire_bytes.tolist()]
    places = [rows.index(sorted(row)) for row in older.tolist()]
    assert np.array_equal(older, demand.wire_bytes[np.ix_(places, places)])
    assert all(place // gpus != host // gpus and place % gpus == host % gpus for host, place in enumerate(places))
    half = estimate(demand, stale=0.5, gpus_per_server=gpus)
    assert (np.abs(half - (older + demand.wire_bytes) / 2) <= HEADER_BYTES).all()


def test_hosts_of_a_server_that_is_not_full_keep_their_places() -> None:
    demand = random_demand(7, 3)
    older = estimate(demand, stale=1, gpus_per_server=3)
    assert older[6, 6] == 0
    assert sorted(older[6].tolist()) == sorted(demand.wire_bytes[6].tolist())


def test_no_packet_is_shorter_than_its_header() -> None:
    demand = random_demand(20)
    for error in (0.03, 0.5, 0.98):
        last = estimate(demand, error=error) % MTU
        assert ((last == 0) | (last >= HEADER_BYTES)).all()


def test_what_a_plan_does_not_know_gets_the_least_that_it_gives() -> None:
    demand = Demand(np.array([[0, 100, 100], [100, 0, 100], [100, 0, 0]]))
    steps = np.array([[0, 70, 0], [0, 0, 0], [50, 0, 0]], dtype=np.uint32)
    plan = for_traffic(Plan(Discipline.PACED, steps), demand)
    assert plan.steps.tolist() == [[0, 70, 70], [50, 0, 50], [50, 0, 0]]
    nothing = for_traffic(Plan(Discipline.PACED, np.zeros_like(steps)), demand)
    assert nothing.steps[0].tolist() == [0, 2**32 // 3, 2**32 // 3]
    turns = Plan(Discipline.DEFICIT, np.zeros_like(steps), quanta_bytes=steps)
    known = for_traffic(turns, demand).quanta_bytes
    assert known is not None
    assert known.tolist() == plan.steps.tolist()


def scenario(folder: Path, **keys: Any) -> Scenario:
    np.save(folder / "m.npy", zipf(8, 1.0, 400_000, MTU, 3))
    table = {"file": str(folder / "m.npy"), "unit": "wire-bytes"}
    return prepare(from_mapping({"demand": [table], **keys}))


def planned(prepared: Scenario, schedule: str) -> Phase:
    (phase,) = phases_of(prepared, prepared.experiment.run_of(schedule))
    return phase


def test_rates_are_those_of_the_estimate(tmp_path: Path) -> None:
    prepared = scenario(tmp_path, estimate_error=0.5, seed=7)
    (estimated,) = prepared.estimates
    phase = planned(prepared, "rate")
    assert phase.demand is prepared.demands[0]
    assert not np.array_equal(estimated.wire_bytes, phase.demand.wire_bytes)
    expected = make_plan("rate", estimated, prepared.speeds_bps).steps
    assert np.array_equal(phase.plan.steps, expected)
    assert not np.array_equal(expected, make_plan("rate", phase.demand, prepared.speeds_bps).steps)
    assert prepared.bottlenecks == scenario(tmp_path, seed=7).bottlenecks  # the lower bound is the demand's


def test_a_flow_that_comes_to_nothing_is_sent(tmp_path: Path) -> None:
    prepared = scenario(tmp_path, estimate_error=1, seed=7)
    unknown = (prepared.estimates[0].wire_bytes == 0) & (prepared.demands[0].wire_bytes > 0)
    assert unknown.any()
    steps = planned(prepared, "rate").plan.steps
    for source, destination in np.argwhere(unknown):
        known = steps[source][(prepared.estimates[0].wire_bytes[source] > 0)]
        if len(known):
            assert steps[source, destination] == known.min()
    assert (steps[unknown] > 0).all()


def test_servers_move_what_they_have_and_plan_what_they_know(tmp_path: Path) -> None:
    servers = {"gpus_per_server": 2, "seed": 3}
    exact, wrong = scenario(tmp_path, **servers), scenario(tmp_path, estimate_stale=0.5, **servers)
    ours, theirs = planned(exact, "fast"), planned(wrong, "fast")
    assert np.array_equal(ours.demand.wire_bytes, theirs.demand.wire_bytes)
    assert ours.plan.inner is not None
    assert theirs.plan.inner is not None
    for own, other in zip(ours.plan.inner, theirs.plan.inner, strict=True):
        assert np.array_equal(own, other)
    assert ours.plan.stages.tolist() != theirs.plan.stages.tolist()


def jobs(folder: Path, **keys: Any) -> Iterator[tuple[str, Scenario, dict[str, NDArray[np.void]]]]:
    """What each schedule has its machine do."""
    runs = ["rr", "rr-bytes:demand", "rate", "bvn", "bvn:clock", "chronos", "dfs", "fast:free", "gmwd", "spreadout"]
    prepared = scenario(folder, schedule=runs, **keys)
    for run in prepared.experiment.runs:
        work = folder / run.name
        work.mkdir()
        prepare_job(prepared, run, work)
        tables = {"flows": FLOW_FIELDS, "stages": STAGE_FIELDS}
        yield run.name, prepared, {name: np.fromfile(work / f"{name}-0.bin", dtype) for name, dtype in tables.items()}


@pytest.mark.parametrize("keys", [{"estimate_error": 0.5}, {"estimate_stale": 0.5}, {"estimate_error": 1}], ids=str)
def test_every_byte_of_the_demand_is_sent_and_no_other(tmp_path: Path, keys: dict[str, float]) -> None:
    pytest.importorskip(
        "scipy", reason="needs scipy (extra schedules): schedules of stages find their matchings with it"
    )
    for name, prepared, tables in jobs(tmp_path, **keys):
        flows, stages = tables["flows"], tables["stages"]
        sent = np.zeros((8, 8), dtype=np.int64)
        sent[flows["source"], flows["destination"]] = (flows["packets"].astype(np.int64) - 1) * MTU + flows[
            "last_bytes"
        ]
        assert np.array_equal(sent, prepared.demands[0].wire_bytes), name
        if name == "rate":
            assert (flows["steps"] > 0).all()
        if name == "rr-bytes:demand":
            assert (flows["quantum_bytes"] > 0).all()
        packets = {(int(flow["source"]), int(flow["destination"])): int(flow["packets"]) for flow in flows}
        # A stage says up to which packet of its flow it goes; what is left goes after all of them.
        for stage in stages:
            assert 0 < stage["packets"] <= packets[int(stage["source"]), int(stage["destination"])], name
        if len(stages):
            assert sorted(set(stages["number"].tolist())) == list(range(int(stages["number"].max()) + 1))


@pytest.mark.parametrize("key", ["estimate_error", "estimate_stale"])
@pytest.mark.parametrize("value", [-0.1, 1.5, "much"])
def test_a_share_that_is_none(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(InputError, match=f"^{key} is [^\n]*(0 to 1|a number)[^\n]*$"):
        scenario(tmp_path, **{key: value})


def test_a_note_says_what_plans_know(tmp_path: Path) -> None:
    assert not any("estimate" in note for note in scenario(tmp_path).notes)
    (note,) = (note for note in scenario(tmp_path, estimate_error=0.2).notes if "estimate" in note)
    assert "0 % of it out of date and each flow 20 % off" in note
