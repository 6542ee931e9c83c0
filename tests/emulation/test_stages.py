"""Stages in closed loops: everything arrives, whatever is lost, and stages begin when they may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.scenario import Scenario
from tests.emulation.conftest import assert_all_arrived, run_each, run_once, scenario_of, write_matrix

pytest.importorskip("scipy", reason="schedules of stages find their matchings with scipy")

MTU = 4096


def demand(hosts: int, packets: int) -> Any:
    counts = np.random.default_rng(2).integers(1, packets, size=(hosts, hosts)) * MTU
    counts += np.random.default_rng(3).integers(64, MTU, size=(hosts, hosts))
    np.fill_diagonal(counts, 0)
    return counts


def scenario(folder: Path, **keys: Any) -> Scenario:
    return scenario_of(write_matrix(folder / "demand.csv", demand(8, 60)), hosts_per_leaf=4, **keys)


@pytest.mark.parametrize(
    "keys", [{"loss_data": 0.02, "loss_ack": 0.02}, {"queue_bytes": 4 * MTU}], ids=["lost", "trimmed"]
)
def test_nothing_is_lost_for_good(tmp_path: Path, keys: dict[str, Any]) -> None:
    """Whatever becomes of a stage's packets: barriers wait for what is sent again, clocks and free running do not."""
    runs = ("bvn:barrier", "bvn:clock+nscc", "bvn:free", "spreadout:free+nscc", "rr-bytes:6000", "fast:barrier+nscc")
    given = scenario(tmp_path, **keys)
    for name, data in zip(runs, run_each((given, name) for name in runs), strict=True):
        assert_all_arrived(data, given)
        assert data.figures["retransmissions"] > 0, name


def test_a_barrier_costs_a_way_there_and_back(tmp_path: Path) -> None:
    """Without queues a stage takes its bytes, the way of its last packet, and the barrier."""
    for barrier_ns in (2000, 20_000):
        given = scenario(tmp_path, barrier_ns=barrier_ns)
        data = run_once(given, "bvn")
        stages, sent_ns = data.figures["plan_stages"], data.figures["plan_bytes"] / 100
        way_ns = float(given.parameters.rtt_ns) / 2
        least = sent_ns + stages * 2.0 * 1000 + (stages - 1) * barrier_ns
        assert least < data.figures["cct_ns"] < sent_ns + stages * 1.3 * way_ns + (stages - 1) * barrier_ns


def test_the_clock_waits_for_its_plan(tmp_path: Path) -> None:
    """With a control delay all stages are late by it, and nothing else changes."""
    early, late = (run_once(scenario(tmp_path, control_delay_ns=delay), "bvn:clock") for delay in (0, 50_000))
    assert late.figures["cct_ns"] == pytest.approx(early.figures["cct_ns"] + 50_000, abs=0.01)
    assert late.flows["first_arrival_ns"].min() > 50_000


def test_moves_inside_servers_come_before_and_after(tmp_path: Path) -> None:
    """Three phases, of which the first and the last are on the servers' links, at their speed."""
    given = scenario(tmp_path, gpus_per_server=4, server_link_gbps=3200)
    data = run_once(given, "fast")
    figures = data.figures
    assert figures["delivered_bytes"] == figures["expected_bytes"] > given.expected_bytes
    assert [phase in data.flows["phase"] for phase in range(4)] == [True, True, True, False]
    inner = data.flows["phase"] != 1
    for side in ("src", "dst"):
        assert (data.flows[side][inner] >= 8).all()
        assert (data.flows[side][~inner] < 8).all()
    same_server = (data.flows["src"] - 8) // 4 == (data.flows["dst"] - 8) // 4
    assert same_server[inner].all()
    assert (data.flows["src"][~inner] % 4 == data.flows["dst"][~inner] % 4).all()
    assert sum(figures["phase_cct_ns"]) == pytest.approx(figures["cct_ns"], abs=0.01)
    load = np.bincount(data.flows["dst"][data.flows["phase"] == 0], data.flows["bytes"][data.flows["phase"] == 0]).max()
    assert figures["phase_cct_ns"][0] > load / 400
    # The other schedules know nothing of these links: rate is what it is without them.
    rate = run_once(given, "rate").figures
    plain = run_once(scenario(tmp_path, gpus_per_server=4), "rate").figures
    assert rate["cct_ns"] == pytest.approx(plain["cct_ns"], abs=1)
    assert rate["expected_bytes"] == plain["expected_bytes"]


def test_a_barrier_over_what_nobody_sends_again_is_explained(tmp_path: Path) -> None:
    from controller.errors import CannotRunError

    with pytest.raises(CannotRunError, match="a barrier waits for what was dropped, which nobody sends again"):
        run_once(scenario(tmp_path, loss_recovery="none", loss_data=0.2), "bvn")
