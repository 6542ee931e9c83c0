"""What the project promises of its two schedules, on the real and the synthetic matrices."""

from __future__ import annotations

import json
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.experiment import from_mapping
from testbed.runner import WALL_FIGURES
from testbed.scenario import prepare
from tests.emulation.conftest import OPEN_LOOP, run_all, run_once, scenario_of, write_matrix

MTU = 4096
TWO_TIER_LATENCY_NS = 4000 + 3 * 40.96 + 40.96
"""Four links of 1 us, three store-and-forward switches, and the packet's own time beyond the bound's."""
OLMOE = ("c4-L0-L7", "c4-L7-L15", "github-L7-L15", "wikipedia-L0-L7")
ZIPF = ("n16-s0.25", "n16-s0.5", "n16-s1.0", "n64-s0.5")


def packets(queue_bytes: int) -> int:
    """A queue in packets, a part counted as one."""
    return -(-queue_bytes // MTU)


def check_rate(figures: dict[str, Any]) -> None:
    """Every byte, in time, and the bottleneck never idle."""
    assert figures["delivered_bytes"] == figures["expected_bytes"]
    assert figures["drops"] == 0
    assert figures["cct_ns"] <= figures["lower_bound_ns"] + TWO_TIER_LATENCY_NS + 1000
    assert figures["bottleneck_busy"] >= 0.98


def matrix(shared_data: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """File and unit of a matrix."""
    if name in OLMOE:
        return shared_data / "olmoe" / f"{name}.csv", {"unit": "tokens", "token_bytes": 7168}
    return shared_data / "zipf" / f"{name}.csv", {}


def hot_queues(file: Path, seeds: range, **keys: Any) -> list[int]:
    """Packets at the hot port for several seeds, each run checked."""
    found = run_all([scenario_of(file, seed=seed, **OPEN_LOOP, **keys) for seed in seeds], "rate")
    for data in found:
        check_rate(data.figures)
    return [packets(data.figures["hot_queue_max_bytes"]) for data in found]


@pytest.mark.parametrize("name", ["n16-s0.25", "n16-s0.5", "n16-s1.0"])
def test_rate_zipf_16(shared_data: Path, name: str) -> None:
    """At most 12 packets at the hot port, over five seeds; golden phases are no worse on average."""
    file, unit = matrix(shared_data, name)
    random = hot_queues(file, range(5), **unit)
    golden = hot_queues(file, range(1), phase="golden", **unit)  # draws nothing from the seed but the paths
    assert max(random) <= 12
    assert statistics.mean(golden) <= statistics.mean(random) + 1


def test_rate_zipf_64(shared_data: Path) -> None:
    """Median at most 14 packets, maximum 20, over five seeds."""
    file, unit = matrix(shared_data, "n64-s0.5")
    random = hot_queues(file, range(5), **unit)
    golden = hot_queues(file, range(1), phase="golden", **unit)
    assert statistics.median(random) <= 14
    assert max(random) <= 20
    assert statistics.mean(golden) <= statistics.mean(random) + 1


@pytest.mark.parametrize("name", OLMOE)
def test_rate_olmoe(shared_data: Path, name: str, seeds: int) -> None:
    """At most 30 packets at the hot port on real routing counts. Gigabytes a matrix: see --seeds."""
    file, unit = matrix(shared_data, name)
    assert max(hot_queues(file, range(seeds), **unit)) <= 30


@pytest.mark.parametrize(
    ("name", "reference_mb"), [("n16-s1.0", 89.6), ("n16-s0.5", 33.9), ("n16-s0.25", 14.1), ("n64-s0.5", 87.7)]
)
def test_rr_hot_queue_as_in_the_reference(shared_data: Path, name: str, reference_mb: float) -> None:
    """Round robin without control, unlimited buffers: the reference simulator's hot queue within 10 %."""
    file, unit = matrix(shared_data, name)
    data = run_once(scenario_of(file, **OPEN_LOOP, **unit), "rr")
    assert data.figures["delivered_bytes"] == data.figures["expected_bytes"]
    assert data.figures["hot_queue_max_bytes"] / 1e6 == pytest.approx(reference_mb, rel=0.10)
    # The rise of Figure 1: nearly nothing for a while, then most of it within the collective's first half.
    own = data.ports["toward"] == data.figures["hot_host"]
    queue = data.ports["queue_max_bytes"][own]
    assert queue[: len(queue) // 50].max() < 0.15 * queue.max()


def test_two_boots_give_the_same_bytes(shared_data: Path) -> None:
    """All but wall times; and another seed gives another result."""
    file, unit = matrix(shared_data, "n16-s0.5")
    for schedule in ("rr", "rate"):
        first, second = (run_once(scenario_of(file, seed=3, trace=True, **unit), schedule) for _ in range(2))
        for figures in (first.figures, second.figures):
            for name in WALL_FIGURES:
                del figures[name]
        assert json.dumps(first.figures) == json.dumps(second.figures)
        for one, other in ((first.flows, second.flows), (first.ports, second.ports), (first.trace, second.trace)):
            assert one is not None
            assert other is not None
            assert all(np.array_equal(one[name], other[name], equal_nan=one[name].dtype.kind == "f") for name in one)
    assert run_once(scenario_of(file, seed=4, **unit), "rate").figures["cct_ns"] != first.figures["cct_ns"]


def test_odd_shapes_run(tmp_path: Path) -> None:
    """A part-full last leaf, hosts that neither send nor receive, unlike packet lengths, two phases."""
    counts = np.random.default_rng(1).integers(0, 60_000, size=(10, 10))
    counts[3, :] = 0
    counts[:, 7] = 0
    file = write_matrix(tmp_path / "odd.csv", counts)
    transposed = write_matrix(tmp_path / "combine.csv", counts.T)
    for schedule in ("rr", "rate"):
        figures = run_once(scenario_of(file, hosts_per_leaf=4, unit="bytes"), schedule).figures
        assert figures["delivered_bytes"] == figures["expected_bytes"]
        assert figures["receiver_done_ns"][7] is None
    empty = write_matrix(tmp_path / "empty.csv", 0 * counts)
    several = prepare(
        from_mapping(
            {
                "demand": [
                    {"name": "dispatch", "file": str(file), "unit": "bytes"},
                    {"name": "nothing", "file": str(empty), "after": ["dispatch"]},
                    {"name": "combine", "file": str(transposed), "unit": "bytes", "after": ["nothing"]},
                ]
            }
        )
    )
    figures = run_once(several, "rate").figures
    assert figures["delivered_bytes"] == figures["expected_bytes"] == several.expected_bytes
    dispatch, nothing, combine = figures["phase_cct_ns"]
    assert nothing == 0
    assert figures["cct_ns"] == pytest.approx(dispatch + combine)
    alone = run_once(scenario_of(transposed, unit="bytes"), "rate").figures
    assert combine == alone["cct_ns"]  # nothing is carried over from one phase to the next


def test_unequal_ports(tmp_path: Path) -> None:
    """A slow receiver sets the bound; no port is oversubscribed, and the end is in time."""
    counts = np.full((8, 8), 100 * MTU)
    np.fill_diagonal(counts, 0)
    scenario = scenario_of(
        write_matrix(tmp_path / "flat.csv", counts), link_gbps_of={"h3": 200, "h6": 400}, **OPEN_LOOP
    )
    figures = run_once(scenario, "rate").figures
    assert figures["lower_bound_ns"] == pytest.approx(7 * 100 * MTU * 8 / 200, abs=0.01)
    assert figures["cct_ns"] <= figures["lower_bound_ns"] + TWO_TIER_LATENCY_NS + 1000 + 4 * 163.84
    assert packets(figures["hot_queue_max_bytes"]) <= 12


def test_finite_queues_drop_and_say_so(tmp_path: Path) -> None:
    """Without trimming and transport a limit of ten packets is kept, and what it costs is counted."""
    counts = np.zeros((4, 4), dtype=int)
    counts[1:, 0] = 200 * MTU
    keys = {"loss_recovery": "none", "trimming": False, "queue_bytes": 10 * MTU}
    data = run_once(scenario_of(write_matrix(tmp_path / "incast.csv", counts), **keys), "rr")
    assert data.figures["hot_queue_max_bytes"] == 10 * MTU
    assert data.figures["drops"] > 0
    assert data.figures["cct_ns"] is None
    assert data.figures["inflation"] is None
    lost = data.figures["drops"] * MTU
    assert data.figures["delivered_bytes"] == data.figures["expected_bytes"] - lost


@pytest.mark.parametrize("keys", [OPEN_LOOP, {}, {"links": "pairs"}])
def test_every_hop_is_on_time_at_the_default_dilation(tmp_path: Path, keys: dict[str, Any]) -> None:
    """A packet is at the next port when the one before it said: nothing that the engine does may move the clock."""
    counts = np.full((4, 4), 300 * MTU)
    np.fill_diagonal(counts, 0)
    scenario = scenario_of(write_matrix(tmp_path / "flat.csv", counts), hosts_per_leaf=2, trace=True, **keys)
    for schedule in ("rr", "rate"):
        data = run_once(scenario, schedule)  # refuses to report late packets, too
        assert data.trace is not None
        hops: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        names = ("source", "destination", "psn", "kernel_arrival_ns", "kernel_far_end_ns")
        for source, destination, psn, arrival, far_end in zip(*(data.trace[n].tolist() for n in names), strict=True):
            hops.setdefault((source, destination, psn), []).append((arrival, far_end))
        assert len(hops) == 12 * 300
        for steps in hops.values():
            assert all(after[0] == before[1] for before, after in pairwise(sorted(steps)))
