"""What real programs did, in fabric time: their flows at the hosts, the queues on the way, and the spans that they noted.

A span is a line "NAME BEGIN_NS END_NS [BYTES ...]" that a rank wrote to the file $INCASTFREE_SPANS: times of its monotonic
clock, and the payload that it sent to each rank in between. The k-th span of a name on every rank is one collective.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.demand import HEADER_BYTES, Demand
from controller.errors import InputError
from testbed.scenario import Scenario

__all__ = ["collectives", "figures", "flow_columns", "read_spans"]

_DIGITS: Final = 3
_TIMES: Final = 2
_RECEIVED: Final = [
    ("src", "<i8"),
    ("dst", "<i8"),
    ("bytes", "<i8"),
    ("packets", "<i8"),
    ("first_ns", "<i8"),
    ("last_ns", "<i8"),
]
"""FabricPrograms.flows."""

Span = tuple[int, int, list[int]]
"""(begin, end, payload to each rank or nothing)."""


def read_spans(file: Path, rank: int, hosts: int) -> dict[str, list[Span]]:
    """The spans of one rank by their names, in kernel time. Raises InputError that names the line."""
    spans: dict[str, list[Span]] = {}
    if not file.exists():
        return spans
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
        name, *words = line.split() or [""]
        try:
            times = [int(word) for word in words]
        except ValueError:
            times = []
        sizes = times[_TIMES:]
        if len(times) < _TIMES or times[1] < times[0] or len(sizes) not in (0, hosts) or min(sizes, default=0) < 0:
            raise InputError(
                f"rank {rank}: line {number} of its spans is {line[:80]!r}: a program writes NAME BEGIN_NS END_NS, the end not "
                f"before the begin, and bytes to {hosts} ranks or none"
            )
        spans.setdefault(name, []).append((times[0], times[1], sizes))
    return spans


def collectives(scenario: Scenario, spans: list[dict[str, list[Span]]], begin_ns: int) -> list[dict[str, Any]]:
    """One entry for what all ranks did together, in the order of its beginning. Raises InputError where a rank lacks one.

    cct_ns: from the first rank's begin to the last rank's end. The lower bound is that of its bytes on the wire, if all
    ranks said them.
    """
    found: list[dict[str, Any]] = []
    for name in sorted(set().union(*spans)):
        counts = [len(each.get(name, [])) for each in spans]
        if min(counts) != max(counts):
            raise InputError(
                f"span {name}: rank {counts.index(max(counts))} noted {max(counts)}, rank {counts.index(min(counts))} "
                f"{min(counts)}: every rank must note what they do together"
            )
        for turn in range(counts[0]):
            together = [each[name][turn] for each in spans]
            first_ns, last_ns = min(span[0] for span in together), max(span[1] for span in together)
            found.append(
                {
                    "name": name,
                    "turn": turn,
                    "begin_ns": _fabric_ns(first_ns - begin_ns, scenario.dilation),
                    "cct_ns": _fabric_ns(last_ns - first_ns, scenario.dilation),
                    **_against_bound(scenario, [span[2] for span in together], last_ns - first_ns),
                }
            )
    return sorted(found, key=lambda each: (each["begin_ns"], each["name"]))


def _against_bound(scenario: Scenario, payload: list[list[int]], cct_ns: int) -> dict[str, Any]:
    """What the demand of a collective says of it; nothing where a rank did not say its bytes, or none is sent."""
    if not all(payload) or not any(map(any, payload)):
        return {"wire_bytes": None, "lower_bound_ns": None, "inflation": None, "bottleneck": None}
    demand = wire_demand(np.array(payload, dtype=np.int64), scenario.experiment.mtu_bytes)
    if not demand.total_bytes:
        return {"wire_bytes": 0, "lower_bound_ns": 0, "inflation": None, "bottleneck": None}
    bottleneck = demand.bottleneck(scenario.speeds_bps)
    bound_ns = float(bottleneck.time_s * 10**9)
    return {
        "wire_bytes": demand.total_bytes,
        "lower_bound_ns": round(bound_ns, _DIGITS),
        "inflation": float(cct_ns / scenario.dilation) / bound_ns - 1,
        "bottleneck": f"{bottleneck.side} {scenario.wiring.hosts[bottleneck.host]}",
    }


def wire_demand(payload: NDArray[np.int64], mtu_bytes: int) -> Demand:
    """Payload bytes N x N, the diagonal local, to bytes on the wire, as controller.demand counts them."""
    remote = payload.copy()
    np.fill_diagonal(remote, 0)
    return Demand(remote + HEADER_BYTES * -(-remote // (mtu_bytes - HEADER_BYTES)), int(np.trace(payload)))


def flow_columns(scenario: Scenario, result: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """One row for every pair of hosts of which packets came: bytes on the wire, and times since the start."""
    rows = np.array([tuple(flow) for flow in result["flows"]], dtype=_RECEIVED)
    dilation = float(scenario.dilation)
    return {
        "src": rows["src"].astype(np.int32),
        "dst": rows["dst"].astype(np.int32),
        "delivered_bytes": rows["bytes"],
        "packets": rows["packets"],
        "first_arrival_ns": np.round((rows["first_ns"] - result["begin_ns"]) / dilation, _DIGITS),
        "last_arrival_ns": np.round((rows["last_ns"] - result["begin_ns"]) / dilation, _DIGITS),
    }


def figures(scenario: Scenario, result: Mapping[str, Any]) -> dict[str, Any]:
    """Flat, in fabric time."""
    hosts, wiring = len(scenario.wiring.hosts), scenario.wiring
    begin_ns = result["begin_ns"]
    ends_ns = [_fabric_ns(rank["end_ns"] - begin_ns, scenario.dilation) for rank in result["ranks"]]
    queues = [
        round(float(deepest_ns / scenario.dilation * port.gbps / 8))
        for deepest_ns, port in zip(result["deepest_ns"], wiring.ports, strict=True)
    ]
    facing = [wiring.host_port(host) for host in range(hosts)]
    inner = [queues[port.index] for port in wiring.ports[hosts:] if port.index not in set(facing)]
    hot = max(range(hosts), key=lambda host: queues[facing[host]])
    counters = {name: sum(port[name] for port in result["ports"]) for name in ("marks", "drops", "lost")}
    return {
        "duration_ns": max(ends_ns),
        "rank_begin_ns": [0.0] * hosts,
        "rank_end_ns": ends_ns,
        "exit_codes": [rank["status"] for rank in result["ranks"]],
        "delivered_bytes": sum(flow[2] for flow in result["flows"]),
        "packets": sum(flow[3] for flow in result["flows"]),
        "hot_queue_max_bytes": queues[facing[hot]],
        "hot_host": wiring.hosts[hot] if queues[facing[hot]] else None,
        "fabric_queue_max_bytes": max(inner, default=0),
        "nic_queue_max_bytes": max(queues[:hosts]),
        **counters,
        "late_packets": result["late_packets"],
    }


def _fabric_ns(kernel_ns: int, dilation: Fraction) -> float:
    return round(float(kernel_ns / dilation), _DIGITS)
