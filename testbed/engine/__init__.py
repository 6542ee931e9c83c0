"""The engine: sends for all hosts and measures. C underneath (engine.h says how it works); this is its typed face."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypedDict

from controller.errors import CannotRunError

__all__ = [
    "BACKGROUND_FIELDS",
    "BACKGROUND_PSN",
    "ENTROPY_VALUES",
    "FLOW_FIELDS",
    "FLOW_RESULT_FIELDS",
    "MAX_SOCKETS",
    "RECORD_FIELDS",
    "RECORD_CAPACITY",
    "RECEIVED_WORDS",
    "STAGE_FIELDS",
    "Balancing",
    "ControlKind",
    "Controls",
    "EngineInput",
    "EVENT_FIELDS",
    "EngineOutput",
    "EventKind",
    "FabricMemory",
    "LossRecovery",
    "run",
]

RECORD_CAPACITY: Final = 1 << 18
"""Records that the fabric keeps between two wakes of the engine (ebpf/include/fabric.h)."""
MAX_SOCKETS: Final = 64
ENTROPY_VALUES: Final = 64

FLOW_FIELDS: Final = [
    ("source", "<u4"),
    ("destination", "<u4"),
    ("ready_ns", "<u8"),
    ("packets", "<u4"),
    ("last_bytes", "<u4"),
    ("steps", "<u4"),
    ("word", "<u4"),
    ("before_steps", "<u4"),
    ("quantum_bytes", "<u4"),
]
"""NumPy layout of struct flow (transport.h). Sorted by source, then in round-robin order."""

STAGE_FIELDS: Final = [
    ("source", "<u4"),
    ("destination", "<u4"),
    ("packets", "<u4"),
    ("number", "<u4"),
    ("start_ns", "<u8"),
]
"""NumPy layout of struct stage (sender.h). Sorted by source, then by number. packets: of the flow, up to the stage's end."""

BACKGROUND_FIELDS: Final = [
    ("source", "<u4"),
    ("destination", "<u4"),
    ("ready_ns", "<u8"),
    ("packets", "<u4"),
    ("last_bytes", "<u4"),
    ("steps", "<u4"),
    ("first_psn", "<u4"),
]
"""NumPy layout of struct background_flow (background.h). Sorted by source."""
BACKGROUND_PSN: Final = 1 << 31
"""In the PSN of a background flow's packet (frame.h)."""

RECORD_FIELDS: Final = [
    ("arrival_ns", "<u8"),
    ("far_end_ns", "<u8"),
    ("port", "<u2"),
    ("wire_bytes", "<u2"),
    ("source", "<u2"),
    ("destination", "<u2"),
    ("psn", "<u4"),
    ("reserved", "<u4"),
]
"""NumPy layout of struct record (fabric.h)."""

EVENT_FIELDS: Final = [
    ("time_ns", "<u8"),
    ("since_ns", "<u8"),
    ("psn", "<u4"),
    ("source", "<u2"),
    ("destination", "<u2"),
    ("kind", "u1"),
    ("copy", "u1"),
    ("reserved", "V6"),
]
"""NumPy layout of struct event (events.h). since_ns of a packet sent: its flow may send, by window and start, since then."""

FLOW_RESULT_FIELDS: Final = [
    ("done_ns", "<u8"),
    ("retransmissions", "<u4"),
    ("nacks", "<u4"),
    ("timeouts", "<u4"),
    ("sack_losses", "<u4"),
    ("probes", "<u4"),
    ("reserved", "<u4"),
]
"""NumPy layout of struct flow_result (module.c). done_ns: last ACK at the sender, 0 without a transport."""

RECEIVED_WORDS: Final = 1 << 21
"""Words of 64 packets in which receivers remember what has come in (fabric.h)."""


class Balancing(IntEnum):
    """Load balancing at the sender; the values are those of entropy.h."""

    OPS = 0
    ECMP = 1
    REPS = 2
    AR = 3


class LossRecovery(IntEnum):
    """How a sender finds losses; the values are those of transport.h."""

    SACK = 0
    TIMEOUT = 1
    NONE = 2


class EventKind(IntEnum):
    """What a sender did; the values are those of events.h."""

    SENT = 0
    NACK = 1
    """And from here on: found a packet to be lost, by a NACK."""
    SACK = 2
    TIMEOUT = 3
    PROBE = 4


class ControlKind(IntEnum):
    """What congestion controls answer with; the values are those of control.h."""

    NONE = 0
    WINDOW = 1
    RATE = 2


