"""CCT inflation over seeds: the table that Figures 2 and 3 share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from testbed.figures.confidence import half_width
from testbed.figures.options import Row
from testbed.grid.cells import Cell
from testbed.grid.store import Store

__all__ = ["inflation_table"]


def inflation_table(cells: Sequence[tuple[Row, Cell]], store: Store) -> list[Row]:
    """One line for all cells with the same columns: mean of CCT / lower bound - 1 [%], and its 95 % confidence interval."""
    groups: dict[tuple[object, ...], list[float]] = {}
    columns: dict[tuple[object, ...], Row] = {}
    for row, cell in cells:
        key = tuple(row.values())
        columns[key] = row
        groups.setdefault(key, []).append(100 * float(store.figures(cell)["inflation"]))
    return [
        {
            **columns[key],
            "runs": len(values),
            "inflation_mean_percent": math.fsum(values) / len(values),
            "ci95_half_width_percent": half_width(values),
            "inflation_min_percent": min(values),
            "inflation_max_percent": max(values),
        }
        for key, values in groups.items()
    ]
