"""The C extension: see __init__.py for what the arguments mean."""

from typing import Any

from testbed.engine import EngineOutput

def run(
    *,
    flows: bytes,
    byte_ns: bytes,
    start_ns: bytes,
    propagation_ns: bytes,
    windows: bytes,
    head: memoryview,
    records: memoryview,
    ports: memoryview,
    feedback: memoryview,
    mtu_bytes: int,
    seed: int,
    discipline: int,
    balancing: int,
    recovery: int,
    control_kind: int,
    period_ns: int,
    lead_ns: int,
    limit_ns: int,
    bucket_ns: int,
    slot_ns: int,
    rto_ns: int,
    reorder_ns: int,
    probe_ns: int,
    tail_probe_ns: int,
    epoch_ns: int,
    rates_ns: int,
    linger_ns: int,
    dilation: float,
    controls: list[Any] | None,
    calls_on_sent: bool,
    late_records: bool,
    ifindex: int,
    sockets: int,
    progress_fd: int,
    trace_fd: int,
) -> EngineOutput: ...
