"""The output queue of one port of the oracle; tests/oracle.py states the rules that it follows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

HEADER_BYTES = 64


class Packet(NamedTuple):
    """A packet before an output port. Headers sort before data, which settles the order within one input port."""

    full: bool  # a data packet; otherwise it is cut to its header, and is control
    source: int
    destination: int
    psn: int
    size: int  # bytes
    path: tuple[int, ...]  # output ports that it has yet to leave


class Hop(NamedTuple):
    """One packet at one output port: whole there at arrival (ns), wholly sent at departure (ns), size in bytes."""

    arrival: int
    departure: int
    size: int
    source: int
    destination: int
    psn: int


class Queue(ABC):
    """What both priority modes share: room, cutting, counting, and loss on a dead link.

    wire_ns: size in bytes -> time on the wire (ns). limit_ns: None is unlimited. failures: (down, up) of the link (ns).
    send(departure, packet) is called once for each packet that leaves and is not lost.
    """

    def __init__(
        self,
        wire_ns: Mapping[int, int],
        limit_ns: int | None,
        trimming: bool,
        failures: Sequence[tuple[int, int]],
        send: Callable[[int, Packet], None],
    ) -> None:
        self.wire_ns = wire_ns
        self.hops: list[Hop] = []  # data packets, in order of acceptance, which is the order of service
        self.control_hops: list[Hop] = []
        self.drops = self.trims = self.lost = 0
        self._limit_ns = limit_ns
        self._trimming = trimming
        self._failures = failures
        self._send = send

    def arrive(self, now: int, packet: Packet) -> None:
        """Queue a packet, or its header, or drop it."""
        if self._accept(now, packet):
            return
        if packet.full and self._trimming:
            header = packet._replace(full=False, size=HEADER_BYTES)
            if self._accept(now, header):
                self.trims += 1
                return
        self.drops += 1

    @abstractmethod
    def backlog_ns(self, now: int) -> int:
        """Time to send all that is there, of both kinds (ns)."""

    @abstractmethod
    def _accept(self, now: int, packet: Packet) -> bool:
        """Queue the packet if there is room."""

    def _fits(self, backlog_ns: int, packet: Packet) -> bool:
        """Whether there is room behind a backlog of the packet's own kind."""
        if self._limit_ns is None:
            return True
        room = self._limit_ns if packet.full else 2 * self._limit_ns
        return backlog_ns + self.wire_ns[packet.size] <= room

    def _depart(self, arrival: int, departure: int, packet: Packet) -> None:
        """Log the packet's service, and send it on unless the link fails under it."""
        log = self.hops if packet.full else self.control_hops
        log.append(Hop(arrival, departure, packet.size, packet.source, packet.destination, packet.psn))
        begun = departure - self.wire_ns[packet.size]
        if any(begun < up and departure > down for down, up in self._failures):
            self.lost += 1
        else:
            self._send(departure, packet)


class ChargedQueue(Queue):
    """The approximation: every departure is known at acceptance, and a header delays only the data after it."""

    _free_at = 0  # of the data, which pays for the headers too
    _control_free = 0

    def backlog_ns(self, now: int) -> int:
        return max(self._free_at - now, 0)

    def _accept(self, now: int, packet: Packet) -> bool:
        wire = self.wire_ns[packet.size]
        if not self._fits(max((self._free_at if packet.full else self._control_free) - now, 0), packet):
            return False
        self._free_at = max(self._free_at, now) + wire
        if packet.full:
            self._depart(now, self._free_at, packet)
        else:
            self._control_free = max(self._control_free, now) + wire
            self._depart(now, self._control_free, packet)
        return True


class ExactQueue(Queue):
    """Strict priority without preemption. wake(time) asks for a call of start(time) after all arrivals at that time."""

    def __init__(
        self,
        wire_ns: Mapping[int, int],
        limit_ns: int | None,
        trimming: bool,
        failures: Sequence[tuple[int, int]],
        send: Callable[[int, Packet], None],
        wake: Callable[[int], None],
    ) -> None:
        super().__init__(wire_ns, limit_ns, trimming, failures, send)
        self._wake = wake
        self._free_at = 0
        self._serving_full = True  # kind of the packet in service, or of the last one
        self._waiting: dict[bool, deque[tuple[int, Packet]]] = {True: deque(), False: deque()}
        self._waiting_ns = {True: 0, False: 0}

    def backlog_ns(self, now: int) -> int:
        return max(self._free_at - now, 0) + sum(self._waiting_ns.values())

    def _accept(self, now: int, packet: Packet) -> bool:
        full = packet.full
        rest = max(self._free_at - now, 0) if self._serving_full == full else 0
        if not self._fits(rest + self._waiting_ns[full], packet):
            return False
        self._waiting[full].append((now, packet))
        self._waiting_ns[full] += self.wire_ns[packet.size]
        if self._free_at <= now:
            self._wake(now)
        return True

    def start(self, now: int) -> None:
        """Put the next packet into service, if there is one and the port is free."""
        full = not self._waiting[False]
        if self._free_at > now or not self._waiting[full]:
            return  # two arrivals at one instant both ask; or nothing waits
        arrival, packet = self._waiting[full].popleft()
        wire = self.wire_ns[packet.size]
        self._waiting_ns[full] -= wire
        self._serving_full = full
        self._free_at = now + wire
        self._depart(arrival, self._free_at, packet)
        self._wake(self._free_at)
