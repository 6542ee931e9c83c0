"""From what the guest wrote to figures in fabric time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import CannotRunError
from testbed.engine import FLOW_FIELDS, FLOW_RESULT_FIELDS, RECORD_FIELDS
from testbed.experiment import Run
from testbed.scenario import Scenario
from testbed.stage.host.budget import check_kept_up

__all__ = ["BUSY_FROM", "BUSY_TO", "RunData", "collect", "empty_figures"]

_RECEIVE_FIELDS: Final = [
    ("bytes", "<u8"),
    ("first_ns", "<u8"),
    ("last_ns", "<u8"),
    ("packets", "<u4"),
    ("total", "<u4"),
    ("word", "<u4"),
    ("cumulative", "<u4"),
    ("pending_bytes", "<u4"),
    ("duplicates", "<u4"),
    ("trimmed", "<u4"),
    ("ack_request", "<u4"),
    ("pending", "<u4"),
    ("reserved", "<u4"),
]
"""struct receive of ebpf/include/fabric.h."""
_DIGITS: Final = 3
"""Of a nanosecond: enough for any dilation up to 1,000 to stay exact."""
_ENOUGH_PACKETS: Final = 2000
BUSY_FROM, BUSY_TO = 0.05, 0.95
"""Share of the lower bound between which the bottleneck port's use is taken."""
_COUNTERS: Final = ("marks", "trims", "drops", "lost", "control")
"""Of each port."""
_BACKGROUND: Final = ("background_sent", "background_delivered", "background_trimmed")
"""Of the engine's output: packets. They are in the ports' counters, and in no other figure."""
_DPU: Final = ("dpu_messages", "dpu_cnps", "dpu_nacks", "dpu_unknown")
"""Likewise: what DPUs were sent and told, with nic doca-model."""
_RECOVERIES: Final = ("retransmissions", "nacks", "timeouts", "sack_losses", "probes")
"""Of each flow."""


@dataclass(frozen=True)
class RunData:
    """One run: flat figures, and the columns of its tables."""

    figures: dict[str, Any]
    flows: dict[str, NDArray[Any]]
    ports: dict[str, NDArray[Any]]
    counters: dict[str, NDArray[Any]]
    """One row a port, over all phases."""
    trace: dict[str, NDArray[Any]] | None


@dataclass
class _Phase:
    output: dict[str, Any]
    receives: NDArray[np.void]
    sending: NDArray[np.void]
    """FLOW_RESULT_FIELDS, hosts x hosts."""
    sizes: NDArray[np.int64]
    """What the network was to carry, hosts x hosts, wire bytes."""
    deepest: NDArray[np.uint64]
    queue: NDArray[np.uint64]
    sent: NDArray[np.uint64]
    duration_ns: float


def _read_phase(work: Path, number: int, scenario: Scenario, planned: dict[str, Any]) -> _Phase:
    output = {**planned, **json.loads((work / f"output-{number}.json").read_text())}
    hosts, ports = len(scenario.wiring.hosts), len(scenario.wiring.ports)

    def words(name: str) -> NDArray[np.uint64]:
        return np.fromfile(work / f"{name}-{number}.bin", dtype="<u8")

    receives = np.fromfile(work / f"receives-{number}.bin", dtype=_RECEIVE_FIELDS)[: hosts * hosts]
    last_ns = int(receives["last_ns"].max())
    flows = np.fromfile(work / f"flows-{number}.bin", dtype=FLOW_FIELDS)
    sending = np.zeros((hosts, hosts), dtype=FLOW_RESULT_FIELDS)
    sending[flows["source"], flows["destination"]] = np.fromfile(
        work / f"flow_results-{number}.bin", dtype=FLOW_RESULT_FIELDS
    )
    sizes = np.zeros((hosts, hosts), dtype=np.int64)
    full = (flows["packets"].astype(np.int64) - 1) * scenario.experiment.mtu_bytes
    sizes[flows["source"], flows["destination"]] = full + flows["last_bytes"]
    return _Phase(
        output,
        receives.reshape(hosts, hosts),
        sending,
        sizes,
        words("port_queue_max_bytes"),
        words("series_queue_bytes").reshape(ports, -1),
        words("series_sent_bytes").reshape(ports, -1),
        float(max(0, last_ns - output["epoch_ns"]) / scenario.dilation),
    )


