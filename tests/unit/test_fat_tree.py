"""The fat tree: how many switches it has, what is called what, where packets go, and that tiers do not polarise."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.errors import InputError
from testbed.experiment import from_mapping
from testbed.fabric.tables import OnePort, fabric_tables, mix32
from testbed.job import prepare_job
from testbed.measure.results import empty_figures
from testbed.parameters import derive
from testbed.port_load import even_shares
from testbed.report.table import comparison
from testbed.scenario import Scenario, prepare
from testbed.topology import Wiring, fat_tree, leaf_spine, smallest_fat_tree, wire
from tests.emulation.conftest import write_matrix

MTU = 4096
GBPS = Fraction(800)
NS = Fraction(1000)
SALT = 0xDEADBEEF
KERNEL_ROUTES, KERNEL_PORTS, KERNEL_MEMBERS = 1 << 19, 8192, 1 << 16
"""Of ebpf/fabric/state.h."""
INTERFACE_NAME = 15
"""Characters (IFNAMSIZ of linux/if.h, less its end)."""

# hosts, k: edge, aggregation and core switches
COUNTS = {
    (2, 2): (2, 2, 1),
    (16, 4): (8, 8, 4),
    (128, 8): (32, 32, 16),
    # Partly filled: 5 hosts in 3 edges of 2 pods, 11 in 6 of 3, 9 in 5 of 3; 100 in 25 edges of 4, 7 pods of 4 edges.
    (5, 4): (3, 4, 4),
    (11, 4): (6, 6, 4),
    (9, 4): (5, 6, 4),
    (100, 8): (25, 28, 16),
    # Half of the pods; all but one host of the next k; 512 = 10 pods of 49, and 22.
    (64, 8): (16, 16, 16),
    (53, 6): (18, 18, 9),
    (512, 14): (74, 77, 49),
    (512, 16): (64, 64, 64),
    # One pod needs no core, one edge switch nothing else.
    (4, 4): (2, 2, 0),
    (3, 4): (2, 2, 0),
    (2, 4): (1, 0, 0),
    (1, 2): (1, 0, 0),
}
SMALL = [shape for shape in COUNTS if shape[0] <= 128]


def wiring(hosts: int, k: int, gbps_of: dict[str, Fraction] | None = None) -> Wiring:
    return wire(fat_tree(hosts, k, GBPS, NS, gbps_of or {}, {}))


def kind(name: str) -> str:
    return name.rstrip("0123456789")


@pytest.mark.parametrize(("shape", "counts"), COUNTS.items(), ids=map(str, COUNTS))
def test_switches_and_ports(shape: tuple[int, int], counts: tuple[int, int, int]) -> None:
    hosts, k = shape
    network = wiring(*shape)
    edges, aggregations, cores = counts
    assert network.hosts == tuple(f"h{n + 1}" for n in range(hosts))
    assert set(network.switches) == {
        *(f"edge{n + 1}" for n in range(edges)),
        *(f"agg{n + 1}" for n in range(aggregations)),
        *(f"core{n + 1}" for n in range(cores)),
    }
    links = hosts + (edges * k // 2 if aggregations else 0) + (aggregations * k // 2 if cores else 0)
    assert len(network.ports) == 2 * links
    used = Counter(port.node for port in network.ports)
    assert all(used[host] == 1 for host in network.hosts)
    assert max(used[switch] for switch in network.switches) <= k
    pods = -(-edges // (k // 2))
    assert all(used[f"core{n + 1}"] == pods for n in range(cores))


@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_a_full_tree_has_switches_of_k_ports_and_a_part_of_it_no_fewer_upward(shape: tuple[int, int]) -> None:
    """As many links lead up from each edge switch, and from each pod, as there is room for hosts below: no more hosts than that."""
    hosts, k = shape
    network = wiring(*shape)
    below, above = Counter[str](), Counter[str]()
    for port in network.ports:
        if kind(port.node) == "edge":
            (below if kind(port.peer_node) == "h" else above)[port.node] += 1
        if kind(port.node) == "agg" and kind(port.peer_node) == "core":
            above[f"pod{(int(port.node[3:]) - 1) // (k // 2) + 1}"] += 1
    for host in range(hosts):
        edge = int(network.ports[host].peer_node[4:])
        below[f"pod{(edge - 1) // (k // 2) + 1}"] += 1
    several_edges, several_pods = hosts > k // 2, hosts > (k // 2) ** 2
    for name, count in below.items():
        room = (k // 2) ** (2 if name.startswith("pod") else 1)
        assert count <= room
        if several_pods if name.startswith("pod") else several_edges:
            assert above[name] == room
    if hosts == k**3 // 4:
        assert {Counter(port.node for port in network.ports)[switch] for switch in network.switches} == {k}


def test_who_is_linked_to_whom() -> None:
    network = wiring(11, 4)
    assert [port.peer_node for port in network.ports[:11]] == [f"edge{n // 2 + 1}" for n in range(11)]
    up = [(port.node, port.peer_node) for port in network.ports[22:] if port.index < port.peer]
    expected = []
    for pod in (0, 2, 4):
        for agg, cores in ((pod + 1, (1, 2)), (pod + 2, (3, 4))):
            expected += [(f"edge{edge}", f"agg{agg}") for edge in (pod + 1, pod + 2)]
            expected += [(f"agg{agg}", f"core{core}") for core in cores]
    assert up == expected


@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_ports_of_a_switch_count_from_the_hosts_up(shape: tuple[int, int]) -> None:
    """In the tables, which BMv2 has, as in the names of interfaces."""
    network = wiring(*shape)
    for switch in fabric_tables(network, SALT).switches:
        own = [network.ports[port] for port in switch.ports]
        assert [port.name for port in own] == [f"{switch.name}-eth{n + 1}" for n in range(len(own))]
        peers = [port.peer_node for port in own]
        below = {"edge": "h", "agg": "edge", "core": "agg"}[kind(switch.name)]
        assert peers == sorted(peers, key=lambda name: (kind(name) != below, int(name.lstrip("aceghdor"))))


@pytest.mark.parametrize("hosts", [54, 128, 512, 1000])
def test_names_of_interfaces_fit_and_are_different(hosts: int) -> None:
    for k in range(smallest_fat_tree(hosts), 65, 2):
        names = [port.name for port in wiring(hosts, k).ports] if k < 20 else [f"core{k * k // 4}-eth{k}"]
        assert max(map(len, names)) <= INTERFACE_NAME
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_every_pair_has_all_shortest_ways(shape: tuple[int, int]) -> None:
    """1 in an edge switch, k/2 in a pod, (k/2)^2 between pods: on 2, 4 and 6 links."""
    hosts, k = shape
    network = wiring(*shape)
    assert set(network.routes) == {(s, h) for s in range(len(network.switches)) for h in range(hosts)}
    index_of = {name: index for index, name in enumerate(network.switches)}

    def ways(node: str, destination: int, links: int) -> Counter[int]:
        """Number of ways by their links."""
        if node == network.hosts[destination]:
            return Counter({links: 1})
        found = Counter[int]()
        for port in network.routes[index_of[node], destination].ports:
            found += ways(network.ports[port].peer_node, destination, links + 1)
        return found

    # All hosts of an edge switch have its ways.
    firsts = range(0, hosts, k // 2)
    for source, destination in product(firsts, range(hosts)):
        if source == destination:
            continue
        edges = source // (k // 2), destination // (k // 2)
        expected = {4: k // 2} if edges[0] // (k // 2) == edges[1] // (k // 2) else {6: (k // 2) ** 2}
        if edges[0] == edges[1]:
            expected = {2: 1}
        assert ways(network.ports[source].peer_node, destination, 1) == expected
        assert len(network.path(source, destination)) == next(iter(expected))
    assert network.longest_path == (6 if hosts > (k // 2) ** 2 else 4 if hosts > k // 2 else 2)


@pytest.mark.parametrize("shape", [(512, 14), (512, 16), (1000, 16)])
def test_large_trees_fit_into_the_kernel_fabric(shape: tuple[int, int]) -> None:
    network = wiring(*shape)
    assert len(network.ports) <= KERNEL_PORTS
    assert len(network.switches) * shape[0] <= KERNEL_ROUTES
    assert len(network.routes) == len(network.switches) * shape[0]
    tables = fabric_tables(network, SALT)
    assert sum(len(switch.members) for switch in tables.switches) <= KERNEL_MEMBERS


def test_the_smallest_k() -> None:
    for hosts, k in (
        (1, 2),
        (2, 2),
        (3, 4),
        (16, 4),
        (17, 6),
        (54, 6),
        (55, 8),
        (128, 8),
        (512, 14),
        (686, 14),
        (687, 16),
    ):
        assert smallest_fat_tree(hosts) == k


@pytest.mark.parametrize(("hosts", "k", "reason"), [(17, 4, "holds 16 hosts of 17: give 6 or more"), (4, 5, "even")])
def test_a_k_that_does_not_do_is_refused(hosts: int, k: int, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        wiring(hosts, k)


@pytest.mark.parametrize("name", ["agg1-edge1", "edge1-agg3", "agg1-core3", "core1", "edge1-core1", "leaf1-spine1"])
def test_what_is_no_link_is_refused_with_what_links_there_are(name: str) -> None:
    with pytest.raises(InputError) as caught:
        wiring(16, 4, {name: Fraction(1)})
    assert str(caught.value) == (
        f"link_gbps_of: {name!r} is not a link of this topology: links are h1 to h16, edge1-agg1 to edge8-agg8, "
        "agg1-core1 to agg8-core4"
    )


# ---- load balancing ----


def crossed(network: Wiring, salts: dict[str, int] | None = None) -> Counter[int]:
    """How many packets cross each port, if every host sends every other one packet with each entropy value."""
    tables = {switch.name: switch for switch in fabric_tables(network, SALT).switches}
    hosts = len(network.hosts)
    found = Counter[int]()
    for source, destination, value in product(range(hosts), range(hosts), range(64)):
        if source == destination:
            continue
        port = network.ports[source]
        while port.peer_node != network.hosts[destination]:
            switch = tables[port.peer_node]
            way = switch.routes[destination]
            if isinstance(way, OnePort):
                port = network.ports[way.port]
            else:
                salt = switch.salt if salts is None else salts[switch.name]
                entropy = (49152 + value) << 16 | 4793
                hashed = mix32(
                    (salt + source * 0x9E3779B1 + destination * 0x85EBCA77 + entropy * 0xC2B2AE3D) & 0xFFFFFFFF
                )
                port = network.ports[switch.members[way.first + (hashed * way.ways >> 32)]]
            found[port.index] += 1
    return found


def test_tiers_do_not_polarise() -> None:
    """All cores are used evenly, by each pod: within five standard deviations of a fair draw. With one salt for all, half are not."""
    network = wiring(16, 4)
    up = [p.index for p in network.ports if (kind(p.node), kind(p.peer_node)) == ("agg", "core")]
    down = [p.index for p in network.ports if (kind(p.node), kind(p.peer_node)) == ("core", "agg")]
    # 4 hosts of a pod send 12 others 64 packets each, over 4 cores; and likewise from the cores to a pod.
    mean = 4 * 12 * 64 / 4
    crossing = crossed(network)
    assert len(up) == len(down) == 16
    for port in (*up, *down):
        assert abs(crossing[port] - mean) < 5 * (mean * 3 / 4) ** 0.5
    polarised = crossed(network, dict.fromkeys(network.switches, SALT))
    assert sorted(polarised[port] > 0 for port in up) == [False] * 8 + [True] * 8


def test_even_shares_of_a_tree() -> None:
    """h1 sends 960 B to h2, its neighbour, 480 B within its pod and 240 B to another pod; 2 ways, and then 2 more."""
    network = wiring(16, 4)
    demand = np.zeros((16, 16), dtype=np.int64)
    demand[0, 1], demand[0, 3], demand[0, 4] = 960, 480, 240
    shares = {
        (network.ports[port].node, network.ports[port].peer_node): share
        for port, share in even_shares(network, demand).items()
    }
    assert shares == {
        **{("edge1", f"agg{n}"): 240 + 120 for n in (1, 2)},
        **{(f"agg{n}", "edge2"): 240 for n in (1, 2)},
        **{(f"agg{1 + (n > 2)}", f"core{n}"): 60 for n in range(1, 5)},
        **{(f"core{n}", f"agg{3 + (n > 2)}"): 60 for n in range(1, 5)},
        **{(f"agg{n}", "edge3"): 120 for n in (3, 4)},
    }


@pytest.mark.parametrize("hosts", [11, 16])
def test_no_link_of_an_even_demand_carries_more_than_a_host_s(hosts: int) -> None:
    """Not oversubscribed: whoever sends to whom at line rate, evenly spread."""
    network = wiring(hosts, 4)
    for shift in range(1, hosts):
        demand = np.zeros((hosts, hosts), dtype=np.int64)
        demand[np.arange(hosts), (np.arange(hosts) + shift) % hosts] = 1000
        assert max(even_shares(network, demand).values()) <= 1000


def test_even_shares_of_two_tiers() -> None:
    """Every sender's share on each of its leaf's uplinks, exactly."""
    network = wire(leaf_spine(10, 3, GBPS, NS, {}, {}))
    demand = np.random.default_rng(1).integers(0, 10**9, size=(10, 10))
    leaf = np.arange(10) // 3
    shares = even_shares(network, demand)
    assert len(shares) == 2 * 4 * 3
    for port, share in shares.items():
        node, peer = network.ports[port].node, network.ports[port].peer_node
        own = leaf == int((node if node.startswith("leaf") else peer)[4:]) - 1
        crossing = demand[own][:, ~own] if node.startswith("leaf") else demand[~own][:, own]
        assert share == Fraction(int(crossing.sum()), 3)


# ---- from the experiment on ----


def scenario(folder: Path, hosts: int, **keys: Any) -> Scenario:
    demand = np.full((hosts, hosts), 10 * MTU)
    np.fill_diagonal(demand, 0)
    file = write_matrix(folder / "m.csv", demand)
    table = {"file": str(file), "unit": "wire-bytes"}
    return prepare(from_mapping({"demand": [table], "topology": "fat-tree", **keys}))


def test_parameters_of_three_tiers() -> None:
    """6 links of 1 us each way; at each of 6 ports 4096 B and an ACK's 64 B of 0.01 ns a byte (uet-htsim: 12.25 us)."""
    experiment = from_mapping({"demand": [{"file": "m.csv"}], "topology": "fat-tree"})
    derived = derive(experiment, wiring(128, 8), 10**6)
    assert derived.rtt_ns == 12 * 1000 + 6 * 4160 * Fraction(1, 100) == Fraction("12249.6")
    assert derived.bdp_bytes == 1_224_960
    # 299.06 packets, rounded up; the thresholds are fifths of 300.
    assert derived.queue_bytes == 300 * MTU
    assert (derived.ecn_kmin_bytes, derived.ecn_kmax_bytes) == (60 * MTU, 240 * MTU)
    # 1.5 RTT0 is more than 15 us.
    assert derived.rto_ns == 18_375 + 6 * 12_288
    assert (derived.reorder_ns, derived.probe_ns, derived.tail_probe_ns) == (12_250, 36_749, 24_500)
    # Of one pod, and of one edge switch: as far as on two tiers, and on one.
    assert derive(experiment, wiring(16, 8), 10**6).rtt_ns == Fraction("8166.4")
    assert derive(experiment, wiring(4, 8), 10**6).rtt_ns == Fraction("4083.2")


