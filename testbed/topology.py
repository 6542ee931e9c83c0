"""Topologies as Mininet Topo objects, and the wiring that any of them comes down to."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from controller.errors import CannotRunError, InputError

if TYPE_CHECKING:
    from mininet.topo import Topo

__all__ = ["Port", "Route", "Wiring", "leaf_spine", "wire"]


def leaf_spine(
    hosts: int,
    hosts_per_leaf: int,
    link_gbps: Fraction,
    link_ns: Fraction,
    link_gbps_of: Mapping[str, Fraction],
    link_ns_of: Mapping[str, Fraction],
) -> Topo:
    """Two tiers without oversubscription: as many spines as hosts a leaf. The last leaf may be part full.

    Hosts are h1 to hN, switches leaf1.. and spine1... The exceptions name a link: a host (its only link), or
    "leaf1-spine2". Raises InputError for a name that is no link.
    """
    try:
        from mininet.topo import Topo
    except ImportError:
        raise CannotRunError(
            "mininet is missing: make setup installs it, with a virtual environment that sees it"
        ) from None

    topo = Topo()
    leaves = -(-hosts // hosts_per_leaf)
    spines = hosts_per_leaf if leaves > 1 else 0
    links: dict[str, tuple[str, str]] = {}
    for leaf in range(leaves):
        topo.addSwitch(f"leaf{leaf + 1}")
    for spine in range(spines):
        topo.addSwitch(f"spine{spine + 1}")
    for host in range(hosts):
        topo.addHost(f"h{host + 1}")
        links[f"h{host + 1}"] = (f"h{host + 1}", f"leaf{host // hosts_per_leaf + 1}")
    for leaf in range(leaves):
        for spine in range(spines):
            pair = (f"leaf{leaf + 1}", f"spine{spine + 1}")
            links["-".join(pair)] = pair
    for table, exceptions in (("link_gbps_of", link_gbps_of), ("link_ns_of", link_ns_of)):
        for name in exceptions:
            if name not in links:
                known = f"h1 to h{hosts}" + (f", leaf1-spine1 to leaf{leaves}-spine{spines}" if spines else "")
                raise InputError(f"{table}: {name!r} is not a link of this topology: links are {known}")
    for name, (near, far) in links.items():
        topo.addLink(near, far, gbps=link_gbps_of.get(name, link_gbps), ns=link_ns_of.get(name, link_ns))
    return topo


@dataclass(frozen=True)
class Port:
    """One end of a link, seen as the queue that sends into it. Ports 0 to N-1 are the hosts' NICs."""

    index: int
    name: str
    """Of the interface, such as leaf1-eth3."""
    node: str
    peer: int
    """Port at the other end."""
    peer_node: str
    gbps: Fraction
    ns: Fraction
    """Propagation delay."""


@dataclass(frozen=True)
class Route:
    """Ports of a switch that lie on a shortest path to a host, in the order of their indices."""

    ports: tuple[int, ...]


@dataclass(frozen=True)
class Wiring:
    """A topology as the fabric needs it: numbered ports, and routes of every switch to every host."""

    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    ports: tuple[Port, ...]
    routes: dict[tuple[int, int], Route]
    """(index of the switch, index of the host) to the ports."""

    def host_port(self, host: int) -> int:
        """The switch port that faces a host."""
        return self.ports[host].peer

    def path(self, source: int, destination: int) -> list[Port]:
        """Output ports of the first shortest path from one host to another, the NIC first."""
        index_of = {name: index for index, name in enumerate(self.switches)}
        port = self.ports[source]
        path = [port]
        while port.peer_node != self.hosts[destination]:
            port = self.ports[self.routes[index_of[port.peer_node], destination].ports[0]]
            path.append(port)
        return path


def wire(topo: Topo) -> Wiring:
    """Numbers the ports of a topology and computes its shortest-path routes.

    NICs come first, then the switch ports that face hosts, both in the order of the hosts, then all others
    in the order of the links.
    """
    hosts = tuple(topo.hosts(sort=True))
    switches = tuple(topo.switches(sort=True))
    ends: list[tuple[str, str, str, Fraction, Fraction]] = []
    access: dict[str, int] = {}
    pairs: list[tuple[int, int]] = []
    links = [(a, b, info) for a, b, info in topo.links(sort=False, withInfo=True)]
    by_host = {info["node1"]: info for _, _, info in links if info["node1"] in hosts}
    for host in hosts:
        info = by_host[host]
        access[host] = len(ends)
        ends.append((host, f"{host}-eth{info['port1']}", info["node2"], info["gbps"], info["ns"]))
    for number, host in enumerate(hosts):
        info = by_host[host]
        pairs.append((number, len(ends)))
        ends.append((info["node2"], f"{info['node2']}-eth{info['port2']}", host, info["gbps"], info["ns"]))
    for _, _, info in links:
        if info["node1"] in access:
            continue
        pairs.append((len(ends), len(ends) + 1))
        for own, other in (("1", "2"), ("2", "1")):
            node, peer = info[f"node{own}"], info[f"node{other}"]
            ends.append((node, f"{node}-eth{info[f'port{own}']}", peer, info["gbps"], info["ns"]))
    peer_of = dict(pairs) | {b: a for a, b in pairs}
    ports = tuple(
        Port(index, name, node, peer_of[index], peer, gbps, ns)
        for index, (node, name, peer, gbps, ns) in enumerate(ends)
    )
    return Wiring(hosts, switches, ports, _routes(hosts, switches, ports))


def _routes(hosts: tuple[str, ...], switches: tuple[str, ...], ports: tuple[Port, ...]) -> dict[tuple[int, int], Route]:
    """Breadth first from the switch of each host: all hosts of one switch share the rest of the way."""
    index_of = {name: index for index, name in enumerate(switches)}
    outward: dict[str, list[Port]] = {name: [] for name in switches}
    for port in ports:
        if port.node in index_of:
            outward[port.node].append(port)
    toward: dict[str, dict[int, Route]] = {}
    routes: dict[tuple[int, int], Route] = {}
    for host_index in range(len(hosts)):
        access = ports[ports[host_index].peer]
        if access.node not in toward:
            toward[access.node] = _toward(access.node, outward, index_of)
        for switch, route in toward[access.node].items():
            routes[switch, host_index] = route
        routes[index_of[access.node], host_index] = Route((access.index,))
    return routes


def _toward(target: str, outward: dict[str, list[Port]], index_of: dict[str, int]) -> dict[int, Route]:
    distance = {target: 0}
    waiting = deque([target])
    while waiting:
        node = waiting.popleft()
        for port in outward[node]:
            if port.peer_node in index_of and port.peer_node not in distance:
                distance[port.peer_node] = distance[node] + 1
                waiting.append(port.peer_node)
    return {
        index_of[node]: Route(tuple(p.index for p in outward[node] if distance.get(p.peer_node, far + 1) == far - 1))
        for node, far in distance.items()
        if far
    }
