"""An independent discrete-event model of the fabric's queues, to compare the kernel's measurements with.

It shares no code with the testbed. Every time is an integer number of kernel nanoseconds (fabric nanoseconds times the
dilation); every size is in bytes. Nothing is acknowledged or sent again. The rules, in full:

* A port is a FIFO, in order of arrival, store and forward. Service starts at the later of the packet's arrival and the
  end of the packet before it, and lasts wire_ns = floor(bytes * byte_time). The packet is whole at the far end one
  propagation after its departure, and is at that instant at the next output port, or at its host.
* The queue of a port is the data that it has accepted and not yet wholly sent, the packet in service counted whole; a
  packet that departs at the very instant of an arrival has left.
* Where packets reach one output port in the same nanosecond, or two paced flows of one host leave the pacer in the same
  nanosecond, the order is not defined. The model takes the lowest input port (of one input port, which with "charged"
  can deliver a header and a data packet at once, the header; in the pacer, the flow given first) first, and counts the
  tie, so that the caller can report it.
* Limit. The ports of switches, not the NICs, hold limit_ns = floor(limit_bytes * byte_time) of data; limit_bytes = 0 is
  no limit. Data is accepted iff backlog + wire_ns <= limit_ns. What is not accepted is dropped; or, with trimming, cut
  to a header of 64 bytes, which is control at that port and at all ports after it, and is one of the port's trims if
  the port accepts it. Control is accepted iff control backlog + wire_ns <= 2 limit_ns, or else dropped.
* Priority "charged" (what the emulator does). Control departs at control_free = max(control_free, now) + wire_ns, and
  does not wait for the data packet in service. It is charged to the data: free_at = max(free_at, now) + wire_ns, by
  which data accepted earlier is not delayed, and data accepted later is. The backlogs are what free_at and control_free
  are ahead of now.
* Priority "exact". One server, which is not interrupted: when free, it takes the oldest control packet, or else the
  oldest data packet; of arrivals at the very instant at which it is free, it knows. A backlog is what remains of the
  packet in service, if it is of that kind, and the service times of all of that kind that wait.
  tests/unit/test_oracle_finite.py derives how far "charged" can be from it.
* Marks. The data packet that a switch port accepted as its number k (0, 1, ...) is judged when it departs, by q, the
  bytes of data that the port has accepted until then (arrivals at the very instant included) and that have not
  departed. It is marked if q > kmax_bytes; if kmin_bytes < q <= kmax_bytes, it is marked iff
  draw * (kmax_bytes - kmin_bytes) < (q - kmin_bytes) * 2**32, where draw = mix32(mix32(mark_salt + port) + k).
  kmax_bytes = 0 is no marking. Each port judges each packet, whatever other ports did.
* Spraying "ar" (adaptive routing). A data packet that a switch can send several ways takes the one whose port's queue, as
  it is at that instant before the packet, is the least occupied: with b the work (ns) that the port has before it, control
  included, and f = floor(occupancy_bytes * byte_time), the level is 0 for 20 b < f, 1 for 10 b < f, 2 for 5 b < f, else 3.
  Of ways of one level it takes that of the smallest draw, mix32(mix32(hash + psn) + w) for way number w (0, 1, ...), where
  hash is the path hash. Control keeps to the hash, with the entropy value that "ops" gives. Two arrivals at one switch in
  one nanosecond are a tie, wherever they go.
* Background flows are paced, in either discipline, and numbered in the order of their sources. A packet comes to the NIC
  when it leaves its pacer. So does one of a paced flow; in round robin one comes when the port is free. First come, first
  served. Their PSNs follow each other, from 2**31 on; for its entropy values a flow's number + 2**15 stands for the
  destination.
* Discipline "deficit": in a turn a flow's deficit grows by its quantum, and the flow sends as long as its next packet is not
  larger than the deficit, which falls by it. All flows of a host take turns in order until they have nothing left.
* Stages. Each names a flow, how many of its packets it sends, when it may begin at the earliest, and a number. A host goes
  through its own in order, one packet after the other, with no regard to the other hosts; with a barrier it begins none before
  all packets of all stages of lower numbers have arrived, and the barrier's time has passed.
* Failures (port, down, up). A packet whose service overlaps the interval (departure - wire_ns < up and departure >
  down) is lost after it has taken its time, its place in k and its mark. It is one port, so one direction, of a link.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, partial
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from operator import attrgetter, itemgetter
from typing import Literal

from tests.oracle_queue import HEADER_BYTES, ChargedQueue, ExactQueue, Hop, Packet

Discipline = Literal["rr", "rate", "deficit", "stages"]
Spraying = Literal["ops", "ecmp", "ar"]
Priority = Literal["charged", "exact"]
# (time in ns, False, input port, packet) is an arrival; (time in ns, True, output port, None): the port may be free
_Event = tuple[int, bool, int, Packet | None]

_MASK = 0xFFFFFFFF
_UDP_DESTINATION = 4793
_UDP_SOURCE = 49152  # UDP source port of entropy value 0
_TURNS = 64  # packets of one cycle of entropy values
_BACKGROUND_PSN = 2**31
_BACKGROUND_SPREAD = 2**15


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
    quantum_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stage:
    """So many packets of a flow, in the order of `number`; earliest_ns is counted from 0 (ns)."""

    source: int
    destination: int
    packets: int
    number: int
    earliest_ns: int = 0


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


@dataclass(frozen=True, slots=True)
class Result:
    """What the model predicts.

    arrivals: (source, destination, psn) -> time at which the whole packet is at its host (ns), and trimmed_arrivals the
    same for headers. deepest: the deepest queue of each port (bytes). deepest_total: the deepest sum of the queues of
    all switch ports (bytes). port_ties and pacer_ties: undefined orders met (k packets, or k flows, in one nanosecond
    count k-1).

    For each port, the packets that it dropped (drops), cut and kept (trims), marked, lost in a failure, and its control
    packets, lost ones included (control); hops and control_hops: its data and its control in order of service, if asked
    for. Of what arrives at a port, each is accepted data, or accepted control (trims among them), or a drop.
    """

    arrivals: dict[tuple[int, int, int], int]
    deepest: list[int]
    deepest_total: int
    port_ties: int
    pacer_ties: int
    hops: list[list[Hop]] = field(default_factory=list)
    trimmed_arrivals: dict[tuple[int, int, int], int] = field(default_factory=dict)
    drops: list[int] = field(default_factory=list)
    trims: list[int] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    control: list[int] = field(default_factory=list)
    control_hops: list[list[Hop]] = field(default_factory=list)

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
    """Entropy value (0..63) of packet `psn`: a new permutation for each 64 packets, or with "ecmp" one value."""
    cycle, turn = (0, 0) if spraying == "ecmp" else divmod(psn, _TURNS)
    drawn = mix32(mix32(seed + (source << 16 | destination)) + cycle)
    return ((drawn | 1) * turn + (drawn >> 16)) % _TURNS


def path_hash(source: int, destination: int, value: int, switch: int, path_salt: int) -> int:
    """Hash (32 bits) by which switch number `switch` picks one of several ports for an entropy value."""
    ports = (_UDP_SOURCE + value) << 16 | _UDP_DESTINATION
    salt = mix32(switch ^ path_salt)
    return mix32(salt + source * 0x9E3779B1 + destination * 0x85EBCA77 + ports * 0xC2B2AE3D)


def path_of(network: Network, source: int, destination: int, value: int, path_salt: int) -> tuple[int, ...]:
    """Output ports that a packet crosses, the NIC first, the port that faces its destination last."""
    return path_from(network, source, source, destination, value, path_salt)


def path_from(
    network: Network, first: int, source: int, destination: int, value: int, path_salt: int
) -> tuple[int, ...]:
    """The same from port `first` on."""
    path = [first]
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
    if discipline == "deficit":
        turns = deque((index, 0, 0) for index in range(len(flows)))
        while turns:
            index, psn, deficit = turns.popleft()
            flow = flows[index]
            deficit += flow.quantum_bytes
            while psn < flow.packets and _size(flow, psn, mtu) <= deficit:
                deficit -= _size(flow, psn, mtu)
                order.append((start + flow.ready_ns, index, psn))
                psn += 1
            if psn < flow.packets:
                turns.append((index, psn, deficit))
        return order
    for index, flow in enumerate(flows):
        times = pacer_departures(flow, nic, start + flow.ready_ns, mtu)
        order.extend((time, index, psn) for psn, time in enumerate(times))
    return sorted(order)


def _staged(flows: Sequence[Flow], stages: Sequence[Stage], start: int, numbers: range) -> list[tuple[int, int, int]]:
    """The same of one host for the stages of these numbers, of which flows and stages are its own."""
    place = {flow.destination: index for index, flow in enumerate(flows)}
    sent = [0] * len(flows)
    order: list[tuple[int, int, int]] = []
    clock = start
    for stage in sorted(stages, key=attrgetter("number")):
        index = place[stage.destination]
        first, sent[index] = sent[index], sent[index] + stage.packets
        if stage.number in numbers:
            clock = max(clock, stage.earliest_ns)
            order.extend((clock, index, psn) for psn in range(first, first + stage.packets))
    return order


def _sent_with(
    order: list[tuple[int, int, int]],
    flows: Sequence[Flow],
    background: Sequence[Flow],
    nic: Port,
    mtu: int,
    discipline: Discipline,
) -> list[tuple[int, int, int]]:
    """`order`, as _sent gives it, with the packets of background flows between; their indices follow those of the flows."""
    others: list[tuple[int, int, int]] = []
    for index, flow in enumerate(background, len(flows)):
        others.extend((time, index, k) for k, time in enumerate(pacer_departures(flow, nic, flow.ready_ns, mtu)))
    others.sort()
    if discipline == "rate":
        return sorted(order + others)
    merged: list[tuple[int, int, int]] = []
    waiting = deque(others)
    clear = 0
    for time, index, psn in order:
        while waiting and waiting[0][0] <= max(time, clear):
            due, other, k = waiting.popleft()
            merged.append((due, other, k))
            clear = max(due, clear) + nic.packet_ns(_size(background[other - len(flows)], k, mtu))
        merged.append((time, index, psn))
        clear = max(time, clear) + nic.packet_ns(_size(flows[index], psn, mtu))
    return merged + list(waiting)


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


def _marks(hops: Sequence[Hop], port: int, kmin_bytes: int, kmax_bytes: int, mark_salt: int) -> int:
    """How many of a port's data packets are marked."""
    arrivals = [hop.arrival for hop in hops]
    accepted = list(accumulate((hop.size for hop in hops), initial=0))
    salt = mix32(mark_salt + port)
    marks = 0
    for k, hop in enumerate(hops):
        q = accepted[bisect_right(arrivals, hop.departure)] - accepted[k + 1]
        if kmin_bytes < q <= kmax_bytes:
            marks += mix32(salt + k) * (kmax_bytes - kmin_bytes) < (q - kmin_bytes) << 32
        else:
            marks += q > kmax_bytes
    return marks


