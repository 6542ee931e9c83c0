"""The engine: sends for all hosts and measures. C underneath (engine.c); this is its typed face."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypedDict

from controller.errors import CannotRunError

__all__ = [
    "ENTROPY_VALUES",
    "FLOW_FIELDS",
    "MAX_SOCKETS",
    "RECORD_FIELDS",
    "RECORD_CAPACITY",
    "Balancing",
    "EngineInput",
    "EngineOutput",
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
    ("reserved", "<u4"),
]
"""NumPy layout of struct flow (sender.h). Sorted by source, then in round-robin order."""

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


class Balancing(IntEnum):
    """Load balancing at the sender; the values are those of entropy.h."""

    OPS = 0
    ECMP = 1


@dataclass(frozen=True)
class EngineInput:
    """One phase. Times are kernel times: fabric time multiplied by the dilation."""

    flows: bytes
    """Array of FLOW_FIELDS."""
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
    period_ns: int
    """Between two wakes; every NIC is served one to two periods ahead."""
    limit_ns: int
    """After the common start: a run that lasts longer ends in TimeoutError."""
    bucket_ns: int
    """First width of the time series' buckets; doubles when they do not suffice."""
    slot_ns: int
    sockets: int


class EngineOutput(TypedDict):
    """What the C engine returns."""

    epoch_ns: int
    """The common start, on the kernel's monotonic clock."""
    sent_packets: int
    packet_hops: int
    late_packets: int
    """That did not reach the end of a link when they were due: 0, or no time is exact."""
    total_queue_max_bytes: int
    bucket_ns: int
    port_queue_max_bytes: bytes
    """uint64 a port."""
    series_queue_bytes: bytes
    """uint64, ports x buckets: the deepest queue in the bucket."""
    series_sent_bytes: bytes
    """uint64, ports x buckets: bytes whose serialisation ended in the bucket."""


def run(
    given: EngineInput, head: memoryview, records: memoryview, ifindex: int, progress_fd: int, trace_fd: int
) -> EngineOutput:
    """Sends all flows and returns when the last packet has arrived or been dropped.

    ``head`` and ``records`` are the fabric's record ring, ``ifindex`` its injection interface. Progress goes
    to ``progress_fd`` as lines "@progress TIME_NS DELIVERED EXPECTED", every record to ``trace_fd``; -1 for
    neither. Raises TimeoutError at the limit, OSError where the kernel refuses to send.
    """
    try:
        from testbed.engine import _engine
    except ImportError as error:
        raise CannotRunError(f"the engine was not built ({error}): run make setup") from None
    result: EngineOutput = _engine.run(
        flows=given.flows,
        byte_ns=given.byte_ns,
        start_ns=given.start_ns,
        propagation_ns=given.propagation_ns,
        head=head,
        records=records,
        mtu_bytes=given.mtu_bytes,
        seed=given.seed,
        discipline=given.discipline,
        balancing=given.balancing,
        period_ns=given.period_ns,
        limit_ns=given.limit_ns,
        bucket_ns=given.bucket_ns,
        slot_ns=given.slot_ns,
        ifindex=ifindex,
        sockets=given.sockets,
        progress_fd=progress_fd,
        trace_fd=trace_fd,
    )
    return result