@pytest.mark.parametrize(("hosts", "given", "k"), [(16, 0, 4), (17, 0, 6), (16, 8, 8)])
def test_its_size(tmp_path: Path, hosts: int, given: int, k: int) -> None:
    prepared = scenario(tmp_path, hosts, fat_tree_k=given)
    assert prepared.shape == {"fat_tree_k": k}
    assert len([name for name in prepared.wiring.switches if kind(name) == "edge"]) == -(-hosts // (k // 2))
    head = comparison(prepared, [{**empty_figures(hosts), "run": "rr", "wall_s": 0}]).splitlines()[0]
    assert head.startswith(f"{hosts} hosts, fat tree of k = {k}, 800 Gb/s")


def test_a_k_too_small_for_the_demand_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="fat_tree_k is 4, which holds 16 hosts of 17: give 6 or more, or leave it out"
    ):
        scenario(tmp_path, 17, fat_tree_k=4)


def test_the_guest_is_told_the_shape(tmp_path: Path) -> None:
    prepared = scenario(tmp_path, 16, link_gbps_of={"agg1-core2": 100})
    prepare_job(prepared, prepared.experiment.run_of("rr"), tmp_path)
    network = json.loads((tmp_path / "job.json").read_text())["network"]
    assert (network["topology"], network["hosts"], network["shape"]) == ("fat-tree", 16, {"fat_tree_k": 4})
    assert network["link_gbps_of"] == {"agg1-core2": "100"}


