"""Topologies as Mininet Topo objects, and the wiring that any of them comes down to."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Final

from controller.errors import CannotRunError, InputError

if TYPE_CHECKING:
    from mininet.topo import Topo

__all__ = [
    "TOPOLOGIES",
    "Port",
    "Route",
    "Wiring",
    "fat_tree",
    "leaf_spine",
    "named_links",
    "add_server_links",
    "smallest_fat_tree",
    "wire",
]


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
    topo = _empty()
    leaves = -(-hosts // hosts_per_leaf)
    spines = hosts_per_leaf if leaves > 1 else 0
    for leaf in range(leaves):
        topo.addSwitch(f"leaf{leaf + 1}")
    for spine in range(spines):
        topo.addSwitch(f"spine{spine + 1}")
    links = _host_links(topo, hosts, hosts_per_leaf, "leaf")
    for leaf in range(leaves):
        for spine in range(spines):
            _between(links, f"leaf{leaf + 1}", f"spine{spine + 1}")
    _add_links(topo, links, link_gbps, link_ns, link_gbps_of, link_ns_of)
    return topo


def smallest_fat_tree(hosts: int) -> int:
    """The smallest even k whose fat tree holds so many hosts: k^3 / 4 of them."""
    k = 2
    while k**3 // 4 < hosts:
        k += 2
    return k


def fat_tree(
    hosts: int,
    fat_tree_k: int,
    link_gbps: Fraction,
    link_ns: Fraction,
    link_gbps_of: Mapping[str, Fraction],
    link_ns_of: Mapping[str, Fraction],
) -> Topo:
    """Three tiers of switches with k ports (Al-Fares, Loukissas, Vahdat, SIGCOMM 2008), filled from the first pod on.

    Hosts are h1 to hN, switches edge1.., agg1.. and core1... A pod has k/2 aggregation switches and up to k/2 edge
    switches of k/2 hosts; the n-th of a pod's aggregation switches has links to the n-th k/2 of all (k/2)^2 cores.
    Pods and edge switches without hosts are left out. Hosts of one pod need no core, and hosts of one edge switch no
    other. In all other cases no upper switch can be left out: the first pod, and its first edge switch, are full.
    So above each edge switch and each pod there are as many links as it has room for hosts, and nothing is
    oversubscribed. Exceptions and InputError as for ``leaf_spine``; also for a k that is odd, or too small.
    """
    if fat_tree_k < 2 or fat_tree_k % 2:
        raise InputError(f"fat_tree_k is {fat_tree_k}: it must be even, and 2 or more")
    if fat_tree_k**3 // 4 < hosts:
        raise InputError(
            f"fat_tree_k is {fat_tree_k}, which holds {fat_tree_k**3 // 4} hosts of {hosts}: give "
            f"{smallest_fat_tree(hosts)} or more, or leave it out"
        )
    topo = _empty()
    half = fat_tree_k // 2
    edges = -(-hosts // half)
    pods = -(-edges // half)
    aggregations = pods * half if edges > 1 else 0
    cores = half * half if pods > 1 else 0
    for kind, number in (("edge", edges), ("agg", aggregations), ("core", cores)):
        for index in range(number):
            topo.addSwitch(f"{kind}{index + 1}")
    links = _host_links(topo, hosts, half, "edge")
    for edge in range(edges if aggregations else 0):
        for place in range(half):
            _between(links, f"edge{edge + 1}", f"agg{edge // half * half + place + 1}")
    for aggregation in range(aggregations if cores else 0):
        for place in range(half):
            _between(links, f"agg{aggregation + 1}", f"core{aggregation % half * half + place + 1}")
    _add_links(topo, links, link_gbps, link_ns, link_gbps_of, link_ns_of)
    return topo


TOPOLOGIES: Final[dict[str, Callable[..., Topo]]] = {"leaf-spine": leaf_spine, "fat-tree": fat_tree}
"""By the name that an experiment's key ``topology`` gives; the key that decides its size is an argument."""


def add_server_links(topo: Topo, hosts: int, gpus_per_server: int, gbps: Fraction, ns: Fraction) -> None:
    """Adds what is inside servers: a second port of each host, n1 to nN, to the switch server1.. of its server.

    As far as routes go, that is a network of its own: nothing leads from it to the hosts' other ports.
    """
    for host in range(hosts):
        server = f"server{host // gpus_per_server + 1}"
        if not host % gpus_per_server:
            topo.addSwitch(server)
        topo.addHost(f"n{host + 1}")
        topo.addLink(f"n{host + 1}", server, gbps=gbps, ns=ns)


def _empty() -> Topo:
    try:
        from mininet.topo import Topo
    except ImportError:
        raise CannotRunError(
            "mininet is missing: make setup installs it, with a virtual environment that sees it"
        ) from None

    return Topo()


def _host_links(topo: Topo, hosts: int, hosts_per_switch: int, kind: str) -> dict[str, tuple[str, str]]:
    """Adds the hosts; the links to their switches, by name, in order."""
    for host in range(hosts):
        topo.addHost(f"h{host + 1}")
    return {f"h{host + 1}": (f"h{host + 1}", f"{kind}{host // hosts_per_switch + 1}") for host in range(hosts)}


def _between(links: dict[str, tuple[str, str]], near: str, far: str) -> None:
    links[f"{near}-{far}"] = near, far


def _add_links(
    topo: Topo,
    links: Mapping[str, tuple[str, str]],
    link_gbps: Fraction,
    link_ns: Fraction,
    link_gbps_of: Mapping[str, Fraction],
    link_ns_of: Mapping[str, Fraction],
) -> None:
    for table, exceptions in (("link_gbps_of", link_gbps_of), ("link_ns_of", link_ns_of)):
        for name in exceptions:
            if name not in links:
                raise InputError(f"{table}: {name!r} is not a link of this topology: links are {named_links(links)}")
    for name, (near, far) in links.items():
        topo.addLink(near, far, gbps=link_gbps_of.get(name, link_gbps), ns=link_ns_of.get(name, link_ns))


def named_links(names: Iterable[str]) -> str:
    """Of names in order the first and the last of each kind: "h1 to h6, leaf1-spine1 to leaf3-spine2"."""
    ends: dict[str, tuple[str, str]] = {}
    for name in names:
        kind = re.sub(r"\d+", "", name)
        ends[kind] = (ends[kind][0] if kind in ends else name, name)
    return ", ".join(f"{first} to {last}" for first, last in ends.values())


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
        port = self.ports[source]
        path = [port]
        while port.peer_node != self.hosts[destination]:
            port = self.ports[self.routes[self._switch_of[port.peer_node], destination].ports[0]]
            path.append(port)
        return path

    @cached_property
    def _switch_of(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.switches)}

    @cached_property
    def longest_path(self) -> int:
        """Links of the longest shortest path between two hosts: two a tier; 2 of a single host."""
        first_of: dict[str, int] = {}
        for host in range(len(self.hosts)):
            first_of.setdefault(self.ports[host].peer_node, host)
        apart = [
            len(self.path(a, b))
            for at, a in first_of.items()
            for b in first_of.values()
            if a != b and (self._switch_of[at], b) in self.routes
        ]
        return max(apart, default=2)


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
