"""The fabric against the oracle: every packet's arrival to the nanosecond, every queue to the byte."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.schedule import make_plan
from testbed.job import ENTROPY, PATHS, Scenario, flow_table, seed_word, start_offsets
from tests import oracle
from tests.emulation.conftest import run_once, scenario_of, write_matrix

MTU = 4096


def simulate(scenario: Scenario, schedule: str) -> oracle.Result:
    """The same experiment in the oracle."""
    wiring, experiment = scenario.wiring, scenario.experiment
    ports = [
        oracle.Port(
            p.node, p.peer, p.peer_node, Fraction(8) * scenario.dilation / p.gbps, round(p.ns * scenario.dilation)
        )
        for p in wiring.ports
    ]
    network = oracle.Network(
        len(wiring.hosts),
        ports,
        {(wiring.switches[switch], host): route.ports for (switch, host), route in wiring.routes.items()},
        {name: index for index, name in enumerate(wiring.switches)},
    )
    plan = make_plan(schedule, scenario.demands[0], scenario.speeds_bps)
    flows = [
        oracle.Flow(
            *(int(row[name]) for name in ("source", "destination", "ready_ns", "packets", "last_bytes", "steps"))
        )
        for row in flow_table(scenario, scenario.demands[0], plan)
    ]
    return oracle.simulate(
        network,
        flows,
        start_ns=[int(t) for t in start_offsets(scenario)],
        mtu_bytes=experiment.mtu_bytes,
        discipline="rate" if schedule == "rate" else "rr",
        spraying="ecmp" if experiment.lb == "ecmp" else "ops",
        seed=seed_word(experiment.seed, ENTROPY),
        path_salt=seed_word(experiment.seed, PATHS),
    )


def compare(scenario: Scenario, schedule: str) -> oracle.Result:
    """Runs both; asserts that they agree. Arrivals must agree wherever nothing ties."""
    expected = simulate(scenario, schedule)
    data = run_once(scenario, schedule)
    assert data.trace is not None
    trace = data.trace
    facing = np.isin(trace["port"], [scenario.wiring.host_port(host) for host in range(len(scenario.wiring.hosts))])
    arrivals = {
        (int(s), int(d), int(n)): int(t)
        for s, d, n, t in zip(
            trace["source"][facing],
            trace["destination"][facing],
            trace["psn"][facing],
            trace["kernel_far_end_ns"][facing],
            strict=True,
        )
    }
    assert arrivals.keys() == expected.arrivals.keys()
    if expected.ties:
        return expected
    assert arrivals == expected.arrivals
    deepest = expected.deepest
    hosts = len(scenario.wiring.hosts)
    facing_ports = [scenario.wiring.host_port(host) for host in range(hosts)]
    uplinks = [port for port in range(hosts, len(deepest)) if port not in facing_ports]
    assert data.figures["hot_queue_max_bytes"] == max(deepest[port] for port in facing_ports)
    assert data.figures["fabric_queue_max_bytes"] == max((deepest[port] for port in uplinks), default=0)
    assert data.figures["total_queue_max_bytes"] == expected.deepest_total
    # What the receivers' own clocks saw is what the ports promised.
    last: dict[tuple[int, int], int] = {}
    for (source, destination, _), time_ns in arrivals.items():
        last[source, destination] = max(time_ns, last.get((source, destination), 0))
    seen = dict(
        zip(
            zip(data.flows["src"].tolist(), data.flows["dst"].tolist(), strict=True),
            data.flows["last_arrival_ns"].tolist(),
            strict=True,
        )
    )
    assert seen == {pair: pytest.approx(float(t / scenario.dilation), abs=1e-3) for pair, t in last.items()}
    return expected


def skewed(hosts: int, seed: int, packets: int, *, short: bool) -> Any:
    """A random matrix with hot receivers; ``short`` gives every flow a last packet of its own length."""
    rng = np.random.default_rng(seed)
    popularity = rng.permutation(np.arange(1, hosts + 1)) ** -1.0
    counts = rng.poisson(packets * popularity / popularity.sum(), size=(hosts, hosts)) * MTU
    if short:
        counts += rng.integers(64, MTU, size=(hosts, hosts))
    np.fill_diagonal(counts, 0)
    return counts


def unlike_links(hosts: int, hosts_per_leaf: int, seed: int) -> dict[str, dict[str, float]]:
    """A speed and a delay for each link, all different: equal ports fall into lockstep, and then packets tie."""
    rng = np.random.default_rng(seed)
    leaves = -(-hosts // hosts_per_leaf)
    names = [f"h{host + 1}" for host in range(hosts)]
    names += [f"leaf{leaf + 1}-spine{spine + 1}" for leaf in range(leaves) for spine in range(hosts_per_leaf)]
    gbps = {name: 200 * int(rng.integers(1, 5)) + int(rng.integers(1, 1000)) / 100 for name in names}
    return {"link_gbps_of": gbps, "link_ns_of": {name: int(rng.integers(500, 200_000)) / 100 for name in names}}


@pytest.mark.parametrize("schedule", ["rr", "rate"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_unequal_speeds_and_delays(tmp_path: Path, schedule: str, seed: int) -> None:
    """Packets of all lengths, over links of which no two are alike; senders start within a packet time."""
    scenario = scenario_of(
        write_matrix(tmp_path / "demand.csv", skewed(11, seed, 300, short=True)),
        hosts_per_leaf=4,
        seed=seed,
        start_jitter_ns=40.96,
        dilation=100_000,
        trace=True,
        **unlike_links(11, 4, seed),
    )
    assert compare(scenario, schedule).ties == 0


@pytest.mark.parametrize("schedule", ["rr", "rate"])
def test_a_pair_of_interfaces_a_link(tmp_path: Path, schedule: str) -> None:
    """The same with real links in place of the trunk."""
    scenario = scenario_of(
        write_matrix(tmp_path / "demand.csv", skewed(11, 4, 300, short=True)),
        hosts_per_leaf=4,
        seed=4,
        start_jitter_ns=40.96,
        dilation=100_000,
        links="pairs",
        trace=True,
        **unlike_links(11, 4, 4),
    )
    assert compare(scenario, schedule).ties == 0


def test_rr_hot_queue_equals_the_oracle(shared_data: Path) -> None:
    """Zipf, N=16, unlimited buffers: every queue equal to the byte, once no two links are alike."""
    scenario = scenario_of(
        shared_data / "zipf/n16-s0.25.csv",
        seed=5,
        start_jitter_ns=40.96,
        dilation=100_000,
        trace=True,
        **unlike_links(16, 4, 5),
    )
    assert compare(scenario, "rr").ties == 0


def test_ties_are_reported_and_harmless(shared_data: Path) -> None:
    """Equal links do fall into lockstep. The order of a tie is the kernel's own; the hot queue hardly knows."""
    scenario = scenario_of(shared_data / "zipf/n16-s0.25.csv", seed=5, start_jitter_ns=40.96, trace=True)
    expected = compare(scenario, "rr")
    assert expected.port_ties > 0
    hosts = len(scenario.wiring.hosts)
    hot = max(expected.deepest[scenario.wiring.host_port(host)] for host in range(hosts))
    measured = run_once(scenario, "rr").figures["hot_queue_max_bytes"]
    assert measured == pytest.approx(hot, abs=3 * MTU)


def test_single_path(tmp_path: Path) -> None:
    """ECMP: each flow stays on one uplink, the one that the hash says."""
    scenario = scenario_of(
        write_matrix(tmp_path / "demand.csv", skewed(9, 3, 200, short=True)),
        hosts_per_leaf=3,
        lb="ecmp",
        seed=4,
        start_jitter_ns=40.96,
        dilation=100_000,
        trace=True,
        **unlike_links(9, 3, 4),
    )
    assert compare(scenario, "rr").ties == 0
    data = run_once(scenario, "rr")
    assert data.trace is not None
    hosts = len(scenario.wiring.hosts)
    used: dict[tuple[int, int], set[int]] = {}
    for port, source, destination in zip(
        data.trace["port"], data.trace["source"], data.trace["destination"], strict=True
    ):
        if port >= 2 * hosts:
            used.setdefault((int(source), int(destination)), set()).add(int(port))
    assert Counter(len(ports) for ports in used.values()) == {2: len(used)}  # one up, one down
