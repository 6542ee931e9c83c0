"""Networks for the oracle, laid out by hand: small ones for its own tests, and fat trees to hold the testbed's against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from tests.oracle import Network, Port


def star(
    hosts: int,
    nic_time: Sequence[Fraction | int] | None = None,
    leaf_time: Sequence[Fraction | int] | None = None,
    delay: Sequence[int] | None = None,
) -> Network:
    """Hosts on one leaf: ns per byte of each NIC and of each leaf port (1), propagation of each link in ns (10)."""
    nic_time, leaf_time, delay = nic_time or [1] * hosts, leaf_time or [1] * hosts, delay or [10] * hosts
    nics = [Port(f"h{h}", hosts + h, "leaf", nic_time[h], delay[h]) for h in range(hosts)]
    leaf = [Port("leaf", h, f"h{h}", leaf_time[h], delay[h]) for h in range(hosts)]
    return Network(hosts, nics + leaf, {("leaf", h): (hosts + h,) for h in range(hosts)}, {"leaf": 0})


def clos(far_delay: int = 10) -> Network:
    """Hosts 0, 1 on leaf l0 and 2, 3 on l1; spines s0 and s1; 1 ns per byte; 10 ns a link, far_delay to or from s1.

    Ports: NICs 0..3, leaf to host 4..7, 8 l0-s0, 9 l0-s1, 10 l1-s0, 11 l1-s1, 12 s0-l0, 13 s0-l1, 14 s1-l0, 15 s1-l1.
    """
    ports = [Port(f"h{h}", 4 + h, f"l{h // 2}", 1, 10) for h in range(4)]
    ports += [Port(f"l{h // 2}", h, f"h{h}", 1, 10) for h in range(4)]
    pairs = [(a, b) for a in range(2) for b in range(2)]
    ports += [Port(f"l{leaf}", 12 + 2 * spine + leaf, f"s{spine}", 1, (10, far_delay)[spine]) for leaf, spine in pairs]
    ports += [Port(f"s{spine}", 8 + 2 * leaf + spine, f"l{leaf}", 1, 10) for spine, leaf in pairs]
    routes: dict[tuple[str, int], tuple[int, ...]] = {}
    for host in range(4):
        home = host // 2
        routes[f"l{home}", host] = (4 + host,)
        routes[f"l{1 - home}", host] = (8 + 2 * (1 - home), 9 + 2 * (1 - home))
        routes["s0", host] = (12 + home,)
        routes["s1", host] = (14 + home,)
    return Network(4, ports, routes, {"l0": 0, "l1": 1, "s0": 2, "s1": 3})


def fat_tree(hosts: int, k: int, link: Callable[[str], tuple[Fraction | int, int]]) -> Network:
    """k pods of k/2 edge and k/2 aggregation switches, as far as there are hosts, and the cores; several pods have any.

    `link` gives ns per byte and the delay in ns of a link by its name: "h1", "edge1-agg2", "agg1-core3". A packet goes up as
    far as it must: by any aggregation switch of the pod, and from it by any of its cores; down there is one way.
    Ports from 2 hosts on: of each aggregation switch in turn the links to its edges and to its cores, the lower end first.
    Switches count as aggregation, cores, edges in the hash.
    """
    half = k // 2
    edges = -(-hosts // half)
    pods = -(-edges // half)
    assert 1 < pods <= k
    ports = [Port(f"h{h + 1}", hosts + h, f"edge{h // half + 1}", *link(f"h{h + 1}")) for h in range(hosts)]
    ports += [Port(port.peer_node, h, port.node, port.byte_time, port.propagation) for h, port in enumerate(ports)]
    place: dict[tuple[str, str], int] = {}

    def connect(low: str, high: str) -> None:
        at = len(ports)
        place[low, high], place[high, low] = at, at + 1
        ports.extend((Port(low, at + 1, high, *link(f"{low}-{high}")), Port(high, at, low, *link(f"{low}-{high}"))))

    for agg in range(pods * half):
        pod, column = divmod(agg, half)
        for edge in range(pod * half, min(edges, (pod + 1) * half)):
            connect(f"edge{edge + 1}", f"agg{agg + 1}")
        for core in range(column * half, (column + 1) * half):
            connect(f"agg{agg + 1}", f"core{core + 1}")

    routes: dict[tuple[str, int], tuple[int, ...]] = {}
    for host in range(hosts):
        home, home_pod = host // half, host // half // half
        for edge in range(edges):
            up = (place[f"edge{edge + 1}", f"agg{edge // half * half + n + 1}"] for n in range(half))
            routes[f"edge{edge + 1}", host] = (hosts + host,) if edge == home else tuple(up)
        for agg in range(pods * half):
            pod, column = divmod(agg, half)
            up = (place[f"agg{agg + 1}", f"core{column * half + n + 1}"] for n in range(half))
            down = (f"agg{agg + 1}", f"edge{home + 1}")
            routes[f"agg{agg + 1}", host] = (place[down],) if pod == home_pod else tuple(up)
        for core in range(half * half):
            routes[f"core{core + 1}", host] = (place[f"core{core + 1}", f"agg{home_pod * half + core // half + 1}"],)
    names = [f"agg{n + 1}" for n in range(pods * half)] + [f"core{n + 1}" for n in range(half * half)]
    names += [f"edge{n + 1}" for n in range(edges)]
    return Network(hosts, ports, routes, {name: index for index, name in enumerate(names)})