@dataclass(frozen=True)
class EngineInput:
    """One phase. Times are kernel times: fabric time multiplied by the dilation."""

    flows: bytes
    """Array of FLOW_FIELDS."""
    background: bytes
    """Array of BACKGROUND_FIELDS."""
    mailbox: bytes
    """What the hosts' DPUs are sent, as testbed/dpu_model.py lays it out; empty with any other NIC."""
    byte_ns: bytes
    """uint64 a host: time of one byte at its NIC's speed, in 2^-32 ns."""
    start_ns: bytes
    """uint64 a host: when it starts, after the common start."""
    propagation_ns: bytes
    """uint32 a port."""
    mtu_bytes: int
    seed: int
    discipline: int
    balancing: int
    recovery: int
    rto_ns: int
    reorder_ns: int
    probe_ns: int
    tail_probe_ns: int
    dilation: float
    period_ns: int
    """Between two wakes, each of which serves all NICs for one period."""
    lead_ns: int
    """How long before the period that it is for a wake comes."""
    limit_ns: int
    """After the common start: a run that lasts longer ends in TimeoutError."""
    bucket_ns: int
    """First width of the time series' buckets; doubles when they do not suffice."""
    slot_ns: int
    sockets: int
    epoch_ns: int
    """The common start, on the kernel's monotonic clock: at least a second away."""
    rates_ns: int
    """After the common start: when the flows' steps come into force, and their before_steps until then; 0: at once."""
    late_records: bool
    """The fabric writes a record when a packet leaves a port, and while the engine reads: all are measured in the end."""
    linger_ns: int
    """So long may a packet be where no record tells of it: a phase ends when nothing was heard of for so long."""
    freeze_ns: int
    """REPS: so long after a timeout a flow keeps to entropy values that it knows."""
    stages: bytes = b""
    """Array of STAGE_FIELDS, for the discipline STAGED."""
    barrier: bool = False
    """A stage begins when all of those before it have come, and barrier_ns later."""
    barrier_ns: int = 0


@dataclass(frozen=True)
class FabricMemory:
    """What engine and fabric share, and where frames enter."""

    head: memoryview
    records: memoryview
    feedback: memoryview
    ports: memoryview
    ifindex: int


@dataclass(frozen=True)
class Controls:
    """The flows' congestion controls, one a flow, and the answers that they start with (float64)."""

    kind: ControlKind = ControlKind.NONE
    objects: list[Any] | None = None
    starts: bytes = b""
    calls_on_sent: bool = False


class EngineOutput(TypedDict):
    """What the C engine returns."""

    epoch_ns: int
    sent_packets: int
    """Of the demand."""
    background_sent: int
    background_delivered: int
    background_trimmed: int
    """Packets of background flows: at their senders, and whole or as headers at their receivers."""
    packet_hops: int
    late_packets: int
    """That did not reach the end of a link when they were due: 0, or no time is exact."""
    lateness_max_ns: int
    """Where links are veth: how late the latest packet was."""
    timed: int
    """And how often it was looked: arrivals, and services of switches that are processes."""
    acks: int
    nacks: int
    """Sent by the receivers."""
    heard: int
    """ACKs and NACKs that reached their senders."""
    dpu_messages: int
    """That DPUs were sent and accepted."""
    dpu_cnps: int
    dpu_nacks: int
    dpu_unknown: int
    """Events that they were told of: CNPs, NACKs, and packets of flows that were not bound or had no rate."""
    total_queue_max_bytes: int
    bucket_ns: int
    flow_results: bytes
    """FLOW_RESULT_FIELDS, one a flow."""
    port_queue_max_bytes: bytes
    """uint64 a port."""
    series_queue_bytes: bytes
    """uint64, ports x buckets: the deepest queue in the bucket."""
    series_sent_bytes: bytes
    """uint64, ports x buckets: bytes whose serialisation ended in the bucket."""


def run(
    given: EngineInput,
    fabric: FabricMemory,
    controls: Controls,
    progress_fd: int,
    trace_fd: int,
    events_fd: int = -1,
) -> EngineOutput:
    """Sends all flows and returns when all is acknowledged; without a transport, when all arrived or was dropped.

    Progress goes to ``progress_fd`` as lines "@progress TIME_NS DELIVERED EXPECTED", every record to ``trace_fd``, what
    senders do (EVENT_FIELDS) to ``events_fd``; -1 for none. Raises TimeoutError at the limit, OSError where the kernel refuses to send, and what a control raises.
    """
    try:
        from testbed.engine import _engine
    except ImportError as error:
        raise CannotRunError(f"the engine was not built ({error}): run make setup") from None
    result: EngineOutput = _engine.run(
        flows=given.flows,
        background=given.background,
        mailbox=given.mailbox,
        byte_ns=given.byte_ns,
        start_ns=given.start_ns,
        propagation_ns=given.propagation_ns,
        windows=controls.starts,
        head=fabric.head,
        records=fabric.records,
        ports=fabric.ports,
        feedback=fabric.feedback,
        mtu_bytes=given.mtu_bytes,
        seed=given.seed,
        discipline=given.discipline,
        balancing=given.balancing,
        recovery=given.recovery,
        control_kind=int(controls.kind),
        period_ns=given.period_ns,
        lead_ns=given.lead_ns,
        limit_ns=given.limit_ns,
        bucket_ns=given.bucket_ns,
        slot_ns=given.slot_ns,
        rto_ns=given.rto_ns,
        reorder_ns=given.reorder_ns,
        probe_ns=given.probe_ns,
        tail_probe_ns=given.tail_probe_ns,
        epoch_ns=given.epoch_ns,
        rates_ns=given.rates_ns,
        linger_ns=given.linger_ns,
        freeze_ns=given.freeze_ns,
        late_records=given.late_records,
        dilation=given.dilation,
        controls=controls.objects,
        calls_on_sent=controls.calls_on_sent,
        ifindex=fabric.ifindex,
        sockets=given.sockets,
        progress_fd=progress_fd,
        trace_fd=trace_fd,
        stages=given.stages,
        barrier=given.barrier,
        barrier_ns=given.barrier_ns,
        events_fd=events_fd,
    )
    return result