def collect(scenario: Scenario, run: Run, work: Path) -> RunData:
    """Reads the files of all phases. Phases follow each other: each starts when the one before it ended."""
    planned = json.loads((work / "job.json").read_text())["phases"]
    phases = [_read_phase(work, number, scenario, phase) for number, phase in enumerate(planned)]
    expected_bytes = sum(int(phase.sizes.sum()) for phase in phases)
    _check_sound(scenario, phases, run.cc)
    hosts, wiring = len(scenario.wiring.hosts), scenario.wiring
    bounds_ns = [float(bottleneck.time_s * 10**9) for bottleneck in scenario.bottlenecks]
    cct_ns = sum(phase.duration_ns for phase in phases)
    lower_bound_ns = sum(bounds_ns)
    deepest = np.max([phase.deepest for phase in phases], axis=0)
    facing = np.array([wiring.host_port(host) for host in range(hosts)])
    others = np.setdiff1d(np.arange(hosts, len(wiring.ports)), facing)
    load = np.sum([phase.sizes.sum(axis=0) for phase in phases], axis=0)
    hot = int(np.lexsort((load, deepest[facing]))[-1])  # of equal queues, that of the host to which more is sent
    counted = phases[-1].output["ports"]
    counters = {name: sum(port[name] for port in counted) for name in _COUNTERS}
    last_ack_ns = _last_ack_ns(scenario, phases)
    packets = sum(phase.output["sent_packets"] for phase in phases)

    flows = _flow_columns(scenario, phases)
    done = np.full(hosts, np.nan)
    for destination in range(hosts):
        own = flows["dst"] == destination
        if own.any():
            done[destination] = flows["last_arrival_ns"][own].max()
    delivered_bytes = sum(int(phase.receives["bytes"].sum()) for phase in phases)
    complete = delivered_bytes == expected_bytes
    figures: dict[str, Any] = {
        "cct_ns": round(cct_ns, _DIGITS) if complete else None,
        "lower_bound_ns": round(lower_bound_ns, _DIGITS),
        "inflation": cct_ns / lower_bound_ns - 1 if complete else None,
        "cct_last_ack_ns": round(last_ack_ns, _DIGITS) if last_ack_ns is not None else None,
        "inflation_last_ack": last_ack_ns / lower_bound_ns - 1 if last_ack_ns is not None else None,
        "bottleneck": ", ".join(scenario.bottleneck_names),
        "bottleneck_busy": _busy(scenario, run, phases, bounds_ns),
        "lateness_max_ns": round(_lateness_max_ns(phases) / float(scenario.dilation), _DIGITS),
        "hot_queue_max_bytes": int(deepest[facing].max()),
        "hot_host": wiring.hosts[hot] if deepest[facing[hot]] else None,
        "fabric_queue_max_bytes": int(deepest[others].max()) if len(others) else 0,
        "total_queue_max_bytes": max(phase.output["total_queue_max_bytes"] for phase in phases),
        "delivered_bytes": delivered_bytes,
        "expected_bytes": expected_bytes,
        "plan_stages": sum(phase["stages"] for phase in planned),
        "plan_bytes": sum(phase["stages_bytes"] for phase in planned),
        **{name: counters[name] for name in ("marks", "trims", "drops", "lost")},
        "packets": packets,
        "acks": sum(phase.output["acks"] for phase in phases),
        **{f"{name}_packets": sum(phase.output[name] for phase in phases) for name in _BACKGROUND},
        **{name: sum(phase.output[name] for phase in phases) for name in _DPU},
        **{name: sum(int(phase.sending[name].sum()) for phase in phases) for name in _RECOVERIES},
        "nacked_share": sum(int(phase.sending["nacks"].sum()) for phase in phases) / packets,
        "duplicates": sum(int(phase.receives["duplicates"].sum()) for phase in phases),
        "late_packets": sum(phase.output["late_packets"] for phase in phases),
        "control_hops": counters["control"],
        "packet_hops": sum(phase.output["packet_hops"] for phase in phases),
        "receiver_done_ns": [None if np.isnan(t) else round(float(t), _DIGITS) for t in done],
        "receiver_done_ns_mean": _mean(done) if complete else None,
        "flow_done_ns_mean": _mean(flows["last_arrival_ns"]) if complete else None,
        "phase_cct_ns": [round(phase.duration_ns, _DIGITS) for phase in phases],
    }
    return RunData(
        figures,
        flows,
        _port_columns(scenario, phases),
        _counter_columns(scenario, counted),
        _trace_columns(scenario, work, phases),
    )


