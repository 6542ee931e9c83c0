"""The oracle's own account of one packet: where it was when, and who was served while it waited.

It reads nothing but what tests/oracle.py logs of each port (Result.hops). Times in kernel ns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.oracle import Network, Result

Key = tuple[int, int, int]
Flows = Counter[tuple[int, int]]
"""(source, destination) to ns of service."""


@dataclass(frozen=True)
class Stage:
    """A packet at one port: `ahead` is what the port served between its arrival and its own service."""

    port: int
    arrival: int
    start: int
    departure: int
    far_end: int
    ahead: Flows


def last_packet(result: Result, background_from: int) -> tuple[Key, int]:
    """(source, destination, psn) of the demand's packet that arrives last, the lowest of several; and when."""
    mine = {key: time for key, time in result.arrivals.items() if key[2] < background_from}
    end = max(mine.values())
    return min(key for key, time in mine.items() if time == end), end


def stages(network: Network, result: Result, key: Key) -> list[Stage]:
    """Of a packet that arrived, in the order of its way."""
    found = []
    for index, (port, hops) in enumerate(zip(network.ports, result.hops, strict=True)):
        for place, hop in enumerate(hops):
            if hop[3:] != key:
                continue
            start = hop.departure - port.packet_ns(hop.size)
            ahead: Flows = Counter()
            for other in hops[:place]:
                begun = other.departure - port.packet_ns(other.size)
                inside = min(other.departure, start) - max(begun, hop.arrival)
                if inside > 0:
                    ahead[other.source, other.destination] += inside
            found.append(Stage(index, hop.arrival, start, hop.departure, hop.departure + port.propagation, ahead))
    return sorted(found, key=lambda stage: stage.start)
