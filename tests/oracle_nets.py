"""Small networks for the oracle's own tests."""

from __future__ import annotations

from collections.abc import Sequence
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
