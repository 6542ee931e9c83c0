"""Where the time of a phase's last byte went: parts that follow each other without a gap, so that they sum to its duration.

Until its first sending a byte waits at its sender: for the start, for its flow's turn or pace, or for a window that is
closed. Each sending that fails costs its way, the time until the sender knows, and the wait to be sent again. The sending
that arrives waits in queues and takes its time on wires.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from controller.schedule.plan import Discipline
from testbed.engine import ControlKind, EventKind
from testbed.experiment import Run
from testbed.explain.trace import Flow, Packet, Share, Trace, Transmission, unsound
from testbed.job import start_offsets
from testbed.phases import phases_of
from testbed.scenario import Scenario
from testbed.times import delay_ns

__all__ = ["GROUPS", "Part", "PhaseAccount", "account_of"]

SENDER, CONTROL, RETRANSMISSION, QUEUE, WIRE = "sender", "control", "retransmission", "queue", "wire"
GROUPS: Final = {
    SENDER: "waiting at its sender",
    CONTROL: "held by the congestion control",
    RETRANSMISSION: "retransmission",
    QUEUE: "queues",
    WIRE: "wires",
}
IDLE: Final = "its NIC sent answers, or nothing"
IDLE_STAGED: Final = "its stage or one before it had not begun, or its NIC sent answers"
_STEP_BITS: Final = 32
_FOUND: Final = {
    EventKind.NACK: "until the NACK was back",
    EventKind.SACK: "until SACKs showed it",
    EventKind.TIMEOUT: "until its timeout",
    EventKind.PROBE: "until a probe was due",
}


@dataclass(frozen=True)
class Part:
    """A piece of the time."""

    group: str
    """Of GROUPS."""
    where: str
    """Host, or port as node-node."""
    what: str
    kernel_ns: int
    shared: tuple[Share, ...] = ()
    """Flows that had this time; what they lack of it is control (ACKs, NACKs, trimmed headers)."""


@dataclass(frozen=True)
class PhaseAccount:
    """Of one phase."""

    phase: int
    name: str
    packet: Packet
    wire_bytes: int
    packets: int
    """Of its flow."""
    sendings: int
    """Of the packet, up to that which arrived."""
    others_at_once: int
    """Packets that arrived in the same nanosecond."""
    kernel_ns: int
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = field(default=())


def account_of(scenario: Scenario, run: Run, trace: Trace, phase: int) -> PhaseAccount:
    """The account of a phase. Raises CannotRunError where the records do not add up."""
    packet = trace.last_packet
    transmissions = trace.transmissions(packet)
    last = next(
        (n for n, sent in enumerate(transmissions) if sent.delivered and sent.end_ns == trace.duration_ns), None
    )
    if last is None:
        raise unsound("no sending of the last packet arrived when it did")
    made = _Account(scenario, run, trace, phase)
    parts = made.before(transmissions[0])
    for number, (failed, following) in enumerate(pairwise(transmissions[: last + 1])):
        parts += made.failed(number, failed, following)
    parts += made.way(transmissions[last])
    total = sum(part.kernel_ns for part in parts)
    if total != trace.duration_ns or any(part.kernel_ns < 0 for part in parts):
        raise unsound(f"the parts sum to {total} ns of {trace.duration_ns}")
    demand = made.wire_bytes
    mtu = scenario.experiment.mtu_bytes
    packets = int(-(-demand // mtu))
    return PhaseAccount(
        phase,
        made.name,
        packet,
        int(demand - (packets - 1) * mtu) if packet.psn == packets - 1 else mtu,
        packets,
        last + 1,
        trace.others_at_once,
        trace.duration_ns,
        tuple(part for part in parts if part.kernel_ns),
        tuple(made.notes),
    )


class _Account:
    def __init__(self, scenario: Scenario, run: Run, trace: Trace, phase: int) -> None:
        self._scenario, self._run, self._trace = scenario, run, trace
        self._packet = trace.last_packet
        self._host = scenario.wiring.hosts[self._packet.source]
        planned = list(phases_of(scenario, run))[phase]
        plan, self.name = planned.plan, planned.name
        self.wire_bytes = int(planned.demand.wire_bytes[self._packet.source, self._packet.destination])
        self._by_control = trace.control_kind == ControlKind.RATE
        self._by_window = trace.control_kind == ControlKind.WINDOW
        self._paced = plan.discipline is Discipline.PACED or self._by_control
        self._steps = plan.steps
        self._staged = plan.discipline is Discipline.STAGED
        self._delayed = planned.first and (self._staged or plan.discipline is Discipline.PACED)
        self._sent = list(trace.sendings())
        self._own = [sending for sending in self._sent if sending[0] == self._packet.psn]
        self._own_place = self._sent.index(self._own[0])
        if len(self._sent) != len(trace.arrivals(self._packet)):
            raise unsound("the sender and its NIC disagree on what was sent")
        self.notes: list[str] = []

    def _part(self, group: str, what: str, kernel_ns: int, shared: Sequence[Share] = ()) -> Part:
        return Part(group, self._host, what, kernel_ns, tuple(shared))

    @property
    def _pace(self) -> tuple[str, str]:
        """Group and text of a wait between two packets of a paced flow."""
        if not self._by_control:
            share = 100 * float(self._steps[self._packet.source, self._packet.destination]) / 2**_STEP_BITS
            return SENDER, f"pace of its flow (R = {share:.3g} % of line rate)"
        self._note("a control sets the rates: what of the pace is the schedule's own is not told apart")
        return CONTROL, "pace of its flow, set by the control"

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # ---- until the first sending ----

    def before(self, first: Transmission) -> list[Part]:
        """From the common start until the packet first comes to its NIC."""
        until = first.arrival_ns
        begin = self._sent[0][2]  # its flow might send
        late = min(int(start_offsets(self._scenario)[self._packet.source]), begin)
        delay_all = 0
        if self._delayed:
            delay_all = delay_ns(self._scenario.experiment.control_delay_ns, self._scenario.dilation)
        # With old rates (meanwhile) a flow need not have waited for its own.
        delay = delay_all - late if late < delay_all <= begin else 0
        return [
            self._part(SENDER, "starts late (start_jitter_ns)", late),
            self._part(CONTROL, "until its rate was in force (control_delay_ns)", delay),
            self._part(SENDER, "first gap of its pace (phase)", begin - late - delay),
            *(self._at_pace(begin, until) if self._paced else self._in_turn(begin, until)),
        ]

    def _at_pace(self, begin: int, until: int) -> list[Part]:
        """From when its flow might send: all that the window has not added is the pace."""
        held = 0
        arrivals = self._trace.arrivals(self._packet)
        for number in range(1, self._own_place + 1):
            since = self._sent[number][2]
            if arrivals[number] <= since:  # it was the window that let it go
                held += max(0, since - arrivals[number - 1] - self._gap_ns(number))
        group, what = self._pace
        return [
            self._part(CONTROL, "its window was closed", held),
            self._part(group, what, until - begin - held),
        ]

    def _gap_ns(self, number: int) -> int:
        """Of the schedule's pace before a sending, to the nanosecond (ebpf/include/edt.h)."""
        packet = self._packet
        steps = int(self._steps[packet.source, packet.destination])
        wire_bytes = self._bytes_of(self._sent[number][0])
        return (int(self._trace.wire_ns(packet.source, wire_bytes)) << _STEP_BITS) // steps if steps else 0

    def _bytes_of(self, psn: int) -> int:
        mtu = self._scenario.experiment.mtu_bytes
        return min(mtu, self.wire_bytes - psn * mtu)

    def _in_turn(self, begin: int, until: int) -> list[Part]:
        """From when its flow might send: what its NIC did, but while the flow's window was closed."""
        rows, start, departure = self._trace.services(self._packet.source)
        mine = self._trace.is_of(rows, self._packet.flow)
        own_start, own_departure = start[mine], departure[mine]
        held = 0
        waits: list[tuple[int, int]] = []
        at = begin
        for number in range(self._own_place + 1):
            ends = until if number == self._own_place else min(int(own_start[number]), until)
            if number and self._sent[number][2] > self._sent[number - 1][1]:
                sent = max(at, min(int(own_departure[number - 1]), ends))
                opened = max(sent, min(self._sent[number][2], ends))
                waits.append((at, sent))
                held += opened - sent
                at = opened
            waits.append((at, max(at, ends)))
            at = max(at, ends)
        shared, own = self._turns(rows, start, departure, [wait for wait in waits if wait[1] > wait[0]])
        others = sum(share.kernel_ns for share in shared)
        idle = until - begin - held - own - others
        if self._staged and not self._by_window:  # then it was its stage that let it go
            held, idle = 0, held + idle
        return [
            self._part(CONTROL, "its window was closed", held),
            self._part(SENDER, "earlier packets of its own flow on the wire", own),
            self._part(SENDER, "turns of its sender's other flows", others, shared),
            self._part(SENDER, IDLE_STAGED if self._staged else IDLE, idle),
        ]

    def _turns(
        self,
        rows: NDArray[np.int64],
        start: NDArray[np.int64],
        departure: NDArray[np.int64],
        waits: list[tuple[int, int]],
    ) -> tuple[list[Share], int]:
        """What other flows' packets had of some intervals, which follow each other; and what the own flow's had."""
        if not waits:
            return [], 0
        edges = np.array(waits, dtype=np.int64)
        lengths = np.cumsum(edges[:, 1] - edges[:, 0])

        def inside(times: NDArray[np.int64]) -> NDArray[np.int64]:
            """How much of the intervals lies before each time."""
            place = np.searchsorted(edges[:, 0], times, side="right") - 1
            known = np.maximum(place, 0)
            before = np.where(place > 0, lengths[known - 1], 0)
            return np.where(place < 0, 0, before + np.minimum(times, edges[known, 1]) - edges[known, 0])

        overlap = inside(departure) - inside(start)
        some = overlap > 0
        shares = self._trace.shares(rows[some], overlap[some])
        own = sum(share.kernel_ns for share in shares if share.flow == self._packet.flow)
        return [share for share in shares if share.flow != self._packet.flow], own

    # ---- sendings that failed ----

    def failed(self, number: int, sent: Transmission, following: Transmission) -> list[Part]:
        """From when a packet came to its NIC in vain until it comes there again."""
        named = f"sending {number + 1}"
        found = [
            loss for loss in self._trace.losses(self._packet.psn) if sent.arrival_ns <= loss[0] <= following.arrival_ns
        ]
        if not found:
            raise unsound("a packet was sent again that nobody had missed")
        known_ns, why = found[-1]
        gone_ns = min(max(sent.arrival_ns, sent.end_ns), known_ns)
        since = self._own[number + 1][2]
        held = max(0, min(since, following.arrival_ns) - known_ns)
        rest = following.arrival_ns - known_ns - held
        group, what = self._pace if self._paced else (SENDER, "turn of its flow")
        whole = sent.end_ns <= known_ns
        waited, shares = self._queues_of(sent) if whole else (0, [])
        end, fate = self._end(sent, known_ns), self._fate(sent, why, known_ns)
        return [
            Part(RETRANSMISSION, end, f"{named}: queues up to there", waited, tuple(shares)),
            Part(
                RETRANSMISSION,
                end,
                f"{named}: {'wires; ' if whole else ''}{fate}",
                gone_ns - sent.arrival_ns - waited,
            ),
            self._part(RETRANSMISSION, f"{named}: {_FOUND[why]}", known_ns - gone_ns),
            self._part(CONTROL, f"its window was closed after sending {number + 1}", held),
            self._part(RETRANSMISSION if group == SENDER else group, f"{what} after sending {number + 1}", rest),
        ]

    def _queues_of(self, sent: Transmission) -> tuple[int, list[Share]]:
        """How long a sending waited at all ports together, and behind whom."""
        shares: dict[Flow, Share] = {}
        for hop in sent.hops:
            for share in self._trace.ahead(hop)[0]:
                known = shares.get(share.flow, Share(share.flow, 0, 0))
                shares[share.flow] = Share(share.flow, known.packets + share.packets, known.kernel_ns + share.kernel_ns)
        waited = sum(hop.waited_ns for hop in sent.hops)
        return waited, sorted(shares.values(), key=lambda share: -share.kernel_ns)

    def _end(self, sent: Transmission, known_ns: int) -> str:
        """Where it was seen last."""
        if sent.end_ns > known_ns:
            return self._host
        return self._scenario.wiring.ports[sent.hops[-1].port].peer_node

    def _fate(self, sent: Transmission, why: EventKind, known_ns: int) -> str:
        if sent.delivered:
            return "on its way, and taken to be lost"
        if sent.end_ns > known_ns:
            return "on its way, and given up before it was lost"
        if self._trace.lost_on_link(sent.hops[-1]):
            return "lost on a link that failed"
        if why == EventKind.NACK:
            self._note("from the port that trimmed it to the NACK at its sender no record tells header and NACK apart")
            return "found no room, was trimmed"
        return self._unknown_fate(len(sent.hops) == 1)

    def _unknown_fate(self, on_first_link: bool) -> str:
        experiment = self._scenario.experiment
        if experiment.loss_data and on_first_link:
            self._note(
                "whether a packet was lost by chance on its first link or found no room behind it no record tells"
            )
            return "lost by chance, or found no room"
        if experiment.trimming:
            self._note("of a trimmed packet without a NACK no record tells whether header or NACK was lost")
            return "found no room, its header or NACK was lost"
        return "found no room, was dropped"

    # ---- the sending that arrived ----

    def way(self, sent: Transmission) -> list[Part]:
        """Its queues and wires."""
        ports, parts = self._scenario.wiring.ports, []
        for hop in sent.hops:
            port = ports[hop.port]
            where = f"{port.node}-{port.peer_node}"
            shares, control = self._trace.ahead(hop)
            what = "queue, with control (ACKs, headers)" if control else "queue"
            parts += [
                Part(QUEUE, where, what, hop.waited_ns, tuple(shares)),
                Part(WIRE, where, "packet on the wire", hop.departure_ns - hop.start_ns),
                Part(WIRE, where, "propagation", hop.far_end_ns - hop.departure_ns),
            ]
        return parts
