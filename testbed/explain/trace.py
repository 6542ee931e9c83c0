"""One phase of a traced run: finds the packets that matter, and keeps no more of the records than these need.

All times are kernel nanoseconds from the phase's common start: whole numbers, as the kernel had them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import CannotRunError
from testbed.engine import BACKGROUND_PSN, EVENT_FIELDS, RECORD_FIELDS, EventKind
from testbed.scenario import Scenario, ports_of_link
from testbed.times import delay_ns, fixed_byte_ns

__all__ = ["Flow", "Hop", "Packet", "Share", "Trace", "Transmission", "unsound"]

Ints = NDArray[np.int64]
_FRACTION_BITS: Final = 32
"""Of a byte's time (ebpf/include/wire_time.h)."""
_KEY_SHIFT: Final = 32


def unsound(what: str) -> CannotRunError:
    """The records do not tell what they must."""
    return CannotRunError(f"the trace of this run does not add up ({what}): please report")


@dataclass(frozen=True)
class Flow:
    """From one host to another, by index; background flows of a pair are one."""

    source: int
    destination: int
    background: bool = False


@dataclass(frozen=True)
class Packet:
    """Of the demand."""

    source: int
    destination: int
    psn: int

    @property
    def flow(self) -> Flow:
        """Its flow."""
        return Flow(self.source, self.destination)


@dataclass(frozen=True)
class Share:
    """What a flow had of a time for which others waited."""

    flow: Flow
    packets: int
    """That were wholly or partly sent meanwhile."""
    kernel_ns: int


@dataclass(frozen=True)
class Hop:
    """A packet at one port."""

    port: int
    arrival_ns: int
    """At a NIC: when its sender gave it the packet."""
    start_ns: int
    """Of its service."""
    departure_ns: int
    far_end_ns: int
    row: int
    """Of the trace."""

    @property
    def waited_ns(self) -> int:
        """In the queue."""
        return self.start_ns - self.arrival_ns


@dataclass(frozen=True)
class Transmission:
    """One sending of a packet, as far as it came."""

    hops: tuple[Hop, ...]
    """The NIC first."""
    delivered: bool

    @property
    def arrival_ns(self) -> int:
        """At its NIC."""
        return self.hops[0].arrival_ns

    @property
    def end_ns(self) -> int:
        """When it was wherever it came last."""
        return self.hops[-1].far_end_ns


