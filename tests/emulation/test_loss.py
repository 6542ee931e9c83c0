"""The transport when packets, answers or links are lost: every byte arrives once, and its sender learns of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.emulation.conftest import assert_all_arrived, run_each, run_once, scenario_of, write_matrix

MTU = 4096


def skewed(hosts: int, packets: int) -> Any:
    """Zipf-like wire bytes of unlike lengths, some ``packets`` packets a sender."""
    rng = np.random.default_rng(hosts)
    share = rng.permutation(np.arange(1, hosts + 1)) ** -0.5
    counts = rng.poisson(packets * share / share.sum(), size=(hosts, hosts)) * MTU + rng.integers(
        64, MTU, (hosts, hosts)
    )
    np.fill_diagonal(counts, 0)
    return counts


LOSSES = [
    # run, recovery, trimming, loss of data, of ACKs, links
    ("rr", "sack", True, 0.01, 0, "trunk"),
    ("rr", "sack", True, 0.05, 0.05, "pairs"),
    ("rr", "sack", False, 0.2, 0.2, "trunk"),
    ("rr", "timeout", True, 0, 0.05, "trunk"),
    ("rr", "timeout", False, 0.05, 0, "trunk"),
    ("rr+nscc", "sack", True, 0.05, 0, "trunk"),
    ("rr+nscc", "sack", True, 0, 0.2, "trunk"),
    ("rr+nscc", "sack", False, 0.01, 0.01, "trunk"),
    ("rr+nscc", "sack", False, 0.2, 0, "pairs"),
    ("rr+nscc", "timeout", True, 0.05, 0.05, "trunk"),
    ("rr+nscc", "timeout", False, 0.01, 0, "trunk"),
    ("rate", "sack", True, 0, 0.05, "trunk"),
    ("rate", "sack", True, 0.01, 0.01, "pairs"),
    ("rate", "sack", False, 0.2, 0, "trunk"),
    ("rate", "timeout", True, 0, 0.01, "trunk"),
    ("rate", "timeout", False, 0.2, 0.2, "trunk"),
]


SHORT_LINKS = {"link_ns": 200}
"""Windows, queues and timeouts are then small against 2 MB a sender."""


@pytest.mark.parametrize(("schedule", "recovery", "trimming", "loss_data", "loss_ack", "links"), LOSSES)
def test_chance(
    tmp_path: Path, schedule: str, recovery: str, trimming: bool, loss_data: float, loss_ack: float, links: str
) -> None:
    """As many are lost as was asked for, and all the same everything arrives."""
    scenario = scenario_of(
        write_matrix(tmp_path / "demand.csv", skewed(10, 500)),
        seed=7,
        loss_recovery=recovery,
        trimming=trimming,
        queue_bytes=40 * MTU,
        loss_data=loss_data,
        loss_ack=loss_ack,
        links=links,
        **SHORT_LINKS,
    )
    data = run_once(scenario, schedule)
    assert_all_arrived(data, scenario)
    figures = data.figures
    answers = figures["acks"] + figures["nacks"]  # nearly: a NACK is also sent for what has been sent again since
    expected = loss_data * figures["packets"] + loss_ack * answers
    deviation = math.sqrt(loss_data * (1 - loss_data) * figures["packets"] + loss_ack * (1 - loss_ack) * answers)
    print(
        schedule,
        recovery,
        trimming,
        loss_data,
        loss_ack,
        links,
        {
            k: figures[k]
            for k in (
                "lost",
                "cct_ns",
                "inflation",
                "cct_last_ack_ns",
                "lower_bound_ns",
                "trims",
                "drops",
                "nacks",
                "timeouts",
                "sack_losses",
                "probes",
                "retransmissions",
                "duplicates",
                "acks",
                "packets",
                "engine_s",
                "wall_s",
            )
        },
        expected,
        deviation,
    )
    assert abs(figures["lost"] - expected) < 5 * deviation
    assert figures["lost"] == data.counters["lost"][: len(scenario.wiring.hosts)].sum()  # on NICs' links, no other
    full = figures["trims"] if trimming else figures["drops"]
    assert (full > 0) == (schedule != "rate")
    gone = loss_data * figures["packets"] + full
    if gone:
        assert figures["retransmissions"] > 0.9 * gone
    else:  # only answers were lost, of which the next one says the same, and more
        assert figures["retransmissions"] < 0.05 * figures["packets"]
    causes = sum(figures[name] for name in ("nacks", "timeouts", "sack_losses", "probes"))
    assert figures["retransmissions"] >= 0.9 * causes  # but for what came in after all before its turn
    if recovery == "timeout":
        assert figures["sack_losses"] == figures["probes"] == 0
        assert figures["timeouts"] > 0 or not gone


def test_last_packets_wait_for_no_turn(tmp_path: Path) -> None:
    """Flows of one packet at senders of many flows: a lost one is sent again after the RTO, not some turns later.

    Nothing of the flow follows that its receiver might wait for before it answers.
    """
    hosts = 64
    counts = MTU * (1 - np.eye(hosts, dtype=int))
    scenario = scenario_of(write_matrix(tmp_path / "demand.csv", counts), loss_data=0.01, loss_recovery="timeout")
    data = run_once(scenario, "rr")
    assert_all_arrived(data, scenario)
    rto_ns = float(scenario.parameters.rto_ns)
    once = data.flows["timeouts"] == 1
    assert once.sum() >= 20
    last_ns = data.flows["last_arrival_ns"][once]
    sending_ns = float(scenario.lower_bound_s) * 1e9  # 2.6 us; five turns are five times that
    assert (last_ns > rto_ns).all()
    assert last_ns.max() < rto_ns + 2 * sending_ns + float(scenario.parameters.rtt_ns)


@pytest.mark.parametrize("recovery", ["sack", "timeout"])
def test_headers_find_no_room(tmp_path: Path, recovery: str) -> None:
    """A slow receiver: so much is trimmed that headers are dropped, and nothing tells the sender of them."""
    counts = np.zeros((9, 9), dtype=int)
    counts[1:, 0] = 70 * MTU
    scenario = scenario_of(
        write_matrix(tmp_path / "demand.csv", counts),
        hosts_per_leaf=3,
        queue_bytes=2 * MTU,
        loss_recovery=recovery,
        link_gbps_of={"h1": 25},
    )
    data = run_once(scenario, "rr+nscc")
    assert_all_arrived(data, scenario)
    print(
        {
            k: data.figures[k]
            for k in (
                "lost",
                "inflation",
                "timeouts",
                "sack_losses",
                "probes",
                "retransmissions",
                "duplicates",
                "trims",
                "drops",
            )
        }
    )
    assert data.figures["trims"] > 0
    assert data.figures["drops"] > 0


@pytest.mark.parametrize("links", ["trunk", "pairs"])
@pytest.mark.parametrize("link", ["leaf1-spine1", "h3"])
def test_link_fails_and_comes_back(tmp_path: Path, link: str, links: str) -> None:
    """At half the lower bound, for a fifth of it: only that link loses, and all arrives in the end."""
    file = write_matrix(tmp_path / "demand.csv", skewed(10, 500))
    bound_ns = float(scenario_of(file).lower_bound_s) * 1e9
    failure = {"link": link, "down_ns": round(0.5 * bound_ns), "up_ns": round(0.7 * bound_ns)}
    scenario = scenario_of(file, seed=7, link_failure=[failure], links=links, **SHORT_LINKS)
    ends = set(link.split("-"))
    own = np.array([ends <= {port.node, port.peer_node} for port in scenario.wiring.ports])
    assert own.sum() == 2
    for data in run_each((scenario, run) for run in ("rr", "rr+nscc", "rate")):
        assert_all_arrived(data, scenario)
        lost = data.counters["lost"]
        assert (lost[own] > 0).all()  # both directions
        assert (lost[~own] == 0).all()
        assert data.figures["cct_ns"] > failure["up_ns"]
        assert data.figures["retransmissions"] > 0
