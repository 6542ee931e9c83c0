"""The comparison that a command prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from testbed.job import Scenario

__all__ = ["break_even", "comparison"]

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


def _in_real_time(scenario: Scenario) -> str:
    return f", in real time, {float(scenario.dilation):g} times slower" if scenario.experiment.stage == "host" else ""


def comparison(scenario: Scenario, runs: list[dict[str, Any]]) -> str:
    """A table with one column a run; queues in whole packets of the MTU are rounded up."""
    experiment = scenario.experiment
    lines = [
        f"{len(scenario.wiring.hosts)} hosts, {scenario.hosts_per_leaf} a leaf, {float(experiment.link_gbps):g} Gb/s, "
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
    lines += break_even(scenario, runs)
    return "\n".join(lines) + "\n"


def break_even(scenario: Scenario, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """With a control delay: the message from which on a paced run that waits for its rates ends before each other one.

    A run takes (1 + inflation) T*, a paced one its delay more. Inflations are taken as they are here, whatever the size.
    """
    delay_ns = float(scenario.experiment.control_delay_ns) * len(scenario.demands)
    if not delay_ns or scenario.experiment.meanwhile == "old":
        return []
    bound_ns = float(scenario.lower_bound_s) * 1e9
    load_bytes = sum(demand.max_port_bytes for demand in scenario.demands)
    lines = []
    for paced in runs:
        if paced["schedule"] != "rate" or paced["cct_ns"] is None:
            continue
        own = (paced["cct_ns"] - delay_ns) / bound_ns - 1
        for other in runs:
            if other["schedule"] == "rate" or other["inflation"] is None:
                continue
            gain = other["inflation"] - own
            if gain <= 0:
                lines.append(
                    f"{paced['run']} gains nothing on {other['run']} for which its rates would be worth waiting"
                )
                continue
            least_bytes = delay_ns / gain / bound_ns * load_bytes
            lines.append(
                f"{paced['run']} breaks even with {other['run']} at M = {least_bytes / 1e6:.3g} MB (here {load_bytes / 1e6:.3g} MB), "
                "if inflation is the same at that size"
            )
    return ["", *lines] if lines else []