def _last_ack_ns(scenario: Scenario, phases: list[_Phase]) -> float | None:
    """Sum over the phases of the time of the last ACK at its sender; None in an open loop."""
    if scenario.experiment.loss_recovery == "none":
        return None
    last = (max(0, int(phase.sending["done_ns"].max()) - phase.output["epoch_ns"]) for phase in phases)
    return float(sum(last) / scenario.dilation)


def _check_sound(scenario: Scenario, phases: list[_Phase], cc: str) -> None:
    """Raises CannotRunError where the kernel did what it must not: late, or lost without a port's knowledge."""
    late = sum(phase.output["late_packets"] for phase in phases)
    if scenario.experiment.stage == "host":
        timed = sum(phase.output["timed"] for phase in phases)
        check_kept_up(late, _lateness_max_ns(phases), timed, scenario.dilation)
    elif late and scenario.bmv2:
        raise CannotRunError(
            f"{late} times BMv2 or a link was late by more than a part of a packet's time, once by "
            f"{_lateness_max_ns(phases) / 1e6:.3f} ms: give a larger dilation than {float(scenario.dilation):g}"
        )
    elif late:
        cause = f"{cc} must make no system call that fails or sleeps" if cc.endswith(".py") else "please report"
        raise CannotRunError(
            f"{late} packets came late to the end of a link, since the clock moved while something computed: the figures "
            f"would be wrong; {cause}"
        )
    gone_before = 0
    for phase in phases:
        ports = phase.output["ports"]
        sent = sum(phase.output[name] for name in ("sent_packets", "background_sent", "acks", "nacks"))
        came = int(sum(phase.receives[name].sum() for name in ("packets", "duplicates", "trimmed")))
        came += sum(phase.output[name] for name in ("heard", "background_delivered", "background_trimmed"))
        missing = sent - came
        gone = sum(port["drops"] + port["lost"] for port in ports)
        foreign = sum(port["foreign"] for port in ports)
        if foreign or missing != gone - gone_before:
            raise CannotRunError(
                f"{missing} packets are missing, of which ports dropped or lost {gone - gone_before}, and {foreign} were strange "
                f"to them: {'BMv2 or ' if scenario.bmv2 else ''}the kernel lost some; please report"
            )
        gone_before = gone


def _lateness_max_ns(phases: list[_Phase]) -> int:
    """Of the packet that came latest after it was due, in kernel time."""
    return max(int(phase.output["lateness_max_ns"]) for phase in phases)


def _mean(times_ns: NDArray[np.float64]) -> float | None:
    """Of those that there are."""
    known = times_ns[~np.isnan(times_ns)]
    return round(float(known.mean()), _DIGITS) if len(known) else None