def _check(network: Network, flows: Sequence[Flow], mtu_bytes: int, discipline: Discipline) -> None:
    """Refuse flows that the model has no defined answer for."""
    if len({(flow.source, flow.destination) for flow in flows}) != len(flows):
        raise ValueError("two flows of one pair")
    if discipline in ("rr", "deficit") and len({(flow.source, flow.ready_ns) for flow in flows}) > len(
        {f.source for f in flows}
    ):
        raise ValueError("round robin needs the flows of a host to be ready all at once")
    for flow in flows:
        if not {flow.source, flow.destination} <= set(range(network.hosts)) or flow.source == flow.destination:
            raise ValueError(f"not a pair of hosts: {flow}")
        if flow.packets < 1 or flow.ready_ns < 0 or flow.steps < 0:
            raise ValueError(f"bad flow: {flow}")
    if discipline == "deficit" and any(flow.quantum_bytes < 1 for flow in flows):
        raise ValueError("deficit round robin needs a quantum for each flow")
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
    limit_bytes: int = 0,
    trimming: bool = False,
    priority: Priority = "charged",
    kmin_bytes: int = 0,
    kmax_bytes: int = 0,
    mark_salt: int = 0,
    failures: Sequence[tuple[int, int, int]] = (),
    occupancy_bytes: int = 0,
    background: Sequence[Flow] = (),
    stages: Sequence[Stage] = (),
    barrier_ns: int | None = None,
) -> Result:
    """Predict arrivals and queues; host h starts at start_ns[h] (ns), and its flows take turns in the order given.

    ready_ns of a background flow is counted from 0. stages are for the discipline "stages", which has no background;
    barrier_ns is None without barriers.
    """
    if (
        discipline not in ("rr", "rate", "deficit", "stages")
        or spraying not in ("ops", "ecmp", "ar")
        or priority not in ("charged", "exact")
    ):
        raise ValueError(f"unknown discipline, spraying or priority: {discipline}, {spraying}, {priority}")
    planned: dict[tuple[int, int], int] = {}
    for stage in stages:
        planned[stage.source, stage.destination] = planned.get((stage.source, stage.destination), 0) + stage.packets
    if discipline == "stages" and (background or planned != {(f.source, f.destination): f.packets for f in flows}):
        raise ValueError("the stages are not those of the flows, or there is a background")
    if len(start_ns) != network.hosts or min(start_ns) < 0:
        raise ValueError("every host needs a start that is not negative")
    _check(network, flows, mtu_bytes, discipline)
    ports, hosts = network.ports, network.hosts
    if list(background) != sorted(background, key=attrgetter("source")) or any(not flow.steps for flow in background):
        raise ValueError("background flows must be paced, and in the order of their sources")
    sizes = {mtu_bytes, *(flow.last_bytes for flow in (*flows, *background))}
    if trimming and (min(sizes) < HEADER_BYTES or any(port.packet_ns(HEADER_BYTES) < 1 for port in ports)):
        raise ValueError(f"a packet is shorter than its header of {HEADER_BYTES} bytes, or that takes no time")
    if (spraying == "ar") != (occupancy_bytes > 0):
        raise ValueError("adaptive routing, and nothing else, needs occupancy_bytes")
    if limit_bytes < 0 or not (0 <= kmin_bytes <= kmax_bytes or kmax_bytes == 0):
        raise ValueError(f"bad limit or thresholds: {limit_bytes}, {kmin_bytes}, {kmax_bytes}")
    if any(not (0 <= port < len(ports) and down < up) for port, down, up in failures):
        raise ValueError(f"bad failures: {failures}")
    events: list[_Event] = []
    arrivals: dict[tuple[int, int, int], int] = {}
    trimmed: dict[tuple[int, int, int], int] = {}
    route = cache(partial(path_of, network, path_salt=path_salt))

    def send(output: int, departure: int, packet: Packet) -> None:
        """Bring a packet that leaves an output port to the next one, or to its host."""
        far = departure + ports[output].propagation
        full, source, destination, psn, size, path = packet
        if len(path) > 1:
            onward = Packet(full, source, destination, psn, size, path[1:])
            heappush(events, (far, False, ports[output].peer_port, onward))
        else:
            (arrivals if full else trimmed)[source, destination, psn] = far

    def queue(index: int) -> ChargedQueue | ExactQueue:
        """The queue of a port; a NIC knows no limit and no control, so its departures are known at once."""
        wire_ns = {size: ports[index].packet_ns(size) for size in sizes | {HEADER_BYTES}}
        limit_ns = ports[index].packet_ns(limit_bytes) if limit_bytes and index >= hosts else None
        dead = [(down, up) for port, down, up in failures if port == index]
        if priority == "charged" or index < hosts:
            return ChargedQueue(wire_ns, limit_ns, trimming, dead, partial(send, index))

        def wake(time: int) -> None:
            heappush(events, (time, True, index, None))

        return ExactQueue(wire_ns, limit_ns, trimming, dead, partial(send, index), wake)

    queues = [queue(index) for index in range(len(ports))]

    def adapt(now: int, node: str, packet: Packet) -> Packet:
        """Adaptive routing: the packet with the path that it takes from a switch on."""
        source, destination, psn = packet[1:4]
        ways = network.routes[node, destination]
        if not packet.full or len(ways) == 1:
            return packet
        value = entropy_value(source, destination, psn, seed, spraying)
        drawn = mix32(path_hash(source, destination, value, network.switches[node], path_salt) + psn)

        def rank(number: int) -> tuple[int, int, int]:
            backlog, full = queues[ways[number]].backlog_ns(now), ports[ways[number]].packet_ns(occupancy_bytes)
            return sum(share * backlog >= full for share in (20, 10, 5)), mix32(drawn + number), number

        way = ways[min(map(rank, range(len(ways))))[2]]
        return packet._replace(path=path_from(network, way, source, destination, value, path_salt))

    # A NIC has no input but its host, so that all of its packets can be served before the fabric runs: all up to a barrier.
    pacer_ties = port_ties = 0
    newest = [-1] * len(ports)  # time of the newest arrival at each output port (ns)
    adapted: dict[str, int] = {}  # the same at each switch
    count = 1 + max((stage.number for stage in stages), default=0)
    waves = [range(count)] if barrier_ns is None else [range(number, number + 1) for number in range(count)]
    begin = 0
    for numbers in waves:
        for host in range(hosts):
            mine = [flow for flow in flows if flow.source == host]
            if discipline == "stages":
                own = [stage for stage in stages if stage.source == host]
                order = _staged(mine, own, max(start_ns[host], begin), numbers)
            else:
                order = _sent(mine, ports[host], start_ns[host], mtu_bytes, discipline)
            others = [number for number, flow in enumerate(background) if flow.source == host]
            if others:
                theirs = [background[number] for number in others]
                order = _sent_with(order, mine, theirs, ports[host], mtu_bytes, discipline)
            if discipline == "rate":
                pacer_ties += sum(a[0] == b[0] and a[1] != b[1] for a, b in pairwise(order))
            for time, index, psn in order:
                if index >= len(mine):
                    number = others[index - len(mine)]
                    flow = background[number]
                    value = entropy_value(host, _BACKGROUND_SPREAD + number, psn, seed, spraying)
                    path = route(host, flow.destination, value)
                    name = _BACKGROUND_PSN + sum(other.packets for other in background[:number]) + psn
                    size = _size(flow, psn, mtu_bytes)
                    queues[host].arrive(time, Packet(True, host, flow.destination, name, size, path))
                    continue
                flow = mine[index]
                value = entropy_value(host, flow.destination, psn, seed, spraying)
                path = route(host, flow.destination, value)
                packet = Packet(True, host, flow.destination, psn, _size(flow, psn, mtu_bytes), path)
                queues[host].arrive(time, packet)
        while events:
            now, _, place, arriving = heappop(events)
            if arriving is None:
                serving = queues[place]
                assert isinstance(serving, ExactQueue)
                serving.start(now)
                continue
            if spraying == "ar":
                node = ports[place].node
                arriving = adapt(now, node, arriving)
                port_ties += adapted.get(node) == now
                adapted[node] = now
            output = arriving.path[0]
            port_ties += newest[output] == now
            newest[output] = now
            queues[output].arrive(now, arriving)
        begin = max(arrivals.values(), default=0) + (barrier_ns or 0)

    hops = [queue.hops for queue in queues]
    judged = [bool(kmax_bytes) and index >= hosts for index in range(len(ports))]
    return Result(
        arrivals,
        [_deepest(log) for log in hops],
        _deepest([hop for log in hops[hosts:] for hop in log]),
        port_ties,
        pacer_ties,
        hops if log_hops else [],
        trimmed,
        [queue.drops for queue in queues],
        [queue.trims for queue in queues],
        [_marks(hops[p], p, kmin_bytes, kmax_bytes, mark_salt) if judged[p] else 0 for p in range(len(ports))],
        [queue.lost for queue in queues],
        [len(queue.control_hops) for queue in queues],
        [queue.control_hops for queue in queues] if log_hops else [],
    )
