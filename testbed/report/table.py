"""The comparison that a command prints."""

from __future__ import annotations

from typing import Any, Final

from testbed.job import Scenario

__all__ = ["comparison"]

_ROWS: Final = (
    ("CCT [us]", "cct_ns", 1e-3, "{:.2f}"),
    ("CCT over bound [%]", "inflation", 100, "{:.2f}"),
    ("CCT, last ACK [us]", "cct_last_ack_ns", 1e-3, "{:.2f}"),
    ("last ACK over bound [%]", "inflation_last_ack", 100, "{:.2f}"),
    ("mean receiver done [us]", "receiver_done_ns_mean", 1e-3, "{:.2f}"),
    ("hot queue [packets]", "hot_queue_max_bytes", "packets", "{}"),
    ("hot queue [MB]", "hot_queue_max_bytes", 1e-6, "{:.3f}"),
    ("hot queue at", "hot_host", None, "{}"),
    ("deepest inner [packets]", "fabric_queue_max_bytes", "packets", "{}"),
    ("all queues [MB]", "total_queue_max_bytes", 1e-6, "{:.3f}"),
    ("bottleneck busy [%]", "bottleneck_busy", 100, "{:.2f}"),
    ("marked packets", "marks", 1, "{}"),
    ("trimmed packets", "trims", 1, "{}"),
    ("dropped packets", "drops", 1, "{}"),
    ("lost packets", "lost", 1, "{}"),
    ("sent again", "retransmissions", 1, "{}"),
    ("timeouts", "timeouts", 1, "{}"),
    ("wall time [s]", "wall_s", 1, "{:.1f}"),
)


def _queues(scenario: Scenario) -> str:
    limit_bytes = scenario.parameters.queue_bytes
    if not limit_bytes:
        return "unlimited"
    full = "trimmed" if scenario.experiment.trimming else "dropped"
    return f"of {limit_bytes} B, then {full}, loss recovery {scenario.experiment.loss_recovery}"


def _shape(scenario: Scenario) -> str:
    (size,) = scenario.shape.values()
    return f"fat tree of k = {size}" if scenario.experiment.topology == "fat-tree" else f"{size} a leaf"


def _in_real_time(scenario: Scenario) -> str:
    return f", in real time, {float(scenario.dilation):g} times slower" if scenario.experiment.stage == "host" else ""


def comparison(scenario: Scenario, runs: list[dict[str, Any]]) -> str:
    """A table with one column a run; queues in whole packets of the MTU are rounded up."""
    experiment = scenario.experiment
    lines = [
        f"{len(scenario.wiring.hosts)} hosts, {_shape(scenario)}, {float(experiment.link_gbps):g} Gb/s, "
        f"{scenario.expected_bytes / 1e6:.1f} MB on the wire, load balancing {experiment.lb}, "
        f"queues {_queues(scenario)}, seed {experiment.seed}{_in_real_time(scenario)}",
        f"lower bound {float(scenario.lower_bound_s) * 1e6:.3f} us, set by {', '.join(scenario.bottleneck_names)}",
        "",
        f"{'':26}" + "".join(f"{run['run']:>14}" for run in runs),
    ]
    for label, key, factor, form in _ROWS:
        cells = []
        for run in runs:
            value = run[key]
            if value is None:
                cells.append(f"{'-':>14}")
                continue
            if factor == "packets":
                value = -(-value // experiment.mtu_bytes)
            elif factor is not None:
                value = value * factor
            cells.append(f"{form.format(value):>14}")
        lines.append(f"{label:26}" + "".join(cells))
    return "\n".join(lines) + "\n"