class Trace:
    """The records of one phase, as they lie in the folder of the run's files."""

    def __init__(self, scenario: Scenario, work: Path, phase: int) -> None:
        output = json.loads((work / f"output-{phase}.json").read_text())
        self.epoch_ns = int(output["epoch_ns"])
        self.control_kind = int(output["control_kind"])
        self._records = _mapped(work / f"trace-{phase}.bin", RECORD_FIELDS)
        self._events = _mapped(work / f"events-{phase}.bin", EVENT_FIELDS)
        self._scenario = scenario
        ports = scenario.wiring.ports
        self._hosts = len(scenario.wiring.hosts)
        self._byte_ns = [fixed_byte_ns(port.gbps, scenario.dilation) for port in ports]
        self._propagation_ns = [delay_ns(port.ns, scenario.dilation) for port in ports]
        self._down = {
            port: (delay_ns(failure.down_ns, scenario.dilation), delay_ns(failure.up_ns, scenario.dilation))
            for failure in scenario.experiment.link_failure
            for port in ports_of_link(scenario.wiring, failure.link)
        }

    def wire_ns(self, port: int, wire_bytes: Ints | int) -> Any:
        """Time on the wire."""
        return (wire_bytes * self._byte_ns[port]) >> _FRACTION_BITS

    # ---- the last byte ----

    @cached_property
    def _last(self) -> tuple[Packet, int, int]:
        records, hosts = self._records, self._hosts
        port = records["port"]
        rows = np.flatnonzero((port >= hosts) & (port < 2 * hosts) & (records["psn"] < BACKGROUND_PSN))
        far_end = records["far_end_ns"][rows].astype(np.int64) - self.epoch_ns
        alive = np.ones(len(rows), dtype=bool)
        for failing, interval in self._down.items():
            own = port[rows] == failing
            departure = far_end[own] - self._propagation_ns[failing]
            begun = departure - self.wire_ns(failing, records["wire_bytes"][rows[own]].astype(np.int64))
            alive[own] = ~((departure > interval[0]) & (begun < interval[1]))
        rows, far_end = rows[alive], far_end[alive]
        if not len(rows):
            raise unsound("no packet arrived")
        pair = records["source"][rows].astype(np.int64) * hosts + records["destination"][rows]
        key = pair << _KEY_SHIFT | records["psn"][rows].astype(np.int64)
        order = np.lexsort((far_end, key))
        first = np.append(True, np.diff(key[order]) != 0)
        rows, far_end, key = rows[order][first], far_end[order][first], key[order][first]
        last = int(np.argmax(far_end))  # of several the first by source, destination and PSN
        row = records[rows[last]]
        packet = Packet(int(row["source"]), int(row["destination"]), int(row["psn"]))
        return packet, int(far_end[last]), int((far_end == far_end[last]).sum()) - 1

    @property
    def last_packet(self) -> Packet:
        """Whose first whole copy reached its host last."""
        return self._last[0]

    @property
    def duration_ns(self) -> int:
        """When it did."""
        return self._last[1]

    @property
    def others_at_once(self) -> int:
        """How many other packets came in the same nanosecond."""
        return self._last[2]

    # ---- the ways of a packet ----

    def transmissions(self, packet: Packet) -> list[Transmission]:
        """All, in their order: a hop follows another if it begins where and when that one ends."""
        records = self._records
        own = records["psn"] == packet.psn
        own &= (records["source"] == packet.source) & (records["destination"] == packet.destination)
        left = [self._hop(int(row)) for row in np.flatnonzero(own)]
        ports = self._scenario.wiring.ports
        found = []
        for nic in [hop for hop in left if hop.port == packet.source]:
            chain = [nic]
            delivered = False
            while not delivered:
                here, lost = chain[-1], self.lost_on_link(chain[-1])
                node = ports[here.port].peer_node
                following = [
                    hop
                    for hop in left
                    if hop.arrival_ns == here.far_end_ns and ports[hop.port].node == node and hop not in chain
                ]
                if ports[here.port].peer == packet.destination:
                    delivered = not lost
                    break
                if lost or not following:
                    break
                left.remove(following[0])
                chain.append(following[0])
            found.append(Transmission(tuple(chain), delivered))
        return sorted(found, key=lambda sent: sent.arrival_ns)

    def _hop(self, row: int) -> Hop:
        record = self._records[row]
        port = int(record["port"])
        far_end = int(record["far_end_ns"]) - self.epoch_ns
        departure = far_end - self._propagation_ns[port]
        start = departure - int(self.wire_ns(port, int(record["wire_bytes"])))
        return Hop(port, int(record["arrival_ns"]) - self.epoch_ns, start, departure, far_end, row)

    def lost_on_link(self, hop: Hop) -> bool:
        """Whether the link failed under it. What is lost by chance no record tells."""
        down = self._down.get(hop.port)
        return down is not None and hop.departure_ns > down[0] and hop.start_ns < down[1]

    # ---- who was served while it waited ----

    def services(self, port: int) -> tuple[Ints, Ints, Ints]:
        """(row, start, departure) of all data that the port served, in this order."""
        rows = np.flatnonzero(self._records["port"] == port)
        departure = self._records["far_end_ns"][rows].astype(np.int64) - self.epoch_ns - self._propagation_ns[port]
        return rows, departure - self.wire_ns(port, self._records["wire_bytes"][rows].astype(np.int64)), departure

    def is_of(self, rows: Ints, flow: Flow) -> NDArray[np.bool_]:
        """Which rows of the trace are of a flow."""
        records = self._records
        own = (records["source"][rows] == flow.source) & (records["destination"][rows] == flow.destination)
        return np.asarray(own & ((records["psn"][rows] >= BACKGROUND_PSN) == flow.background))

    def arrivals(self, packet: Packet) -> list[int]:
        """When each packet of a packet's flow came to its NIC, in order."""
        rows, _, _ = self.services(packet.source)
        rows = rows[self.is_of(rows, packet.flow)]
        return [int(time) for time in self._records["arrival_ns"][rows].astype(np.int64) - self.epoch_ns]

    def ahead(self, hop: Hop) -> tuple[list[Share], int]:
        """What each flow had of the time that a packet waited at a port, the largest first; and what control had of it."""
        rows, start, departure = self.services(hop.port)
        before = rows < hop.row
        rows, start, departure = rows[before], start[before], departure[before]
        overlap = np.minimum(departure, hop.start_ns) - np.maximum(start, hop.arrival_ns)
        some = overlap > 0
        shares = self.shares(rows[some], overlap[some])
        rest = hop.waited_ns - int(overlap[some].sum())
        if rest < 0:
            raise unsound(f"port {hop.port} served two packets at once")
        return shares, rest

    def shares(self, rows: Ints, amounts: Ints) -> list[Share]:
        """Amounts of rows, put together by flow; the largest first."""
        records = self._records
        pair = (records["source"][rows].astype(np.int64) * self._hosts + records["destination"][rows]) * 2
        pair += records["psn"][rows] >= BACKGROUND_PSN
        shares = []
        for key in np.unique(pair).tolist():
            mine = pair == key
            source, destination = divmod(key // 2, self._hosts)
            shares.append(Share(Flow(source, destination, bool(key % 2)), int(mine.sum()), int(amounts[mine].sum())))
        return sorted(shares, key=lambda share: -share.kernel_ns)

    # ---- what its sender did ----

    @cached_property
    def _of_last_flow(self) -> NDArray[np.void]:
        events, packet = self._events, self.last_packet
        return np.asarray(events[(events["source"] == packet.source) & (events["destination"] == packet.destination)])

    def sendings(self) -> Iterable[tuple[int, int, int]]:
        """(PSN, time, since when it might be sent) of every sending of the last packet's flow, in their order."""
        sent = self._of_last_flow[self._of_last_flow["kind"] == EventKind.SENT]
        times, since = (sent[name].astype(np.int64) - self.epoch_ns for name in ("time_ns", "since_ns"))
        return zip(sent["psn"].tolist(), times.tolist(), since.tolist(), strict=True)

    def losses(self, psn: int) -> list[tuple[int, EventKind]]:
        """When its sender took a packet of the last one's flow to be lost, and by what, in their order."""
        found = self._of_last_flow[(self._of_last_flow["kind"] != EventKind.SENT) & (self._of_last_flow["psn"] == psn)]
        return [(int(event["time_ns"]) - self.epoch_ns, EventKind(event["kind"])) for event in found]


def _mapped(path: Path, fields: list[tuple[str, str]]) -> NDArray[np.void]:
    """A file of records, not read before it is looked at."""
    kind = np.dtype(fields)
    if not path.stat().st_size:
        return np.zeros(0, dtype=kind)
    return np.memmap(path, dtype=kind, mode="r")
