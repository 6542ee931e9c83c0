"""Figure 2: CCT inflation on matrices of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from testbed.figures.inflation import gain_table, inflation_table
from testbed.figures.options import RR_NSCC, Figure, Options, Row, demand_of_file, experiment_of, seeds_text
from testbed.figures.pictures import HATCHES, distinct, panels, sent
from testbed.grid.cells import Cell, cells_of
from testbed.grid.store import Store
from testbed.report.plots import COLOURS, png

__all__ = ["FIGURE"]

_WIDTH: Final = 0.8
"""Of all bars of one matrix, where matrices are 1 apart."""


def _cells(options: Options) -> list[tuple[Row, Cell]]:
    found = []
    for table in options.demands:
        demand = demand_of_file(options, table, most_bytes=options.quick_bytes)
        for balancer in options.load_balancers:
            for seed in range(1, options.seeds + 1):
                experiment = experiment_of(options, demand, lb=balancer, seed=seed, schedule=[RR_NSCC, "rate"])
                label = f"{demand.name} {balancer} seed {seed}"
                for cell, run in zip(cells_of(experiment, tables=(), label=label), (RR_NSCC, "rate"), strict=True):
                    row = {
                        "demand": demand.name,
                        "divided_by": demand.divided_by,
                        "hosts": len(cell.network.hosts),
                        "wire_bytes": cell.network.wire_bytes,
                        "lower_bound_us": cell.network.lower_bound_ns / 1000,
                        "lb": balancer,
                        "run": run,
                        "seeds": seeds_text(options.seeds),
                    }
                    found.append((row, cell))
    return found


def _table(cells: Sequence[tuple[Row, Cell]], store: Store) -> list[Row]:
    return inflation_table(cells, store)


def _draw(rows: list[Row], title: str) -> bytes:
    matrices = distinct(rows, "demand")
    several = len(distinct(rows, "lb")) > 1
    kinds = distinct([{"kind": (row["run"], row["lb"])} for row in rows], "kind")
    kinds.sort(key=lambda kind: kind[1])  # runs of one load balancer stand together
    seeds = f", mean of seeds {rows[0]['seeds']} with 95 % confidence intervals" if rows[0]["runs"] > 1 else ", seed 1"
    figure, (axes,) = panels([""], f"{title}{seeds}", y_label="CCT over the lower bound [%]")
    width = _WIDTH / len(kinds)
    for number, (run, balancer) in enumerate(kinds):
        by_matrix = {row["demand"]: row for row in rows if (row["run"], row["lb"]) == (run, balancer)}
        means = [by_matrix[name]["inflation_mean_percent"] for name in matrices]
        places = np.arange(len(matrices)) + (number + 0.5) * width - _WIDTH / 2
        bars = axes.bar(
            places,
            means,
            width,
            yerr=[by_matrix[name]["ci95_half_width_percent"] or 0 for name in matrices]
            if rows[0]["runs"] > 1
            else None,
            capsize=3,
            color=COLOURS[number % len(COLOURS)],
            edgecolor="white",
            hatch=HATCHES[number % len(HATCHES)],
            label=f"{run}, {balancer}" if several else run,
        )
        axes.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
    line = "\n"  # beside each other they would run into each other
    first = {name: next(row for row in rows if row["demand"] == name) for name in matrices}
    axes.set_xticks(np.arange(len(matrices)), [f"{name}{line}{sent(row, between=line)}" for name, row in first.items()])
    axes.grid(visible=False, axis="x")
    axes.legend(frameon=False, fontsize=9)
    return png(figure)


FIGURE: Final = Figure(
    number=2,
    title="CCT inflation on given matrices",
    options=("demand", "lb", "seeds"),
    defaults={"lb": ("ops",), "seeds": 1},
    quick={},
    cells=_cells,
    table=_table,
    draw=_draw,
    gain=gain_table,
)
