"""The fabric described once, for any kind of switch: what each of them forwards by, from the wiring and a salt.

Plain numbers and names: no Mininet, no eBPF, no P4. Ports are the wiring's (testbed/topology.py), counted over all
switches; hosts and switches are their places in the wiring. A switch that counts its own ports, as BMv2 does, numbers
them 1 to n in the order of those indices (SwitchTables.number_of): neither the order in which interfaces were made nor
their names matter.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from testbed.topology import Wiring

__all__ = ["FabricTables", "OnePort", "Spread", "SwitchTables", "fabric_tables", "mix32"]


@dataclass(frozen=True)
class OnePort:
    """All packets to a host leave by one port."""

    port: int


@dataclass(frozen=True)
class Spread:
    """Packets to a host are spread over a group: of ``SwitchTables.members``, ``ways`` from ``first`` on.

    A packet with hash h, of 32 bits, takes member first + (h * ways >> 32).
    """

    first: int
    ways: int


@dataclass(frozen=True)
class SwitchTables:
    """What one switch forwards by."""

    index: int
    """Place in the wiring's switches."""
    name: str
    salt: int
    """Of its path hash, 32 bits: differs from switch to switch, so that tiers do not polarise, and from seed to seed."""
    ports: tuple[int, ...]
    """All of its own, ascending."""
    routes: dict[int, OnePort | Spread]
    """By host, ascending. A host that is missing cannot be reached."""
    members: tuple[int, ...]
    """The ports of its groups, one group after the other; groups of the same ports are one."""

    def number_of(self, port: int) -> int:
        """A port's number among the switch's own, from 1. Raises ValueError for a port of another switch."""
        place = bisect_left(self.ports, port)
        if self.ports[place : place + 1] != (port,):
            raise ValueError(f"port {port} is none of {self.name}'s")
        return place + 1

    def port_of(self, number: int) -> int:
        """The inverse of ``number_of``."""
        if not 1 <= number <= len(self.ports):
            raise ValueError(f"{self.name} has ports 1 to {len(self.ports)}, not {number}")
        return self.ports[number - 1]


@dataclass(frozen=True)
class FabricTables:
    """What all switches forward by, in the order of the wiring's switches."""

    switches: tuple[SwitchTables, ...]


def fabric_tables(wiring: Wiring, path_salt: int) -> FabricTables:
    """``path_salt``: the experiment's, 32 bits (testbed/job.py draws it from the seed)."""
    ports: dict[str, list[int]] = {name: [] for name in wiring.switches}
    for port in wiring.ports:
        if port.node in ports:
            ports[port.node].append(port.index)
    return FabricTables(
        tuple(_switch(wiring, index, path_salt, sorted(ports[name])) for index, name in enumerate(wiring.switches))
    )


def _switch(wiring: Wiring, index: int, path_salt: int, ports: list[int]) -> SwitchTables:
    first_of: dict[tuple[int, ...], int] = {}
    members: list[int] = []
    routes: dict[int, OnePort | Spread] = {}
    for host in range(len(wiring.hosts)):
        route = wiring.routes.get((index, host))
        if route is None or not route.ports:
            continue
        if len(route.ports) == 1:
            routes[host] = OnePort(route.ports[0])
            continue
        if route.ports not in first_of:
            first_of[route.ports] = len(members)
            members.extend(route.ports)
        routes[host] = Spread(first_of[route.ports], len(route.ports))
    return SwitchTables(index, wiring.switches[index], mix32(path_salt ^ index), tuple(ports), routes, tuple(members))


def mix32(x: int) -> int:
    """32-bit finaliser with low bias ("lowbias32", Chris Wellons, Prospecting for Hash Functions, 2018)."""
    x ^= x >> 16
    x = x * 0x7FEB352D & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16