def test_a_slow_core_is_said(tmp_path: Path) -> None:
    """4 hosts of a pod send 12 others 10 packets each: 480, 120 on each of 4 links to cores, 39.3 us at 100 Gb/s."""
    slow = scenario(tmp_path, 16, link_gbps_of={"agg1-core2": 100})
    assert any("agg1-core2 needs 39.32 us" in note or "core2-agg1 needs 39.32 us" in note for note in slow.notes)
    assert not scenario(tmp_path, 16).notes


def test_links_that_fail(tmp_path: Path) -> None:
    failures = [{"link": link, "down_ns": 1, "up_ns": 2} for link in ("edge1-agg2", "agg1-core1", "h3")]
    prepared = scenario(tmp_path, 16, link_failure=failures)
    prepare_job(prepared, prepared.experiment.run_of("rr"), tmp_path)
    given = json.loads((tmp_path / "job.json").read_text())["failures"]
    ports = prepared.wiring.ports
    assert [(ports[port].node, ports[port].peer_node) for port, *_ in given] == [
        *(("edge1", "agg2"), ("agg2", "edge1")),
        *(("agg1", "core1"), ("core1", "agg1")),
        *(("h3", "edge2"), ("edge2", "h3")),
    ]
    with pytest.raises(InputError, match=r"links are h1 to h16, edge1-agg1 to edge8-agg8, agg1-core1 to agg8-core4"):
        scenario(tmp_path, 16, link_failure=[{"link": "agg1-core3", "down_ns": 1, "up_ns": 2}])


def test_records_fit_where_ways_are_longer(tmp_path: Path) -> None:
    """Half as many wakes more: a packet leaves 6 records, not 4."""
    periods = {}
    for topology in ("leaf-spine", "fat-tree"):
        prepared = scenario(tmp_path, 512, topology=topology)
        prepare_job(prepared, prepared.experiment.run_of("rate"), tmp_path)
        periods[topology] = json.loads((tmp_path / "job.json").read_text())["phases"][0]["period_ns"]
    assert periods["fat-tree"] == pytest.approx(periods["leaf-spine"] * 4 / 6, abs=1)
