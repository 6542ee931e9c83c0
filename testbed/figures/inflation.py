"""CCT inflation over seeds, and what pacing gains: the tables that Figures 2 and 3 share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from testbed.figures.confidence import half_width
from testbed.figures.options import RR_NSCC, Row
from testbed.grid.cells import Cell
from testbed.grid.store import Store

__all__ = ["gain_table", "inflation_table"]


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


def gain_table(cells: Sequence[tuple[Row, Cell]], store: Store) -> list[Row]:
    """One line for each two lines of rr+nscc and rate: the difference of their inflation [points], positive where pacing ends first.

    Of the same seeds, with the 95 % confidence interval of its mean; the sign stands in brackets where that holds zero, and
    where one seed has none.
    """
    groups: dict[tuple[object, ...], dict[tuple[str, int], float]] = {}
    columns: dict[tuple[object, ...], Row] = {}
    for row, cell in cells:
        common = {name: value for name, value in row.items() if name != "run"}
        key = tuple(common.values())
        columns[key] = common
        inflation = 100 * float(store.figures(cell)["inflation"])
        groups.setdefault(key, {})[row["run"], cell.keys["seed"]] = inflation
    rows = []
    for key, of_run in groups.items():
        seeds = sorted({seed for _, seed in of_run})
        gains = [of_run[RR_NSCC, seed] - of_run["rate", seed] for seed in seeds]
        mean, half = math.fsum(gains) / len(gains), half_width(gains)
        rows.append(
            {
                **columns[key],
                "runs": len(seeds),
                "rr_nscc_mean_percent": math.fsum(of_run[RR_NSCC, seed] for seed in seeds) / len(seeds),
                "rate_mean_percent": math.fsum(of_run["rate", seed] for seed in seeds) / len(seeds),
                "gain_mean_points": mean,
                "ci95_half_width_points": half,
                "sign": _sign(mean, half),
            }
        )
    return rows


def _sign(mean: float, half: float | None) -> str:
    sign = "+" if mean > 0 else "-" if mean < 0 else "0"
    return sign if half is not None and abs(mean) > half else f"({sign})"
