"""The comparison that a command prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from testbed.experiment import DOCA_MODEL, Experiment
from testbed.scenario import Scenario

__all__ = ["ROWS", "Row", "break_even", "comparison"]

_PACKETS: Final = "packets"
"""Factor of a row that counts whole packets of the MTU, rounded up."""
_SWITCHES: Final = "what switch ports marked, trimmed or dropped, a packet as often as it happened to it"
_HOST_OR_SWITCH: Final = (
    "the deepest port that faces a host, or a switch; the packet in service is counted whole there and in part by the "
    "limit, so that a queue may show a packet more than its limit"
)
_COMPLETION: Final = "the time from the common start to the arrival of the last byte at its receiver"
_LAST_ACK: Final = "when the last sender knows of it, one way back later"

_OVER_BOUND: Final = "by how much of the lower bound it is later than that"


@dataclass(frozen=True)
class Row:
    """One line of the comparison."""

    label: str
    key: str
    """Of result.json."""
    factor: float | str | None
    """From the key's unit to the label's; None: text."""
    form: str
    meaning: str
    """As docs/model.md has it."""

    def cell(self, run: Mapping[str, Any], mtu_bytes: int) -> str:
        """The figure of a run in the label's unit; "-" where there is none."""
        value = run[self.key]
        if value is None:
            return "-"
        if self.factor == _PACKETS:
            value = -(-value // mtu_bytes)
        elif self.factor is not None:
            value = value * self.factor
        return self.form.format(value)


ROWS: Final = (
    Row("CCT [us]", "cct_ns", 1e-3, "{:.2f}", _COMPLETION),
    Row("CCT over bound [%]", "inflation", 100, "{:.2f}", _OVER_BOUND),
    Row("CCT, last ACK [us]", "cct_last_ack_ns", 1e-3, "{:.2f}", _LAST_ACK),
    Row("last ACK over bound [%]", "inflation_last_ack", 100, "{:.2f}", _OVER_BOUND),
    Row(
        "mean receiver done [us]",
        "receiver_done_ns_mean",
        1e-3,
        "{:.2f}",
        "over the receivers, when each had its last byte",
    ),
    Row("hot queue [packets]", "hot_queue_max_bytes", _PACKETS, "{}", _HOST_OR_SWITCH),
    Row("hot queue [MB]", "hot_queue_max_bytes", 1e-6, "{:.3f}", _HOST_OR_SWITCH),
    Row("hot queue at", "hot_host", None, "{}", "the host that the hot queue's port faces"),
    Row("deepest inner [packets]", "fabric_queue_max_bytes", _PACKETS, "{}", _HOST_OR_SWITCH),
    Row(
        "all queues [MB]",
        "total_queue_max_bytes",
        1e-6,
        "{:.3f}",
        "the largest sum over all switch ports at one time",
    ),
    Row(
        "bottleneck busy [%]",
        "bottleneck_busy",
        100,
        "{:.2f}",
        "how much of its capacity the port that sets the lower bound sent as data, between 5 and 95 % of the lower bound "
        '(not of the run); retransmissions count, and the background; "-" where that is less than 2,000 packets',
    ),
    Row("marked packets", "marks", 1, "{}", _SWITCHES),
    Row("trimmed packets", "trims", 1, "{}", _SWITCHES),
    Row("dropped packets", "drops", 1, "{}", _SWITCHES),
    Row("lost packets", "lost", 1, "{}", "what was lost on links, by chance or where one failed"),
    Row("sent again", "retransmissions", 1, "{}", "counts retransmissions for whatever reason"),
    Row("timeouts", "timeouts", 1, "{}", "packets that were given up after their timeout"),
    Row("wall time [s]", "wall_s", 1, "{:.1f}", "what the run took here, setting up included"),
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


def _besides(experiment: Experiment) -> str:
    """What else is on the network, and what the senders wait for."""
    text = ""
    if experiment.background:
        gbps = float(sum(flow.rate_gbps for flow in experiment.background))
        text += (
            f", background of {gbps:g} Gb/s in {len(experiment.background)} flow(s), in marks, trims and queues as well"
        )
    if experiment.nic == DOCA_MODEL:
        text += f", paced by {experiment.nic} (docs/doca.md)"
    if experiment.control_delay_ns:
        text += f", control delay {float(experiment.control_delay_ns) / 1000:g} us"
    return text


def _in_real_time(scenario: Scenario) -> str:
    return f", in real time, {float(scenario.dilation):g} times slower" if scenario.experiment.stage == "host" else ""


def comparison(scenario: Scenario, runs: list[dict[str, Any]]) -> str:
    """A table with one column a run; queues in whole packets of the MTU are rounded up."""
    experiment = scenario.experiment
    width = max(14, *(len(run["run"]) + 2 for run in runs))
    lines = [
        f"{scenario.hosts} hosts, {_shape(scenario)}, {float(experiment.link_gbps):g} Gb/s, "
        f"{scenario.expected_bytes / 1e6:.1f} MB on the wire, load balancing {experiment.lb}, "
        f"queues {_queues(scenario)}, seed {experiment.seed}{_besides(experiment)}{_in_real_time(scenario)}",
        f"lower bound {float(scenario.lower_bound_s) * 1e6:.3f} us, set by {scenario.bottleneck_text}",
        "",
        f"{'':26}" + "".join(f"{run['run']:>{width}}" for run in runs),
    ]
    for row in ROWS:
        lines.append(f"{row.label:26}" + "".join(f"{row.cell(run, experiment.mtu_bytes):>{width}}" for run in runs))
    lines += break_even(scenario, runs)
    return "\n".join(lines) + "\n"


def _megabytes(size_bytes: float) -> str:
    megabytes = size_bytes / 1e6
    return f"{megabytes:.3g} MB" if megabytes < 1000 else f"{megabytes:,.0f} MB"


def break_even(scenario: Scenario, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """With a control delay: the message from which on a paced run that waits for its rates ends before each other one.

    A run takes (1 + inflation) T*, a paced one its delay more. Inflations are taken as they are here, whatever the size.
    """
    delay_ns = float(scenario.experiment.control_delay_ns) * len(scenario.demands)
    if not delay_ns:
        return []
    if scenario.experiment.meanwhile == "old" and len(scenario.demands) > 1:
        return ["", "no break-even: phases that begin with old rates have no delay of their own"]
    bound_ns = float(scenario.lower_bound_s) * 1e9
    load_bytes = sum(demand.max_port_bytes for demand in scenario.demands)
    lines = []
    for paced in runs:
        if paced["schedule"] != "rate" or paced["cct_ns"] is None:
            continue
        own = (paced["cct_ns"] - delay_ns) / bound_ns - 1
        for other in runs:
            # Stages have waited for their plan as well: that is in their inflation, and not to be counted twice.
            if other["schedule"] == "rate" or other.get("plan_stages") or other["inflation"] is None:
                continue
            gain = other["inflation"] - own
            if gain <= 0:
                lines.append(
                    f"{paced['run']} gains nothing on {other['run']} for which its rates would be worth waiting"
                )
                continue
            least_bytes = delay_ns / gain / bound_ns * load_bytes
            lines.append(
                f"{paced['run']} breaks even with {other['run']} at M = {_megabytes(least_bytes)} (here {_megabytes(load_bytes)}), "
                "if inflation is the same at that size"
            )
    return ["", *lines] if lines else []