def empty_figures(hosts: int) -> dict[str, Any]:
    """The figures of a collective in which nothing is sent."""
    return {
        "cct_ns": 0,
        "lower_bound_ns": 0,
        "inflation": 0,
        "cct_last_ack_ns": 0,
        "inflation_last_ack": 0,
        "bottleneck": None,
        "bottleneck_busy": None,
        "lateness_max_ns": 0,
        "hot_queue_max_bytes": 0,
        "hot_host": None,
        "fabric_queue_max_bytes": 0,
        "total_queue_max_bytes": 0,
        "delivered_bytes": 0,
        "expected_bytes": 0,
        "plan_stages": 0,
        "plan_bytes": 0,
        **dict.fromkeys(("marks", "trims", "drops", "lost", "packets", "acks", *_RECOVERIES), 0),
        **{f"{name}_packets": 0 for name in _BACKGROUND},
        **dict.fromkeys(_DPU, 0),
        "nacked_share": 0,
        "duplicates": 0,
        "late_packets": 0,
        "control_hops": 0,
        "packet_hops": 0,
        "receiver_done_ns": [None] * hosts,
        "receiver_done_ns_mean": 0,
        "flow_done_ns_mean": 0,
        "phase_cct_ns": [],
    }


def _busy(scenario: Scenario, run: Run, phases: list[_Phase], bounds_ns: list[float]) -> float | None:
    """How much of the bottleneck port's capacity was used, in the middle of the lower bound of each phase, counted from when its
    rates are in force; None where that is too short, and where a phase begins with old rates.
    """
    experiment = scenario.experiment
    planned = run.schedule == "rate" or any(phase.output["stages"] for phase in phases)
    waited_ns = float(experiment.control_delay_ns) if planned else 0.0
    if waited_ns and experiment.meanwhile == "old" and len(phases) > 1:
        return None
    demands = [demand.wire_bytes for demand in scenario.demands]
    if len(phases) != len(demands) or any(
        not np.array_equal(phase.sizes, wire) for phase, wire in zip(phases, demands, strict=True)
    ):
        return None  # servers have moved load away from that port
    used = capacity = 0.0
    for phase, bottleneck, bound_ns in zip(phases, scenario.bottlenecks, bounds_ns, strict=True):
        receiver = bottleneck.side == "receiver"
        port = scenario.wiring.host_port(bottleneck.host) if receiver else bottleneck.host
        bucket_ns = float(phase.output["bucket_ns"] / scenario.dilation)
        first = int((waited_ns + BUSY_FROM * bound_ns) / bucket_ns) + 1
        last = int((waited_ns + BUSY_TO * bound_ns) / bucket_ns)
        packet_ns = scenario.experiment.mtu_bytes * 8 / float(scenario.wiring.ports[port].gbps)
        if last <= first or bound_ns < _ENOUGH_PACKETS * packet_ns:
            continue  # a packet more or less would decide
        used += float(phase.sent[port, first:last].sum())
        capacity += (last - first) * bucket_ns * float(scenario.wiring.ports[port].gbps) / 8
    return used / capacity if capacity else None


def _flow_columns(scenario: Scenario, phases: list[_Phase]) -> dict[str, NDArray[Any]]:
    columns: dict[str, list[NDArray[Any]]] = {}
    offset_ns = 0.0
    for number, phase in enumerate(phases):
        source, destination = np.nonzero(phase.sizes)
        got = phase.receives[source, destination]
        sent = phase.sending[source, destination]
        rows: list[tuple[str, NDArray[Any]]] = [
            ("phase", np.full(len(source), number, dtype=np.int32)),
            ("src", source.astype(np.int32)),
            ("dst", destination.astype(np.int32)),
            ("bytes", phase.sizes[source, destination]),
            ("delivered_bytes", got["bytes"].astype(np.int64)),
            ("first_arrival_ns", _since_start(got["first_ns"], phase, scenario, offset_ns)),
            ("last_arrival_ns", _since_start(got["last_ns"], phase, scenario, offset_ns)),
            ("last_ack_ns", _since_start(sent["done_ns"], phase, scenario, offset_ns)),
            *((name, sent[name].astype(np.int64)) for name in _RECOVERIES),
            ("duplicates", got["duplicates"].astype(np.int64)),
        ]
        for name, values in rows:
            columns.setdefault(name, []).append(values)
        offset_ns += phase.duration_ns
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def _since_start(
    kernel_ns: NDArray[np.uint64], phase: _Phase, scenario: Scenario, offset_ns: float
) -> NDArray[np.float64]:
    """Fabric time since the start of the first phase; NaN for what never happened."""
    since = kernel_ns.astype(np.int64) - phase.output["epoch_ns"]
    times = np.round(since / float(scenario.dilation) + offset_ns, _DIGITS)
    return np.where(kernel_ns > 0, times, np.nan)


