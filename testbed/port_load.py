"""What crosses each port of a network whose switches spread every destination's packets evenly over their ways."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.topology import Wiring

__all__ = ["even_shares"]


def even_shares(wiring: Wiring, wire_bytes: NDArray[Any]) -> dict[int, Fraction]:
    """Bytes by port, for all ports between switches that anything crosses. ``wire_bytes``: sender x receiver.

    Equal parts take each of the shortest ways, however fast its links are: as hashing does with enough packets.
    """
    hosts = len(wiring.hosts)
    switch_of = {name: index for index, name in enumerate(wiring.switches)}
    access = np.array([switch_of[port.peer_node] for port in wiring.ports[:hosts]])
    shares: dict[int, Fraction] = {}
    for target in np.unique(access).tolist():
        to_target = wire_bytes[:, access == target].sum(axis=1)
        waiting = {
            source: Fraction(int(to_target[access == source].sum()))
            for source in np.unique(access).tolist()
            if source != target
        }
        representative = int(np.flatnonzero(access == target)[0])  # all its hosts have the same ways
        while waiting:  # all that is so many links away moves on one; a way that is shorter passes here again
            moved: dict[int, Fraction] = {}
            for switch, amount in waiting.items():
                if not amount or switch == target:
                    continue
                ways = wiring.routes[switch, representative].ports
                for way in ways:
                    shares[way] = shares.get(way, Fraction(0)) + amount / len(ways)
                    after = switch_of[wiring.ports[way].peer_node]
                    moved[after] = moved.get(after, Fraction(0)) + amount / len(ways)
            waiting = moved
    return shares
