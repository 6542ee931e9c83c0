"""The fabric's tables: salts, port numbers, and that any switch built from them sends packets the same way."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from itertools import product

import pytest
from mininet.topo import Topo

from testbed.fabric.tables import OnePort, Spread, SwitchTables, fabric_tables, mix32
from testbed.topology import Port, Route, Wiring, leaf_spine, wire
from tests import oracle
from tests.conftest import REPOSITORY

GBPS = Fraction(800)
NS = Fraction(1000)
SALT = 0xDEADBEEF
FRAME_ENTROPY_PORT, FRAME_UDP_PORT = 49152, 4793
SHAPES = [(4, 2), (5, 4), (10, 4), (4, 4), (6, 1), (40, 8)]


def wiring(hosts: int, hosts_per_leaf: int) -> Wiring:
    return wire(leaf_spine(hosts, hosts_per_leaf, GBPS, NS, {}, {}))


def square() -> Wiring:
    """Four switches in a square, a host on each: two ways to the far corner."""
    topo = Topo()
    for number in range(1, 5):
        topo.addSwitch(f"s{number}")
        topo.addHost(f"h{number}")
        topo.addLink(f"h{number}", f"s{number}", gbps=GBPS, ns=NS)
    for near, far in ((1, 2), (2, 3), (3, 4), (4, 1)):
        topo.addLink(f"s{near}", f"s{far}", gbps=GBPS, ns=NS)
    return wire(topo)


def test_two_leaves_and_two_spines_by_hand() -> None:
    # Ports as test_topology has them: 4 to 7 face h1 to h4; then leaf1-spine1 8/9, leaf1-spine2 10/11, leaf2-spine1
    # 12/13, leaf2-spine2 14/15.
    leaf1, leaf2, spine1, spine2 = fabric_tables(wiring(4, 2), SALT).switches
    assert leaf1 == SwitchTables(
        0,
        "leaf1",
        mix32(SALT),
        (4, 5, 8, 10),
        {0: OnePort(4), 1: OnePort(5), 2: Spread(0, 2), 3: Spread(0, 2)},
        (8, 10),
    )
    assert leaf2.ports == (6, 7, 12, 14)
    assert leaf2.routes == {0: Spread(0, 2), 1: Spread(0, 2), 2: OnePort(6), 3: OnePort(7)}
    assert leaf2.members == (12, 14)
    assert (spine1.ports, spine1.members) == ((9, 13), ())
    assert spine1.routes == {0: OnePort(9), 1: OnePort(9), 2: OnePort(13), 3: OnePort(13)}
    assert (spine2.index, spine2.name, spine2.ports) == (3, "spine2", (11, 15))


def test_salts_are_the_oracle_s() -> None:
    # Value from a C program with uint32_t (test_oracle.py).
    assert mix32(0xDEADBEEF) == 0xE628C683
    switches = fabric_tables(wiring(10, 4), SALT).switches
    assert switches[0].salt == 0xE628C683
    assert [switch.salt for switch in switches] == [oracle.mix32(SALT ^ node) for node in range(7)]
    assert len({switch.salt for switch in switches}) == 7
    for x in (0, 1, 0xFFFFFFFF, 0x80000000, 12345):
        assert mix32(x) == oracle.mix32(x) == oracle.mix32(x)


@pytest.mark.parametrize(("hosts", "hosts_per_leaf"), SHAPES)
def test_port_numbers_count_from_one_in_the_order_of_the_indices(hosts: int, hosts_per_leaf: int) -> None:
    network = wiring(hosts, hosts_per_leaf)
    switches = fabric_tables(network, SALT).switches
    assert [switch.name for switch in switches] == list(network.switches)
    assert sorted(port for switch in switches for port in switch.ports) == list(range(hosts, len(network.ports)))
    for switch in switches:
        own = [port.index for port in network.ports if port.node == switch.name]
        assert [switch.number_of(port) for port in own] == list(range(1, len(own) + 1))
        assert [switch.port_of(number) for number in range(1, len(own) + 1)] == own
        strangers = [port.index for port in network.ports if port.node != switch.name]
        for stranger in [*strangers, -1, len(network.ports)]:
            with pytest.raises(ValueError, match=f"port {stranger} is none of {switch.name}'s"):
                switch.number_of(stranger)
        for number in (-1, 0, len(own) + 1):
            with pytest.raises(ValueError, match=f"ports 1 to {len(own)}, not {number}"):
                switch.port_of(number)


@pytest.mark.parametrize(
    "network", [*(wiring(*shape) for shape in SHAPES), square()], ids=[*map(str, SHAPES), "square"]
)
def test_each_route_is_the_wiring_s_in_its_order(network: Wiring) -> None:
    for switch in fabric_tables(network, SALT).switches:
        assert list(switch.routes) == list(range(len(network.hosts)))
        for host, way in switch.routes.items():
            expected = network.routes[switch.index, host].ports
            if isinstance(way, Spread):
                assert switch.members[way.first : way.first + way.ways] == expected
                assert way.ways > 1
            else:
                assert (way.port,) == expected


@pytest.mark.parametrize("hosts", [9, 64])
def test_a_leaf_has_one_group_however_many_hosts_lie_behind_it(hosts: int) -> None:
    for switch in fabric_tables(wiring(hosts, 4), SALT).switches:
        assert len(switch.members) == (4 if switch.name.startswith("leaf") else 0)


def test_different_groups_of_a_switch_lie_one_after_the_other() -> None:
    """A switch with two pairs of ways that share one port."""
    ports = tuple(
        Port(index, f"p{index}", "s" if index > 1 else f"h{index + 1}", 0, "x", GBPS, NS) for index in range(5)
    )
    routes = {(0, 0): Route((2, 3)), (0, 1): Route((3, 4))}
    (switch,) = fabric_tables(Wiring(("h1", "h2"), ("s",), ports, routes), SALT).switches
    assert switch.routes == {0: Spread(0, 2), 1: Spread(2, 2)}
    assert switch.members == (2, 3, 3, 4)


def test_a_host_that_cannot_be_reached_has_no_route() -> None:
    network = wiring(4, 2)
    routes = {where: route for where, route in network.routes.items() if where != (0, 3)}
    switch = fabric_tables(Wiring(network.hosts, network.switches, network.ports, routes), SALT).switches[0]
    assert list(switch.routes) == [0, 1, 2]


@pytest.mark.parametrize("shape", SHAPES)
def test_packets_go_where_the_oracle_sends_them(shape: tuple[int, int]) -> None:
    """Followed hop by hop, with the tables alone to say which port is next."""
    network = wiring(*shape)
    switches = {switch.name: switch for switch in fabric_tables(network, SALT).switches}
    hosts = len(network.hosts)
    model = oracle.Network(
        hosts,
        [oracle.Port(port.node, port.peer, port.peer_node, 1, 0) for port in network.ports],
        {(network.switches[switch], host): route.ports for (switch, host), route in network.routes.items()},
        {name: index for index, name in enumerate(network.switches)},
    )
    taken = set()
    for source, destination, value in product(range(min(hosts, 6)), range(hosts), (0, 5, 63)):
        if source == destination:
            continue
        path = [source]
        while (port := network.ports[path[-1]]).peer_node != network.hosts[destination]:
            switch = switches[port.peer_node]
            way = switch.routes[destination]
            if isinstance(way, OnePort):
                path.append(way.port)
            else:
                # As a switch does it; the oracle's own hash is over the same salt.
                ports = (FRAME_ENTROPY_PORT + value) << 16 | FRAME_UDP_PORT
                hashed = mix32(
                    (switch.salt + source * 0x9E3779B1 + destination * 0x85EBCA77 + ports * 0xC2B2AE3D) & 0xFFFFFFFF
                )
                path.append(switch.members[way.first + (hashed * way.ways >> 32)])
            assert len(path) < 5
        assert tuple(path) == oracle.path_of(model, source, destination, value, SALT)
        taken |= set(path)
    if hosts > shape[1] > 1:
        # It would prove little if no group had been used.
        assert len(taken & set(switches["leaf1"].members)) > 1


def test_tables_need_neither_mininet_nor_ebpf_nor_grpc() -> None:
    program = (
        "import sys, testbed.fabric.tables\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('mininet', 'grpc', 'p4') or 'nic' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
