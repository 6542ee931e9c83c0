"""An independent discrete-event model of the fabric's queues, to compare the kernel's measurements with.

It shares no code with the testbed. Every time is an integer number of kernel nanoseconds (fabric nanoseconds times the
dilation); every size is in bytes. The rules, in full:

* A port is a FIFO of unlimited depth, in order of arrival, store and forward. Service starts at the later of the
  packet's arrival and the end of the packet before it, and lasts floor(bytes * byte_time). The packet is whole at the
  far end one propagation after its departure, and is at that instant at the next output port, or at its host.
* The queue of a port is what it has accepted and not yet wholly sent, the packet in service counted whole; a packet
  that departs at the very instant of an arrival has left.
* Where packets of different input ports reach one output port in the same nanosecond, or two paced flows of one host
  leave the pacer in the same nanosecond, the order is not defined. The model takes the lowest input port (or the flow
  given first) first, and counts the tie, so that the caller can report it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, partial
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import itemgetter
from typing import Literal, NamedTuple

Discipline = Literal["rr", "rate"]
Spraying = Literal["ops", "ecmp"]
_Packet = tuple[int, int, int, int, tuple[int, ...]]  # source, destination, psn, bytes, output ports from the NIC on

_MASK = 0xFFFFFFFF
_UDP_DESTINATION = 4793
_UDP_SOURCE = 49152  # UDP source port of entropy value 0
_TURNS = 64  # packets of one cycle of entropy values


@dataclass(frozen=True, slots=True)
class Port:
    """The end of a link at `node`, which sends to `peer_node`, whose end of the same link is port `peer_port`.

    byte_time is in ns per byte, propagation in ns.
    """

    node: str
    peer_port: int
    peer_node: str
    byte_time: Fraction | int
    propagation: int

    def packet_ns(self, size: int) -> int:
        """Time on the wire, in ns, of a packet of `size` bytes."""
        return size * self.byte_time.numerator // self.byte_time.denominator


@dataclass(frozen=True, slots=True)
class Flow:
    """One message: `packets` packets of the MTU, but the last, which has `last_bytes` bytes.

    ready_ns is counted from the start of the source (ns). steps is the rate of the pacer in units of 2**-32 of the
    NIC's line rate; 0 means unpaced. The discipline "rr" does not look at steps.
    """

    source: int
    destination: int
    ready_ns: int
    packets: int
    last_bytes: int
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Network:
    """The wiring. Ports 0..hosts-1 are the NICs; port hosts+h is the leaf's port that faces host h; then the others.

    routes: (switch name, destination host) -> output ports in ascending order. switches: switch name -> its index in
    the hash.
    """

    hosts: int
    ports: Sequence[Port]
    routes: Mapping[tuple[str, int], tuple[int, ...]]
    switches: Mapping[str, int]

    def __post_init__(self) -> None:
        """Refuse a wiring that the model would quietly misread."""
        for index, port in enumerate(self.ports):
            peer = self.ports[port.peer_port]
            if peer.peer_port != index or peer.node != port.peer_node or peer.peer_node != port.node:
                raise ValueError(f"port {index} and its peer {port.peer_port} disagree")
            if index < self.hosts and port.peer_port != self.hosts + index:
                raise ValueError(f"the NIC {index} does not face port {self.hosts + index}")
            if port.byte_time <= 0 or port.propagation < 0:
                raise ValueError(f"port {index} has no valid speed or delay")
        for (switch, destination), ways in self.routes.items():
            if not ways or list(ways) != sorted(set(ways)) or any(self.ports[way].node != switch for way in ways):
                raise ValueError(f"bad route from {switch} to host {destination}: {ways}")


class Hop(NamedTuple):
    """One packet at one output port: whole there at arrival (ns), wholly sent at departure (ns), size in bytes."""

    arrival: int
    departure: int
    size: int
    source: int
    destination: int
    psn: int


@dataclass(frozen=True, slots=True)
class Result:
    """What the model predicts.

    arrivals: (source, destination, psn) -> time at which the whole packet is at its host (ns). deepest: the deepest
    queue of each port (bytes). deepest_total: the deepest sum of the queues of all switch ports (bytes). port_ties and
    pacer_ties: undefined orders met (k packets, or k flows, in one nanosecond count k-1). hops: for each port, its
    packets in order of service, if asked for.
    """

    arrivals: dict[tuple[int, int, int], int]
    deepest: list[int]
    deepest_total: int
    port_ties: int
    pacer_ties: int
    hops: list[list[Hop]] = field(default_factory=list)

    @property
    def ties(self) -> int:
        """All undefined orders; the prediction is the only one possible if this is 0."""
        return self.port_ties + self.pacer_ties


def mix32(x: int) -> int:
    """The 32-bit mixing function that the path hash and the entropy values are built of."""
    x &= _MASK
    x ^= x >> 16
    x = x * 0x7FEB352D & _MASK
    x ^= x >> 15
    x = x * 0x846CA68B & _MASK
    return x ^ x >> 16


def entropy_value(source: int, destination: int, psn: int, seed: int, spraying: Spraying) -> int:
    """Entropy value (0..63) of packet `psn`: a new permutation for each 64 packets ("ops"), or one value ("ecmp")."""
    cycle, turn = divmod(psn, _TURNS) if spraying == "ops" else (0, 0)
    drawn = mix32(mix32(seed + (source << 16 | destination)) + cycle)
    return ((drawn | 1) * turn + (drawn >> 16)) % _TURNS


def path_hash(source: int, destination: int, value: int, switch: int, path_salt: int) -> int:
    """Hash (32 bits) by which switch number `switch` picks one of several ports for an entropy value."""
    ports = (_UDP_SOURCE + value) << 16 | _UDP_DESTINATION
    salt = mix32(switch ^ path_salt)
    return mix32(salt + source * 0x9E3779B1 + destination * 0x85EBCA77 + ports * 0xC2B2AE3D)


def path_of(network: Network, source: int, destination: int, value: int, path_salt: int) -> tuple[int, ...]:
    """Output ports that a packet crosses, the NIC first, the port that faces its destination last."""
    path = [source]
    while (port := network.ports[path[-1]]).peer_port >= network.hosts:
        ways = network.routes[port.peer_node, destination]
        hashed = path_hash(source, destination, value, network.switches[port.peer_node], path_salt)
        path.append(ways[hashed * len(ways) >> 32])
        if len(path) > len(network.ports):
            raise ValueError(f"the route from host {source} to host {destination} loops")
    if port.peer_port != destination:
        raise ValueError(f"the route from host {source} to host {destination} ends at host {port.peer_port}")
    return tuple(path)


def _size(flow: Flow, psn: int, mtu_bytes: int) -> int:
    """Size of a packet, in bytes."""
    return flow.last_bytes if psn == flow.packets - 1 else mtu_bytes


def pacer_departures(flow: Flow, nic: Port, ready: int, mtu_bytes: int) -> list[int]:
    """Times (ns) at which the packets of a paced flow that is ready at `ready` (ns) leave the pacer."""
    if flow.steps == 0:
        return [ready] * flow.packets
    times: list[int] = []
    remainder = 0  # of the divisions so far, so that the gaps add up exactly
    for psn in range(flow.packets):
        scaled = (nic.packet_ns(_size(flow, psn, mtu_bytes)) << 32) + remainder
        gap, remainder = divmod(scaled, flow.steps)
        times.append(times[-1] + gap if times else ready)
    return times


def _sent(flows: Sequence[Flow], nic: Port, start: int, mtu: int, discipline: Discipline) -> list[tuple[int, int, int]]:
    """What one host that starts at `start` (ns) hands to its NIC, in order: (time in ns, index of the flow, psn)."""
    if discipline == "rr":  # in each round, one packet of every flow that has one left
        rounds = range(max((flow.packets for flow in flows), default=0))
        ranked = list(enumerate(flows))
        return [(start + flow.ready_ns, index, k) for k in rounds for index, flow in ranked if k < flow.packets]
    order: list[tuple[int, int, int]] = []
    for index, flow in enumerate(flows):
        times = pacer_departures(flow, nic, start + flow.ready_ns, mtu)
        order.extend((time, index, psn) for psn, time in enumerate(times))
    return sorted(order)


def _deepest(hops: Sequence[Hop]) -> int:
    """Deepest sum of bytes accepted and not yet wholly sent; at one instant, what departs is gone before arrivals."""
    held = deepest = gone = 0
    leaving = sorted(hops, key=itemgetter(1))
    for arrival, _, size, *_ in sorted(hops, key=itemgetter(0)):
        while leaving[gone].departure <= arrival:
            held -= leaving[gone].size
            gone += 1
        held += size
        deepest = max(deepest, held)
    return deepest


def _check(network: Network, flows: Sequence[Flow], mtu_bytes: int, discipline: Discipline) -> None:
    """Refuse flows that the model has no defined answer for."""
    if len({(flow.source, flow.destination) for flow in flows}) != len(flows):
        raise ValueError("two flows of one pair")
    if discipline == "rr" and len({(flow.source, flow.ready_ns) for flow in flows}) > len({f.source for f in flows}):
        raise ValueError("round robin needs the flows of a host to be ready all at once")
    for flow in flows:
        if not {flow.source, flow.destination} <= set(range(network.hosts)) or flow.source == flow.destination:
            raise ValueError(f"not a pair of hosts: {flow}")
        if flow.packets < 1 or flow.ready_ns < 0 or flow.steps < 0:
            raise ValueError(f"bad flow: {flow}")
    smallest = min([mtu_bytes, *(flow.last_bytes for flow in flows)])
    if any(port.packet_ns(smallest) < 1 for port in network.ports):
        raise ValueError(f"a packet of {smallest} bytes takes no time on some port")


def simulate(
    network: Network,
    flows: Sequence[Flow],
    *,
    start_ns: Sequence[int],
    mtu_bytes: int,
    discipline: Discipline,
    spraying: Spraying,
    seed: int,
    path_salt: int,
    log_hops: bool = False,
) -> Result:
    """Predict arrivals and queues; host h starts at start_ns[h] (ns), and its flows take turns in the order given."""
    if discipline not in ("rr", "rate") or spraying not in ("ops", "ecmp"):
        raise ValueError(f"unknown discipline or spraying: {discipline}, {spraying}")
    if len(start_ns) != network.hosts or min(start_ns) < 0:
        raise ValueError("every host needs a start that is not negative")
    _check(network, flows, mtu_bytes, discipline)
    ports = network.ports
    sizes = {mtu_bytes, *(flow.last_bytes for flow in flows)}
    wire_ns = [{size: port.packet_ns(size) for size in sizes} for port in ports]
    free_at = [0] * len(ports)
    hops: list[list[Hop]] = [[] for _ in ports]
    route = cache(partial(path_of, network, path_salt=path_salt))

    def accept(output: int, now: int, packet: _Packet) -> int:
        """Queue a packet at a port; the answer is the time at which it is whole at the far end (ns)."""
        source, destination, psn, size, _ = packet
        free_at[output] = departure = max(now, free_at[output]) + wire_ns[output][size]
        hops[output].append(Hop(now, departure, size, source, destination, psn))
        return departure + ports[output].propagation

    # Nothing is lost, so a packet's departure is known once it is accepted, and one event per hop is enough. A NIC has
    # no input but its host, so that all of its packets can be served before the fabric runs.
    events: list[tuple[int, int, int, _Packet]] = []  # (time in ns, input port, hops made, packet)
    pacer_ties = 0
    for host in range(network.hosts):
        mine = [flow for flow in flows if flow.source == host]
        order = _sent(mine, ports[host], start_ns[host], mtu_bytes, discipline)
        if discipline == "rate":
            pacer_ties += sum(a[0] == b[0] and a[1] != b[1] for a, b in pairwise(order))
        for time, index, psn in order:
            flow = mine[index]
            value = entropy_value(host, flow.destination, psn, seed, spraying)
            path = route(host, flow.destination, value)
            packet = (host, flow.destination, psn, _size(flow, psn, mtu_bytes), path)
            events.append((accept(host, time, packet), ports[host].peer_port, 1, packet))
    heapify(events)

    arrivals: dict[tuple[int, int, int], int] = {}
    newest = [-1] * len(ports)  # time of the newest arrival at each output port (ns)
    port_ties = 0
    while events:
        now, _, made, packet = heappop(events)
        source, destination, psn, _, path = packet
        output = path[made]
        port_ties += newest[output] == now
        newest[output] = now
        far = accept(output, now, packet)
        if made + 1 == len(path):
            arrivals[source, destination, psn] = far
        else:
            heappush(events, (far, ports[output].peer_port, made + 1, packet))

    total = _deepest([hop for log in hops[network.hosts :] for hop in log])
    return Result(arrivals, [_deepest(log) for log in hops], total, port_ties, pacer_ties, hops if log_hops else [])
