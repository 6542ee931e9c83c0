"""Figure 4: how much of the links is used over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from testbed.figures.incast import one_demand
from testbed.figures.options import RR_NSCC, Figure, Options, Row, experiment_of
from testbed.figures.pictures import distinct, look, panels, sent
from testbed.figures.series import PORTS, utilisation
from testbed.grid.cells import Cell, cells_of
from testbed.grid.store import Store
from testbed.report.plots import png

__all__ = ["FIGURE"]

_SEED: Final = 1
_RUNS: Final = (RR_NSCC, "rate")


def _cells(options: Options) -> list[tuple[Row, Cell]]:
    demand = one_demand(options)
    found = []
    for balancer in options.load_balancers:
        experiment = experiment_of(options, demand, lb=balancer, seed=_SEED, schedule=list(_RUNS))
        for cell, run in zip(cells_of(experiment, tables=PORTS, label=balancer), _RUNS, strict=True):
            row = {
                "demand": demand.name,
                "divided_by": demand.divided_by,
                "hosts": len(cell.network.hosts),
                "wire_bytes": cell.network.wire_bytes,
                "lower_bound_us": cell.network.lower_bound_ns / 1000,
                "lb": balancer,
                "run": run,
                "seed": _SEED,
                "hot_host": cell.network.hot_host,
            }
            found.append((row, cell))
    return found


def _table(cells: Sequence[tuple[Row, Cell]], store: Store) -> list[Row]:
    return [
        {**row, "begin_us": float(begin), "mean_percent": 100 * float(mean), "hot_percent": 100 * float(hot)}
        for row, cell in cells
        for begin, mean, hot in zip(*utilisation(store, cell), strict=True)
    ]


def _draw(rows: list[Row], title: str) -> bytes:
    first = rows[0]
    balancers = distinct(rows, "lb")
    heading = f"{title}: {first['hosts']} hosts, {first['demand']}, {sent(first)}"
    figure, every = panels(
        balancers, heading, y_label="share of the line rate [%]", x_label="time since the common start [us]"
    )
    for axes, balancer in zip(every, balancers, strict=True):
        for number, run in enumerate(distinct(rows, "run")):
            own = [row for row in rows if (row["run"], row["lb"]) == (run, balancer)]
            begins = [row["begin_us"] for row in own]
            style = {**look(number), "drawstyle": "steps-post"}
            axes.plot(begins, [row["mean_percent"] for row in own], **style, label=f"{run}: mean of all hosts")
            axes.plot(
                begins,
                [row["hot_percent"] for row in own],
                **style,
                linewidth=0.8,
                alpha=0.6,
                label=f"{run}: {first['hot_host']}, to which most is sent",
            )
        axes.axvline(first["lower_bound_us"], color="0.4", linewidth=0.8)
        axes.annotate(
            "lower bound",
            (first["lower_bound_us"], 0.02),
            xycoords=("data", "axes fraction"),
            rotation=90,
            fontsize=8,
            color="0.4",
            ha="right",
        )
        axes.set_ylim(0, 105)
    figure.legend(*every[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return png(figure)


FIGURE: Final = Figure(
    number=4,
    title="Use of the links into hosts",
    options=("demand", "lb", "hosts", "s", "bytes"),
    defaults={"lb": ("ops",), "hosts": (64,), "s": (0.5,), "bytes": (8_000_000,), "seeds": 1},
    quick={"hosts": (16,), "bytes": (2_000_000,)},
    cells=_cells,
    table=_table,
    draw=_draw,
)
