"""The picture of a robustness table: a row a disturbance; inflation, hot queue and loss side by side."""

from __future__ import annotations

from typing import Any, Final

from controller.errors import CannotRunError
from testbed.figures.options import Row
from testbed.figures.pictures import distinct
from testbed.report.plots import STYLES, png
from testbed.robustness.disturbances import DISTURBANCES
from testbed.robustness.sweep import NOTHING, UNDISTURBED

__all__ = ["draw"]

_COLOURS: Final = ("#c1272d", "#0072b2", "#56b4e9", "#009e73", "#f0a30a", "#000000", "#cc79a7", "#7a7a7a")
"""Okabe and Ito's, to be told apart by all; markers say the same."""
_MARKERS: Final = ("o", "s", "D", "^", "v", "P", "X", "*")
_PANELS: Final = (
    ("inflation_mean_percent", "inflation_ci95_half_width_percent", "CCT over the lower bound [%]", 10),
    ("hot_queue_mean_packets", "", "hot queue [packets]", 10),
    ("loss_mean_percent", "", "trimmed, dropped, lost [%]", 1),
)
"""Column, its interval, label, and up to where the scale is linear."""


def draw(rows: list[Row], title: str) -> bytes:
    """PNG. Points without a value, where no run ended, are left out. Raises CannotRunError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise CannotRunError("matplotlib is missing: run make setup") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    against = [name for name in distinct(rows, "against") if name != NOTHING] or [NOTHING]
    runs = distinct(rows, "run")
    figure, grid = plt.subplots(
        len(against), len(_PANELS), figsize=(13, 1 + 2.3 * len(against)), dpi=80, layout="constrained", squeeze=False
    )
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    for line, name in zip(grid, against, strict=True):
        levels = [UNDISTURBED, *(level for level in distinct(_of(rows, name), "level") if level != UNDISTURBED)]
        for axes, panel in zip(line, _PANELS, strict=True):
            for number, run in enumerate(runs):
                own = [row for row in rows if row["run"] == run and row["against"] in (NOTHING, name)]
                if name == NOTHING or len(own) > 1:
                    _plot(axes, own, levels, panel, number, len(runs))
            axes.set_xticks(range(len(levels)), [_two_lines(level) for level in levels], fontsize=8)
            axes.set_xlabel(DISTURBANCES[name].title if name in DISTURBANCES else "", fontsize=9)
            axes.set_ylabel(panel[2], fontsize=9)
            axes.set_yscale("symlog", linthresh=panel[3])
            values = [row[panel[0]] for row in rows if row[panel[0]] is not None]
            # One scale for all disturbances, so that they compare.
            axes.set_ylim(min(0.0, 1.3 * min(values, default=0)), max(1.3 * max(values, default=1), panel[3]))
            axes.grid(alpha=0.3)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        [handles[run] for run in runs if run in handles],
        [run for run in runs if run in handles],
        loc="outside lower center",
        ncols=len(runs),
        frameon=False,
        fontsize=9,
    )
    return png(figure)


def _two_lines(level: str) -> str:
    """Long ones would run into each other."""
    first, _, rest = level.rpartition(" at ") if " at " in level else level.rpartition(" ")
    return f"{first}\n{rest}" if first else level


def _of(rows: list[Row], name: str) -> list[Row]:
    return [row for row in rows if row["against"] == name]


def _plot(
    axes: Any, own: list[Row], levels: list[str], panel: tuple[str, str, str, int], number: int, runs: int
) -> None:
    column, interval, _, _ = panel
    shown = [row for row in own if row[column] is not None]
    axes.errorbar(
        # Side by side a little, or equal values would hide each other.
        [levels.index(row["level"]) + 0.04 * (number - (runs - 1) / 2) for row in shown],
        [row[column] for row in shown],
        yerr=[row[interval] or 0 for row in shown] if interval else None,
        linestyle=STYLES[number % len(STYLES)],
        color=_COLOURS[number % len(_COLOURS)],
        marker=_MARKERS[number % len(_MARKERS)],
        markersize=4,
        linewidth=1,
        capsize=2,
        label=own[0]["run"],
    )
