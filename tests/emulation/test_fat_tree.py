"""Three tiers in virtual time: all bytes in time, all cores at work, and links that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.scenario import Scenario
from testbed.workload.zipf import zipf
from tests.emulation.conftest import assert_all_arrived, run_each, run_once, scenario_of, write_matrix

MTU = 4096
PACKET_NS = 40.96
THREE_TIER_LATENCY_NS = 6 * 1000 + 5 * PACKET_NS
"""The bound lasts until the last packet has left its NIC: six links of 1 us, five switches that store and forward."""


def tree(demand: Path, **keys: Any) -> Scenario:
    return scenario_of(demand, topology="fat-tree", **keys)


@pytest.mark.parametrize("skew", [0.5, 1.0])
def test_small_messages_of_128_hosts(tmp_path: Path, skew: float) -> None:
    """A full tree of k = 8, some four packets a flow. Paced, it ends in time with short queues at every tier."""
    scenario = tree(write_matrix(tmp_path / "zipf.csv", zipf(128, skew, 128 * 4 * MTU, MTU, 1)))
    assert scenario.shape == {"fat_tree_k": 8}
    rr, rate = run_each((scenario, run) for run in ("rr", "rate"))
    for data in (rr, rate):
        assert_all_arrived(data, scenario)
    figures = rate.figures
    assert (figures["topology"], figures["fat_tree_k"], figures["hosts_per_leaf"]) == ("fat-tree", 8, 0)
    assert figures["rtt_ns"] == pytest.approx(12_249.6)
    assert figures["cct_ns"] <= figures["lower_bound_ns"] + THREE_TIER_LATENCY_NS + 1000
    assert figures["marks"] == figures["trims"] == figures["drops"] == figures["retransmissions"] == 0
    assert figures["hot_queue_max_bytes"] < 30 * MTU
    assert figures["fabric_queue_max_bytes"] < 10 * MTU
    assert rr.figures["hot_queue_max_bytes"] == scenario.parameters.queue_bytes
    assert rr.figures["hot_host"] == figures["hot_host"]


def test_all_cores_carry_alike(tmp_path: Path) -> None:
    """Of an even demand with whole cycles of entropy values. The fabric's queue is one between switches, of whatever tier."""
    demand = np.full((16, 16), 64 * MTU)
    np.fill_diagonal(demand, 0)
    scenario = tree(write_matrix(tmp_path / "flat.csv", demand), trace=True)
    data = run_once(scenario, "rate")
    assert data.trace is not None
    ports = scenario.wiring.ports
    carried = np.bincount(data.trace["port"], minlength=len(ports))
    into_cores = [carried[port.index] for port in ports if port.peer_node.startswith("core")]
    # 4 hosts of a pod send 12 others 64 packets each, by 4 cores; five standard deviations of a fair draw.
    assert len(into_cores) == 16
    assert sum(into_cores) == 16 * 12 * 64
    assert max(abs(count - 768) for count in into_cores) < 5 * (768 * 3 / 4) ** 0.5
    between = {port.name for port in ports[32:]}
    deepest = max(
        size
        for name, size in zip(data.ports["name"].tolist(), data.ports["queue_max_bytes"].tolist(), strict=True)
        if name in between
    )
    assert data.figures["fabric_queue_max_bytes"] == deepest > 0


def test_neighbours_need_no_upper_tier(tmp_path: Path) -> None:
    """Two links to a host at the same switch, four to one of the same pod, six to another pod; and as many back for the ACK."""
    demand = np.zeros((16, 16), dtype=int)
    for sender, receiver in ((0, 1), (4, 6), (8, 12)):
        demand[sender, receiver] = 100 * MTU
    scenario = tree(write_matrix(tmp_path / "three.csv", demand))
    data = run_once(scenario, "rr")
    assert_all_arrived(data, scenario)
    columns = (data.flows[name].tolist() for name in ("first_arrival_ns", "last_arrival_ns", "last_ack_ns"))
    for links, first, last, ack in zip((2, 4, 6), *columns, strict=True):
        assert first == pytest.approx(links * (1000 + PACKET_NS), abs=1e-3)
        assert last == pytest.approx(first + 99 * PACKET_NS, abs=1e-3)
        assert ack == pytest.approx(last + links * (1000 + 0.64), abs=0.02)


@pytest.mark.parametrize("link", ["edge1-agg2", "agg1-core1"])
def test_a_link_that_fails_is_made_good(tmp_path: Path, link: str) -> None:
    demand = np.full((11, 11), 40 * MTU)
    np.fill_diagonal(demand, 0)
    failure = {"link": link, "down_ns": 3000, "up_ns": 9000}
    scenario = tree(write_matrix(tmp_path / "flat.csv", demand), link_failure=[failure])
    data = run_once(scenario, "rr+nscc")
    assert_all_arrived(data, scenario)
    ends = set(link.split("-"))
    lossy = {port.index for port in scenario.wiring.ports if {port.node, port.peer_node} == ends}
    assert set(np.flatnonzero(data.counters["lost"]).tolist()) == lossy
    assert data.figures["retransmissions"] >= data.figures["lost"] - data.figures["acks"]
