"""The same runs on two fabrics, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

__all__ = ["Agreement", "agreement", "agreement_table", "as_rows"]

_RELATIVE, _ABSOLUTE = "relative", "absolute"
_FIGURES: Final = (
    ("CCT [us]", "cct_ns", 1e-3, _RELATIVE),
    ("CCT, last ACK [us]", "cct_last_ack_ns", 1e-3, _RELATIVE),
    ("mean receiver done [us]", "receiver_done_ns_mean", 1e-3, _RELATIVE),
    ("hot queue [packets]", "hot_queue_max_bytes", None, _ABSOLUTE),
    ("deepest inner [packets]", "fabric_queue_max_bytes", None, _ABSOLUTE),
    ("marked packets", "marks", 1, _RELATIVE),
    ("trimmed packets", "trims", 1, _RELATIVE),
    ("dropped packets", "drops", 1, _RELATIVE),
    ("sent again", "retransmissions", 1, _RELATIVE),
)


@dataclass(frozen=True)
class Agreement:
    """One figure of one run on two fabrics."""

    run: str
    figure: str
    kernel: float | None
    bmv2: float | None
    difference: float | None
    """Of bmv2 from kernel: a fraction where ``relative``, else in the figure's unit. None without two values."""
    relative: bool


def agreement(kernel: Sequence[Mapping[str, Any]], bmv2: Sequence[Mapping[str, Any]]) -> list[Agreement]:
    """``kernel``, ``bmv2``: figures of the same runs in the same order, as result.json has them."""
    found: list[Agreement] = []
    for one, other in zip(kernel, bmv2, strict=True):
        if one["run"] != other["run"]:
            raise ValueError(f"{one['run']} and {other['run']} are two runs")
        for label, key, factor, kind in _FIGURES:
            scale = 1 / one["mtu_bytes"] if factor is None else factor
            ours, theirs = (None if run[key] is None else run[key] * scale for run in (one, other))
            relative = kind == _RELATIVE and bool(ours)  # of nothing there is no part
            found.append(Agreement(one["run"], label, ours, theirs, _difference(ours, theirs, relative), relative))
    return found


def _difference(kernel: float | None, bmv2: float | None, relative: bool) -> float | None:
    if kernel is None or bmv2 is None:
        return None
    return bmv2 / kernel - 1 if relative else bmv2 - kernel


def agreement_table(found: Sequence[Agreement]) -> str:
    """One line a figure, one block a run."""
    lines = [f"{'':14}{'':26}{'kernel':>12}{'bmv2':>12}{'difference':>14}"]
    before = ""
    for each in found:
        if before and each.run != before:
            lines.append("")
        name = "" if each.run == before else each.run
        before = each.run
        lines.append(f"{name:14}{each.figure:26}{_number(each.kernel):>12}{_number(each.bmv2):>12}{_shown(each):>14}")
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.2f}"


def _shown(each: Agreement) -> str:
    if each.difference is None:
        return "-"
    return f"{100 * each.difference:+.2f} %" if each.relative else f"{each.difference:+.1f}"


def as_rows(found: Sequence[Agreement]) -> list[dict[str, Any]]:
    """For JSON and CSV."""
    return [asdict(each) for each in found]
