"""The C extension: see __init__.py for what the arguments mean."""

from testbed.engine import EngineOutput

def run(
    *,
    flows: bytes,
    byte_ns: bytes,
    start_ns: bytes,
    propagation_ns: bytes,
    head: memoryview,
    records: memoryview,
    mtu_bytes: int,
    seed: int,
    discipline: int,
    balancing: int,
    period_ns: int,
    limit_ns: int,
    bucket_ns: int,
    slot_ns: int,
    ifindex: int,
    sockets: int,
    progress_fd: int,
    trace_fd: int,
) -> EngineOutput: ...
