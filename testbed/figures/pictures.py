"""What the pictures have in common: readable without colour, the same bytes for the same table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from controller.errors import CannotRunError
from testbed.figures.options import Row
from testbed.report.plots import COLOURS, STYLES

__all__ = ["HATCHES", "MARKERS", "distinct", "look", "panels", "sent"]

MARKERS: Final = ("o", "s", "^", "D")
HATCHES: Final = ("", "///", "...", "xx")


def panels(titles: Sequence[str], heading: str, *, y_label: str, x_label: str = "") -> tuple[Any, list[Any]]:
    """A figure with a panel a title, side by side, on one scale. Raises CannotRunError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise CannotRunError("matplotlib is missing: run make setup") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    width = max(8.0, 4.4 * len(titles))
    figure, grid = plt.subplots(
        1, len(titles), figsize=(width, 4.4), dpi=120, layout="constrained", sharey=True, squeeze=False
    )
    figure.suptitle(heading, fontsize=10, x=0.01, ha="left")
    every = list(grid[0])
    for axes, title in zip(every, titles, strict=True):
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel(x_label)
        axes.grid(alpha=0.3)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    every[0].set_ylabel(y_label)
    return figure, every


def look(number: int) -> dict[str, Any]:
    """Line style and colour of the n-th thing."""
    return {"linestyle": STYLES[number % len(STYLES)], "color": COLOURS[number % len(COLOURS)]}


def sent(row: Row, between: str = ", ") -> str:
    """What the picture must say of the demand: the shorter the messages, the more the way counts; and whether it is all of it."""
    text = f"{row['wire_bytes'] / row['hosts'] / 1e6:.3g} MB a sender"
    return f"{text}{between}divided by {row['divided_by']}" if row["divided_by"] > 1 else text


def distinct(rows: Sequence[Row], column: str) -> list[Any]:
    """Its values, in the order in which they come."""
    return list(dict.fromkeys(row[column] for row in rows))
