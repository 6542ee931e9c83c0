"""The leaf-spine network: how its ports are numbered, where packets go, and how its time is scaled."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import gcd

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mininet.topo import Topo

from controller.errors import InputError
from testbed.scenario import choose_dilation
from testbed.topology import Wiring, leaf_spine, wire

GBPS = Fraction(800)
NS = Fraction(1000)
SHAPES = [(2, 4), (4, 4), (5, 4), (10, 4), (16, 4), (6, 1), (1, 4), (40, 8), (64, 8), (12, 3)]


def wiring(
    hosts: int,
    hosts_per_leaf: int,
    gbps_of: dict[str, Fraction] | None = None,
    ns_of: dict[str, Fraction] | None = None,
) -> Wiring:
    return wire(leaf_spine(hosts, hosts_per_leaf, GBPS, NS, gbps_of or {}, ns_of or {}))


def leaf_of(host: int, hosts_per_leaf: int) -> str:
    return f"leaf{host // hosts_per_leaf + 1}"


def test_ports_of_two_leaves_and_two_spines() -> None:
    network = wiring(4, 2)
    assert network.hosts == ("h1", "h2", "h3", "h4")
    assert network.switches == ("leaf1", "leaf2", "spine1", "spine2")
    nics = [("h1", "leaf1"), ("h2", "leaf1"), ("h3", "leaf2"), ("h4", "leaf2")]
    facing = [(leaf, host) for host, leaf in nics]
    inner = [
        *[("leaf1", "spine1"), ("spine1", "leaf1"), ("leaf1", "spine2"), ("spine2", "leaf1")],
        *[("leaf2", "spine1"), ("spine1", "leaf2"), ("leaf2", "spine2"), ("spine2", "leaf2")],
    ]
    assert [(port.node, port.peer_node) for port in network.ports] == [*nics, *facing, *inner]
    assert [port.peer for port in network.ports] == [4, 5, 6, 7, 0, 1, 2, 3, 9, 8, 11, 10, 13, 12, 15, 14]
    assert [network.host_port(host) for host in range(4)] == [4, 5, 6, 7]


@pytest.mark.parametrize(("hosts", "hosts_per_leaf"), SHAPES)
def test_every_shape_is_wired_whole(hosts: int, hosts_per_leaf: int) -> None:
    network = wiring(hosts, hosts_per_leaf)
    leaves = -(-hosts // hosts_per_leaf)
    spines = hosts_per_leaf if leaves > 1 else 0
    assert network.hosts == tuple(f"h{n + 1}" for n in range(hosts))
    assert sorted(network.switches) == sorted(
        [f"leaf{n + 1}" for n in range(leaves)] + [f"spine{n + 1}" for n in range(spines)]
    )
    assert [port.index for port in network.ports] == list(range(2 * hosts + 2 * leaves * spines))
    assert len({port.name for port in network.ports}) == len(network.ports)
    for host in range(hosts):
        nic, facing = network.ports[host], network.ports[hosts + host]
        assert (nic.node, nic.peer_node) == (network.hosts[host], leaf_of(host, hosts_per_leaf))
        assert (facing.node, facing.peer_node) == (nic.peer_node, nic.node)
        assert network.host_port(host) == facing.index
    for port in network.ports:
        peer = network.ports[port.peer]
        assert (peer.peer, peer.node, peer.peer_node) == (port.index, port.peer_node, port.node)
        assert (peer.gbps, peer.ns) == (port.gbps, port.ns) == (GBPS, NS)
        assert port.name.startswith(f"{port.node}-eth")
    between = Counter((port.node, port.peer_node) for port in network.ports[2 * hosts :])
    pairs = [(f"leaf{leaf + 1}", f"spine{spine + 1}") for leaf in range(leaves) for spine in range(spines)]
    assert between == Counter([*pairs, *[(spine, leaf) for leaf, spine in pairs]])


def test_hosts_are_in_the_order_of_their_numbers() -> None:
    # As text, h10 would come before h2.
    network = wiring(12, 3)
    assert [port.node for port in network.ports[:12]] == [f"h{n}" for n in range(1, 13)]
    assert network.ports[9].peer_node == "leaf4"


def test_the_last_leaf_may_be_part_full() -> None:
    network = wiring(10, 4)
    hosts_of = Counter(port.node for port in network.ports if port.peer_node in network.hosts)
    assert hosts_of == {"leaf1": 4, "leaf2": 4, "leaf3": 2}
    up = Counter(port.node for port in network.ports if port.peer_node.startswith("spine"))
    assert up == {"leaf1": 4, "leaf2": 4, "leaf3": 4}


@pytest.mark.parametrize("hosts", [1, 3, 4])
def test_one_leaf_needs_no_spine(hosts: int) -> None:
    network = wiring(hosts, 4)
    assert network.switches == ("leaf1",)
    assert len(network.ports) == 2 * hosts
    assert all(route.ports == (hosts + host,) for (_, host), route in network.routes.items())


@pytest.mark.parametrize(("hosts", "hosts_per_leaf"), SHAPES)
def test_every_host_is_reached_from_every_switch(hosts: int, hosts_per_leaf: int) -> None:
    network = wiring(hosts, hosts_per_leaf)
    index_of = {name: index for index, name in enumerate(network.switches)}
    assert set(network.routes) == {(s, h) for s in range(len(network.switches)) for h in range(hosts)}
    for (switch, host), route in network.routes.items():
        name, leaf = network.switches[switch], leaf_of(host, hosts_per_leaf)
        assert all(network.ports[port].node == name for port in route.ports)
        assert list(route.ports) == sorted(set(route.ports))
        if name == leaf:
            assert route.ports == (network.host_port(host),)
        elif name.startswith("spine"):
            assert [network.ports[port].peer_node for port in route.ports] == [leaf]
        else:
            spines = sorted((f"spine{n + 1}" for n in range(hosts_per_leaf)), key=index_of.__getitem__)
            assert [network.ports[port].peer_node for port in route.ports] == spines


def test_any_other_graph_of_switches_has_shortest_routes() -> None:
    """A square of switches with one diagonal, a host on each."""
    topo = Topo()
    for number in range(1, 5):
        topo.addSwitch(f"s{number}")
        topo.addHost(f"h{number}")
        topo.addLink(f"h{number}", f"s{number}", gbps=GBPS, ns=NS)
    for near, far in ((1, 2), (2, 3), (3, 4), (4, 1), (1, 3)):
        topo.addLink(f"s{near}", f"s{far}", gbps=GBPS, ns=NS)
    network = wire(topo)
    towards = {
        (network.switches[switch], network.hosts[host]): {network.ports[port].peer_node for port in route.ports}
        for (switch, host), route in network.routes.items()
    }
    assert towards == {
        **{(f"s{n}", f"h{n}"): {f"h{n}"} for n in range(1, 5)},
        **{(f"s{a}", f"h{b}"): {f"s{b}"} for a, b in ((1, 2), (2, 1), (2, 3), (3, 2), (3, 4), (4, 3), (4, 1), (1, 4))},
        **{(f"s{a}", f"h{b}"): {f"s{b}"} for a, b in ((1, 3), (3, 1))},
        **{(f"s{a}", f"h{b}"): {"s1", "s3"} for a, b in ((2, 4), (4, 2))},
    }


def test_paths_between_hosts() -> None:
    network = wiring(10, 4)

    def nodes(source: int, destination: int) -> list[str]:
        path = network.path(source, destination)
        assert path[0].index == source
        assert path[-1].peer_node == network.hosts[destination]
        return [port.peer_node for port in path]

    assert nodes(0, 3) == ["leaf1", "h4"]
    assert nodes(0, 9) == ["leaf1", "spine1", "leaf3", "h10"]
    assert nodes(9, 0) == ["leaf3", "spine1", "leaf1", "h1"]


def test_exceptions_hold_in_both_directions_of_a_link_and_nowhere_else() -> None:
    gbps_of = {"h3": Fraction(200), "leaf1-spine2": Fraction("123.4")}
    ns_of = {"h3": Fraction(5), "leaf2-spine1": Fraction(0)}
    network = wiring(6, 2, gbps_of, ns_of)
    slow = {(p.node, p.peer_node): p.gbps for p in network.ports if p.gbps != GBPS}
    assert slow == {
        ("h3", "leaf2"): 200,
        ("leaf2", "h3"): 200,
        ("leaf1", "spine2"): Fraction("123.4"),
        ("spine2", "leaf1"): Fraction("123.4"),
    }
    near = {(p.node, p.peer_node): p.ns for p in network.ports if p.ns != NS}
    assert near == {("h3", "leaf2"): 5, ("leaf2", "h3"): 5, ("leaf2", "spine1"): 0, ("spine1", "leaf2"): 0}


@pytest.mark.parametrize(
    "name", ["h0", "h7", "H1", "leaf1", "spine1", "leaf4-spine1", "leaf1-spine3", "spine1-leaf1", ""]
)
@pytest.mark.parametrize("table", ["link_gbps_of", "link_ns_of"])
def test_an_unknown_link_is_refused_with_what_links_there_are(name: str, table: str) -> None:
    exceptions = {name: Fraction(1)}
    with pytest.raises(InputError) as caught:
        wiring(6, 2, *((exceptions, {}) if table == "link_gbps_of" else ({}, exceptions)))
    line = str(caught.value)
    assert line.startswith(f"{table}: {name!r} is not a link")
    assert "h1 to h6, leaf1-spine1 to leaf3-spine2" in line
    assert "\n" not in line


def test_on_one_leaf_only_hosts_have_links() -> None:
    with pytest.raises(InputError) as caught:
        wiring(4, 4, {"leaf1-spine1": Fraction(1)})
    assert str(caught.value).endswith("h1 to h4")


def byte_ns(speed: Fraction, dilation: Fraction) -> Fraction:
    return 8 * dilation / speed


@pytest.mark.parametrize(
    ("speeds", "dilation"),
    [
        ([800], 100),
        ([800, 200], 100),
        ([200, 800], 100),
        ([800, 300], 300),
        ([400], 50),
        ([100], Fraction(25, 2)),
        ([25, 100], Fraction(25, 2)),
        ([800, 400, 100, 25], 100),
        ([Fraction(1600, 3)], Fraction(200, 3)),
        # None below 2,000 makes all whole: a byte takes 4 ns on the fastest.
        ([800, 777], 400),
        ([Fraction("123.456"), 800], 400),
        ([100, Fraction("99.999")], 50),
    ],
    ids=str,
)
def test_dilation(speeds: list[int | Fraction], dilation: int | Fraction) -> None:
    assert choose_dilation([Fraction(speed) for speed in speeds]) == dilation


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(st.integers(1, 1600).map(Fraction), st.fractions(1, 1600, max_denominator=1000)),
        min_size=1,
        max_size=4,
    )
)
def test_the_dilation_is_the_smallest_that_makes_bytes_whole(speeds: list[Fraction]) -> None:
    dilation = choose_dilation(speeds)
    times = [byte_ns(speed, dilation) for speed in speeds]
    if any(time.denominator > 1 for time in times):
        assert min(times) == 4
        return
    # With a smaller one, all byte times would be these divided by one whole number.
    whole = gcd(*(int(time) for time in times))
    assert min(times) == 4 or all(dilation / n < 1 for n in range(2, whole + 1) if whole % n == 0)
    assert dilation <= 2000