def _counter_columns(scenario: Scenario, counted: list[dict[str, int]]) -> dict[str, NDArray[Any]]:
    """One row a port: what it marked, trimmed, dropped, lost, and its control packets."""
    ports = scenario.wiring.ports
    columns: dict[str, NDArray[Any]] = {
        "port": np.array([port.index for port in ports], dtype=np.int32),
        "name": np.array([port.name for port in ports]),
        "toward": np.array([port.peer_node for port in ports]),
    }
    for name in _COUNTERS:
        columns[name] = np.array([each[name] for each in counted], dtype=np.int64)
    return columns


def _port_columns(scenario: Scenario, phases: list[_Phase]) -> dict[str, NDArray[Any]]:
    """One row for every port that carried something and every bucket of time."""
    columns: dict[str, list[NDArray[Any]]] = {}
    names = np.array([port.name for port in scenario.wiring.ports])
    peers = np.array([port.peer_node for port in scenario.wiring.ports])
    offset_ns = 0.0
    for number, phase in enumerate(phases):
        bucket_ns = float(phase.output["bucket_ns"] / scenario.dilation)
        buckets = min(phase.queue.shape[1], int(phase.duration_ns / bucket_ns) + 1)
        used = np.flatnonzero(phase.sent.sum(axis=1))
        begin = np.round(np.arange(buckets) * bucket_ns + offset_ns, _DIGITS)
        for name, values in (
            ("phase", np.full(len(used) * buckets, number, dtype=np.int32)),
            ("port", np.repeat(used.astype(np.int32), buckets)),
            ("name", np.repeat(names[used], buckets)),
            ("toward", np.repeat(peers[used], buckets)),
            ("begin_ns", np.tile(begin, len(used))),
            ("bucket_ns", np.full(len(used) * buckets, round(bucket_ns, _DIGITS))),
            ("queue_max_bytes", phase.queue[used, :buckets].ravel().astype(np.int64)),
            ("sent_bytes", phase.sent[used, :buckets].ravel().astype(np.int64)),
        ):
            columns.setdefault(name, []).append(values)
        offset_ns += phase.duration_ns
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def _trace_columns(scenario: Scenario, work: Path, phases: list[_Phase]) -> dict[str, NDArray[Any]] | None:
    """Every packet at every port, in kernel time since the common start: exact."""
    if not scenario.experiment.trace:
        return None
    columns: dict[str, list[NDArray[Any]]] = {}
    for number, phase in enumerate(phases):
        records = np.fromfile(work / f"trace-{number}.bin", dtype=RECORD_FIELDS)
        columns.setdefault("phase", []).append(np.full(len(records), number, dtype=np.int32))
        for name in ("source", "destination", "psn", "port", "wire_bytes"):
            columns.setdefault(name, []).append(records[name].astype(np.int64))
        for name in ("arrival_ns", "far_end_ns"):
            since = records[name].astype(np.int64) - phase.output["epoch_ns"]
            columns.setdefault(f"kernel_{name}", []).append(since)
    return {name: np.concatenate(parts) for name, parts in columns.items()}
