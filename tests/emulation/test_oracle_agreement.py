"""The fabric against the oracle: every packet at every port to the nanosecond, every queue to the byte, every count.

All of this is open-loop traffic, which the oracle can foresee.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.schedule import make_plan
from controller.schedule.plan import Plan, Stages
from testbed.engine import BACKGROUND_PSN
from testbed.job import ENTROPY, MARKS, PATHS, flow_table, seed_word, start_offsets
from testbed.measure.results import RunData
from testbed.scenario import Scenario
from tests import oracle, oracle_nets
from tests.emulation.conftest import OPEN_LOOP, run_once, scenario_of, write_matrix

MTU = 4096
SPRAYING: dict[str, oracle.Spraying] = {"ops": "ops", "ecmp": "ecmp", "ar": "ar"}
Hops = list[tuple[int, int, int, int, int, int]]
"""(arrival, departure, bytes, source, destination, PSN) in kernel time, in order."""


def network_of(scenario: Scenario) -> oracle.Network:
    """The wiring, for the oracle."""
    wiring = scenario.wiring
    ports = [
        oracle.Port(
            p.node, p.peer, p.peer_node, Fraction(8) * scenario.dilation / p.gbps, round(p.ns * scenario.dilation)
        )
        for p in wiring.ports
    ]
    return oracle.Network(
        len(wiring.hosts),
        ports,
        {(wiring.switches[switch], host): route.ports for (switch, host), route in wiring.routes.items()},
        {name: index for index, name in enumerate(wiring.switches)},
    )


def failures_of(scenario: Scenario) -> list[tuple[int, int, int]]:
    """(port, down, up) in kernel time: both ends of each link that fails."""
    found = []
    for failure in scenario.experiment.link_failure:
        down, up = (round(t * scenario.dilation) for t in (failure.down_ns, failure.up_ns))
        ends = set(failure.link.split("-"))
        found += [(p.index, down, up) for p in scenario.wiring.ports if ends <= {p.node, p.peer_node}]
    return found


def background_of(scenario: Scenario) -> list[oracle.Flow]:
    """As the oracle wants them; worked out from the experiment's keys."""
    hosts, mtu = scenario.wiring.hosts, scenario.experiment.mtu_bytes
    flows = []
    for flow in scenario.experiment.background:
        source = hosts.index(flow.source)
        packets = -(-flow.bytes // mtu)
        share = flow.rate_gbps / scenario.wiring.ports[source].gbps
        flows.append(
            oracle.Flow(
                source,
                hosts.index(flow.destination),
                int(flow.start_ns * scenario.dilation),
                packets,
                flow.bytes - (packets - 1) * mtu,
                int(share * 2**32),
            )
        )
    return sorted(flows, key=lambda flow: flow.source)


def stages_of(scenario: Scenario, plan: Plan) -> tuple[list[oracle.Stage], int | None]:
    """As the oracle wants them, worked out from the plan in bytes; and the barrier's kernel time, if there is one.

    A stage takes as long as its slowest pair. All bytes of a plan are whole packets but for a flow's last.
    """
    speeds = [scenario.wiring.ports[host].gbps for host in range(scenario.hosts)]
    rows = plan.stages.tolist()
    lasts: dict[int, Fraction] = {}
    for number, source, destination, size in rows:
        time_ns = Fraction(8 * size) / min(speeds[source], speeds[destination])
        lasts[number] = max(lasts.get(number, Fraction(0)), time_ns)
    begins = {0: Fraction(0)} | {number: sum(list(lasts.values())[:number], Fraction(0)) for number in lasts}
    clocked = plan.mode is Stages.CLOCK
    stages = [
        oracle.Stage(
            source,
            destination,
            -(-size // scenario.experiment.mtu_bytes),
            number,
            round(begins[number] * scenario.dilation) if clocked else 0,
        )
        for number, source, destination, size in rows
    ]
    if not stages or plan.mode is not Stages.BARRIER:
        return stages, None
    return stages, round(scenario.parameters.barrier_ns * scenario.dilation)


def simulate(
    scenario: Scenario, schedule: str, priority: oracle.Priority = "charged", network: oracle.Network | None = None
) -> oracle.Result:
    """The same experiment in the oracle; ``network``: laid out without the testbed's help."""
    experiment, parameters = scenario.experiment, scenario.parameters
    plan = make_plan(schedule, scenario.demands[0], scenario.speeds_bps, mtu_bytes=experiment.mtu_bytes)
    demand = plan.carries or scenario.demands[0]
    fields = ("source", "destination", "ready_ns", "packets", "last_bytes", "steps", "quantum_bytes")
    flows = [oracle.Flow(*(int(row[name]) for name in fields)) for row in flow_table(scenario, demand, plan)]
    stages, barrier_ns = stages_of(scenario, plan)
    disciplines: dict[str, oracle.Discipline] = {"rate": "rate", "rr": "rr", "rr-bytes": "deficit"}
    discipline = "stages" if stages else disciplines[schedule.partition(":")[0]]
    return oracle.simulate(
        network or network_of(scenario),
        flows,
        start_ns=[int(t) for t in start_offsets(scenario)],
        mtu_bytes=experiment.mtu_bytes,
        discipline=discipline,
        spraying=SPRAYING[experiment.lb],
        seed=seed_word(experiment.seed, ENTROPY),
        path_salt=seed_word(experiment.seed, PATHS),
        log_hops=True,
        limit_bytes=parameters.queue_bytes,
        trimming=experiment.trimming,
        priority=priority,
        kmin_bytes=parameters.ecn_kmin_bytes,
        kmax_bytes=parameters.ecn_kmax_bytes,
        mark_salt=seed_word(experiment.seed, MARKS),
        failures=failures_of(scenario),
        occupancy_bytes=parameters.occupancy_bytes if experiment.lb == "ar" else 0,
        background=background_of(scenario),
        stages=stages,
        barrier_ns=barrier_ns,
    )


def hops_of(data: RunData, scenario: Scenario) -> dict[int, Hops]:
    """What each port accepted of data."""
    trace = data.trace
    assert trace is not None
    names = ("kernel_arrival_ns", "kernel_far_end_ns", "wire_bytes", "source", "destination", "psn")
    propagation = [round(port.ns * scenario.dilation) for port in scenario.wiring.ports]
    found: dict[int, Hops] = {}
    for port, arrival, far_end, *rest in zip(trace["port"].tolist(), *(trace[n].tolist() for n in names), strict=True):
        found.setdefault(port, []).append((arrival, far_end - propagation[port], *rest))
    return found


def assert_agreement(data: RunData, scenario: Scenario, expected: oracle.Result) -> None:
    """Counts and hops of every port, what every receiver had, and the deepest queues."""
    hosts, ports = len(scenario.wiring.hosts), len(scenario.wiring.ports)
    assert data.counters["port"].tolist() == list(range(ports))
    for name in ("drops", "trims", "marks", "lost", "control"):
        assert data.counters[name].tolist() == getattr(expected, name), name
    hops = hops_of(data, scenario)
    for port in range(ports):
        measured, foreseen = hops.get(port, []), [tuple(hop) for hop in expected.hops[port]]
        if port < hosts:  # the engine offers a packet to the NIC when its turn has come, the oracle all at once
            assert [hop[1:] for hop in measured] == [hop[1:] for hop in foreseen]
        else:
            assert measured == foreseen, scenario.wiring.ports[port].name
    # What the receivers' own clocks and counters saw.
    arrivals: dict[tuple[int, int], list[int]] = {}
    demand = {key: time_ns for key, time_ns in expected.arrivals.items() if key[2] < BACKGROUND_PSN}
    for (source, destination, _), time_ns in demand.items():
        arrivals.setdefault((source, destination), []).append(time_ns)
    names = ("src", "dst", "first_arrival_ns", "last_arrival_ns", "delivered_bytes")
    sizes = {hop[3:]: hop[2] for host in range(hosts) for hop in hops.get(host, [])}
    delivered = Counter[tuple[int, int]]()
    assert data.figures["background_delivered_packets"] == len(expected.arrivals) - len(demand)
    assert data.figures["background_trimmed_packets"] == sum(
        psn >= BACKGROUND_PSN for _, _, psn in expected.trimmed_arrivals
    )
    for key in demand:
        delivered[key[:2]] += sizes[key]
    for source, destination, first, last, size in zip(*(data.flows[n].tolist() for n in names), strict=True):
        times = arrivals.get((source, destination))
        assert size == delivered[source, destination]
        if times:
            assert first == pytest.approx(float(min(times) / scenario.dilation), abs=1e-3)
            assert last == pytest.approx(float(max(times) / scenario.dilation), abs=1e-3)
        else:
            assert np.isnan([first, last]).all()
    deepest = expected.deepest
    facing = [scenario.wiring.host_port(host) for host in range(hosts)]
    uplinks = [port for port in range(hosts, ports) if port not in facing]
    assert data.figures["hot_queue_max_bytes"] == max(deepest[port] for port in facing)
    assert data.figures["fabric_queue_max_bytes"] == max((deepest[port] for port in uplinks), default=0)
    assert data.figures["total_queue_max_bytes"] == expected.deepest_total


def compare(scenario: Scenario, schedule: str, network: oracle.Network | None = None) -> tuple[RunData, oracle.Result]:
    """Runs both; asserts that nothing ties, and that they agree."""
    expected = simulate(scenario, schedule, network=network)
    assert expected.ties == 0
    data = run_once(scenario, schedule)
    assert_agreement(data, scenario, expected)
    return data, expected


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
    leaves = -(-hosts // hosts_per_leaf)
    inner = [f"leaf{leaf + 1}-spine{spine + 1}" for leaf in range(leaves) for spine in range(hosts_per_leaf)]
    return unlike([*(f"h{host + 1}" for host in range(hosts)), *inner], seed)


def unlike(names: list[str], seed: int) -> dict[str, dict[str, float]]:
    """The same for links of these names."""
    rng = np.random.default_rng(seed)
    gbps = {name: 200 * int(rng.integers(1, 5)) + int(rng.integers(1, 1000)) / 100 for name in names}
    return {"link_gbps_of": gbps, "link_ns_of": {name: int(rng.integers(500, 200_000)) / 100 for name in names}}


def eleven_hosts(folder: Path, seed: int, **keys: Any) -> Scenario:
    """Packets of all lengths, over links of which no two are alike; senders start within a packet time."""
    keys = {**unlike_links(11, 4, seed), **keys}
    return scenario_of(
        write_matrix(folder / "demand.csv", skewed(11, seed, 300, short=True)),
        hosts_per_leaf=4,
        seed=seed,
        start_jitter_ns=40.96,
        dilation=100_000,
        trace=True,
        **{**OPEN_LOOP, **keys},
    )


@pytest.mark.parametrize("schedule", ["rr", "rate"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_unequal_speeds_and_delays(tmp_path: Path, schedule: str, seed: int) -> None:
    """Unlimited queues."""
    compare(eleven_hosts(tmp_path, seed), schedule)


@pytest.mark.parametrize("schedule", ["rr", "rate"])
def test_a_pair_of_interfaces_a_link(tmp_path: Path, schedule: str) -> None:
    """The same with real links in place of the trunk."""
    compare(eleven_hosts(tmp_path, 4, links="pairs"), schedule)


@pytest.mark.parametrize("links", ["trunk", "pairs"])
@pytest.mark.parametrize("schedule", ["bvn:barrier", "bvn:clock", "bvn:free", "spreadout:barrier", "fast:clock"])
def test_stages(tmp_path: Path, schedule: str, links: str) -> None:
    """Each stage begins when it should, and what clocks and free running let meet meets as foreseen."""
    pytest.importorskip("scipy", reason="bvn and fast find their matchings with scipy")
    scenario = eleven_hosts(tmp_path, 6, links=links)
    data, expected = compare(scenario, schedule)
    assert data.figures["plan_stages"] >= 10
    deepest = max(expected.deepest[scenario.wiring.host_port(host)] for host in range(11))
    if schedule == "bvn:free":  # the others' stages are over when a host's own begins, or nearly so
        assert deepest > 20 * MTU


@pytest.mark.parametrize("schedule", ["rr-bytes:100", "rr-bytes:5000", "rr-bytes:demand"])
def test_turns_of_bytes(tmp_path: Path, schedule: str) -> None:
    """Deficit round robin, with turns of less and of more than a packet."""
    compare(eleven_hosts(tmp_path, 7), schedule)


def test_stages_with_finite_queues(tmp_path: Path) -> None:
    """Nobody sends again what is trimmed, and stages that run freely do not wait for it."""
    pytest.importorskip("scipy", reason="bvn finds its matchings with scipy")
    _, expected = compare(finite(tmp_path, 3, queue_bytes=2 * MTU), "bvn:free")
    assert sum(expected.trims) > 20


def test_rr_hot_queue_equals_the_oracle(shared_data: Path) -> None:
    """Zipf, N=16, unlimited buffers: every queue equal to the byte, once no two links are alike."""
    scenario = scenario_of(
        shared_data / "zipf/n16-s0.25.csv",
        seed=5,
        start_jitter_ns=40.96,
        dilation=100_000,
        trace=True,
        **OPEN_LOOP,
        **unlike_links(16, 4, 5),
    )
    compare(scenario, "rr")


def test_ties_are_reported_and_harmless(shared_data: Path) -> None:
    """Equal links do fall into lockstep. The order of a tie is the kernel's own; the hot queue hardly knows."""
    scenario = scenario_of(shared_data / "zipf/n16-s0.25.csv", seed=5, start_jitter_ns=40.96, trace=True, **OPEN_LOOP)
    expected = simulate(scenario, "rr")
    assert expected.port_ties > 0
    data = run_once(scenario, "rr")
    facing = [scenario.wiring.host_port(host) for host in range(len(scenario.wiring.hosts))]
    hops = hops_of(data, scenario)
    assert {hop[3:] for port in facing for hop in hops[port]} == expected.arrivals.keys()
    hot = max(expected.deepest[port] for port in facing)
    assert data.figures["hot_queue_max_bytes"] == pytest.approx(hot, abs=3 * MTU)


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
        **OPEN_LOOP,
        **unlike_links(9, 3, 4),
    )
    data, _ = compare(scenario, "rr")
    hosts = len(scenario.wiring.hosts)
    used: dict[tuple[int, int], set[int]] = {}
    for port, hops in hops_of(data, scenario).items():
        for hop in hops if port >= 2 * hosts else []:
            used.setdefault(hop[3:5], set()).add(port)
    assert Counter(len(ports) for ports in used.values()) == {2: len(used)}  # one up, one down


@pytest.mark.parametrize("links", ["trunk", "pairs"])
@pytest.mark.parametrize("queue_bytes", [0, 40 * MTU, 4 * MTU])
@pytest.mark.parametrize("schedule", ["rr", "rate"])
def test_adaptive_routing(tmp_path: Path, schedule: str, queue_bytes: int, links: str) -> None:
    """Each data packet takes the uplink that is the least occupied when it comes; headers keep to their hash.

    Two of the first leaf's uplinks are slow, so that queues are of all levels; spraying offers the slowest more packets.
    """
    unlike = unlike_links(11, 4, 5)
    unlike["link_gbps_of"] |= {"leaf1-spine1": 61.3, "leaf1-spine2": 117.9}
    keys = {"queue_bytes": queue_bytes, "links": links, **unlike}
    scenario = eleven_hosts(tmp_path, 5, lb="ar", **keys)
    _, expected = compare(scenario, schedule)
    oblivious = simulate(eleven_hosts(tmp_path, 5, lb="ops", **keys), schedule)
    slowest = next(port.index for port in scenario.wiring.ports if (port.node, port.peer_node) == ("leaf1", "spine1"))
    adaptive, sprayed = (len(result.hops[slowest]) + result.trims[slowest] for result in (expected, oblivious))
    assert 20 < adaptive < sprayed - 15
    assert (sum(expected.trims) > 20) == (queue_bytes == 4 * MTU or (queue_bytes > 0 and schedule == "rr"))


FAILURES = [
    {"link": "leaf1-spine1", "down_ns": 5000, "up_ns": 9000.5},
    {"link": "h3", "down_ns": 4000.25, "up_ns": 6000},
]
BACKGROUND = [
    {"source": "h5", "destination": "h2", "bytes": 400 * MTU + 777, "rate_gbps": 97.3, "start_ns": 1234.5},
    {"source": "h1", "destination": "h9", "bytes": 333 * MTU, "rate_gbps": 190.1},
    {"source": "h5", "destination": "h9", "bytes": 100 * MTU + 64, "rate_gbps": 31, "start_ns": 700},
    {"source": "h1", "destination": "h9", "bytes": 50 * MTU + 1000, "rate_gbps": 11.7, "start_ns": 2500},
]
"""Two of one pair, of which the demand has a flow too."""
FINITE: dict[str, tuple[dict[str, Any], set[str]]] = {
    "drops": ({"queue_bytes": 2 * MTU, "trimming": False}, {"drops", "marks"}),
    "trims": ({"queue_bytes": 2 * MTU}, {"trims", "control", "marks"}),
    "marks": ({"ecn_kmin_bytes": 2 * MTU, "ecn_kmax_bytes": 12 * MTU}, {"marks"}),
    "failures": ({"queue_bytes": 2 * MTU, "link_failure": FAILURES}, {"lost", "trims"}),
    "background": ({"queue_bytes": 4 * MTU, "background": BACKGROUND}, {"trims", "marks"}),
    "background dropped": ({"queue_bytes": 4 * MTU, "trimming": False, "background": BACKGROUND}, {"drops"}),
}
"""Keys, and what must have happened for the case to be evidence."""
MOST_APART = 5
"""Trims of a port by the priority that is charged and by the exact one, as measured in the oracle: see below."""


def finite(folder: Path, seed: int, **keys: Any) -> Scenario:
    """Eleven hosts, with thresholds that their queues do cross."""
    links = unlike_links(11, 4, seed)
    links["link_gbps_of"] |= keys.pop("link_gbps_of", {})
    return eleven_hosts(folder, seed, **{"ecn_kmin_bytes": 0, "ecn_kmax_bytes": MTU, **links, **keys})


@pytest.mark.parametrize("links", ["trunk", "pairs"])
@pytest.mark.parametrize("schedule", ["rr", "rate"])
@pytest.mark.parametrize("case", FINITE)
def test_finite_queues(tmp_path: Path, case: str, schedule: str, links: str) -> None:
    """Drops, trims, marks and losses: as many at each port, and what is left at the same nanoseconds."""
    keys, happened = FINITE[case]
    _, expected = compare(finite(tmp_path, 3, links=links, **keys), schedule)
    for name in happened:
        assert sum(getattr(expected, name)) > 20, name


def test_marks_on_small_packets(tmp_path: Path) -> None:
    """Many of them: a port has to remember all that have come in behind the one that it judges."""
    keys = {"mtu_bytes": 512, "queue_bytes": 2**16, "ecn_kmin_bytes": 2**14, "ecn_kmax_bytes": 2**15}
    _, expected = compare(finite(tmp_path, 3, **keys), "rr")
    assert sum(expected.marks) > 20


def test_headers_dropped(tmp_path: Path) -> None:
    """A host's link so slow that the headers of what it has no room for have none either."""
    _, expected = compare(finite(tmp_path, 3, queue_bytes=MTU, link_gbps_of={"h3": 3.1}), "rr")
    assert sum(expected.trims) > 20
    assert sum(expected.drops) > 20


def trims_apart(trims: list[int], exact: list[int]) -> int:
    """The most at any port, where there was something to differ."""
    assert sum(trims) > 100
    assert sum(trims) == pytest.approx(sum(exact), rel=0.02)
    return max(abs(one - other) for one, other in zip(trims, exact, strict=True))


@pytest.mark.parametrize("schedule", ["rr", "rate"])
def test_priority_is_nearly_exact(tmp_path: Path, schedule: str) -> None:
    """Control first is an approximation: a packet in service is not waited for, a queued one not delayed.

    At one port with the same arrivals, at most 1 + n c / (w - c) decisions of a busy period differ (n headers of time c,
    packets of time w): tests/unit/test_oracle_finite.py bounds the work that the two are apart. In a network the
    arrivals differ as well, by what that leaves.
    """
    scenario = finite(tmp_path, 1, queue_bytes=2 * MTU)
    measured = run_once(scenario, schedule).counters["trims"].tolist()
    exact = simulate(scenario, schedule, "exact")
    assert exact.ties == 0
    assert trims_apart(measured, exact.trims) <= MOST_APART
    for seed in range(2, 8):  # the fabric is the oracle's "charged": see above
        for packets in (2, 20) if schedule == "rr" else (2,):
            scenario = finite(tmp_path, seed, queue_bytes=packets * MTU)
            charged, exact = simulate(scenario, schedule), simulate(scenario, schedule, "exact")
            assert trims_apart(charged.trims, exact.trims) <= MOST_APART


def tree_links(hosts: int, k: int) -> list[str]:
    """Names of a fat tree's links."""
    half = k // 2
    edges = -(-hosts // half)
    aggregations = -(-edges // half) * half
    names = [f"h{host + 1}" for host in range(hosts)]
    names += [f"edge{e + 1}-agg{e // half * half + n + 1}" for e in range(edges) for n in range(half)]
    return names + [f"agg{a + 1}-core{a % half * half + n + 1}" for a in range(aggregations) for n in range(half)]


def tree(folder: Path, hosts: int, k: int, seed: int, **keys: Any) -> tuple[Scenario, oracle.Network]:
    """A fat tree in which no two links are alike, from the testbed and laid out for the oracle by its own rules."""
    unequal = unlike(tree_links(hosts, k), seed)
    scenario = scenario_of(
        write_matrix(folder / "demand.csv", skewed(hosts, seed, 200, short=True)),
        topology="fat-tree",
        fat_tree_k=k,
        seed=seed,
        start_jitter_ns=40.96,
        dilation=100_000,
        trace=True,
        **{**OPEN_LOOP, **unequal, **keys},
    )

    def link(name: str) -> tuple[Fraction, int]:
        gbps, ns = (Fraction(str(unequal[key][name])) for key in ("link_gbps_of", "link_ns_of"))
        return 8 * 100_000 / gbps, int(ns * 100_000)

    return scenario, oracle_nets.fat_tree(hosts, k, link)


TREES = [(16, 4), (11, 4), (20, 6)]
"""Hosts and k: full, and with a last pod that has one edge switch, half full, or is the only one beside a full one."""


@pytest.mark.parametrize(("hosts", "k"), TREES)
def test_a_fat_tree_is_wired_as_the_oracle_s(tmp_path: Path, hosts: int, k: int) -> None:
    """Ports, routes and places in the hash, which the rest builds on."""
    scenario, network = tree(tmp_path, hosts, k, 1)
    assert network_of(scenario) == network


@pytest.mark.parametrize("lb", ["ops", "ecmp"])
@pytest.mark.parametrize("schedule", ["rr", "rate"])
@pytest.mark.parametrize(("hosts", "k"), TREES)
def test_fat_trees(tmp_path: Path, hosts: int, k: int, schedule: str, lb: str) -> None:
    """Three tiers, each with a hash of its own."""
    scenario, network = tree(tmp_path, hosts, k, 6, lb=lb)
    data, _ = compare(scenario, schedule, network)
    used: dict[tuple[int, int], set[int]] = {}
    for port, hops in hops_of(data, scenario).items():
        for hop in hops if port >= 2 * hosts else []:
            used.setdefault(hop[3:5], set()).add(port)
    if lb == "ecmp":  # up and down, of the pod or of a core
        assert {len(ports) for ports in used.values()} == {2, 4}
    else:
        assert max(len(ports) for ports in used.values()) > 4


@pytest.mark.parametrize("links", ["trunk", "pairs"])
def test_a_fat_tree_with_finite_queues(tmp_path: Path, links: str) -> None:
    """Trims and marks at every tier."""
    keys = {"queue_bytes": 2 * MTU, "ecn_kmin_bytes": 0, "ecn_kmax_bytes": MTU, "links": links}
    scenario, network = tree(tmp_path, 16, 4, 7, **keys)
    _, expected = compare(scenario, "rr", network)
    for name in ("trims", "marks"):
        assert sum(getattr(expected, name)) > 20, name
