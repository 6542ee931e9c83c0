"""Figure 1: the queue at the hottest receiver's port over time, under round robin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from testbed.figures.options import (
    LOAD_BALANCERS,
    RR_NSCC,
    Demand,
    Figure,
    Options,
    Row,
    demand_of_file,
    demand_of_zipf,
    experiment_of,
)
from testbed.figures.pictures import distinct, look, panels, sent
from testbed.figures.series import PORTS, hot_queue
from testbed.grid.cells import Cell, cells_of
from testbed.grid.store import Store
from testbed.report.plots import png

__all__ = ["FIGURE", "one_demand"]

_SEED: Final = 1
_UNLIMITED: Final = "rr, unlimited queues"
_OF_VARIANT: Final = {_UNLIMITED: ", unlimited queues:"}
"""In labels of cells, which name the run anyway."""
_LEAST_SHOWN: Final = 0.5
"""Packets: an empty queue on a logarithmic scale."""


def one_demand(options: Options) -> Demand:
    """The matrix that was given, or the Zipf demand of the options."""
    if options.demands:
        return demand_of_file(options, options.demands[0], most_bytes=options.quick_bytes)
    return demand_of_zipf(options, options.hosts[0], options.skews[0], options.bytes_per_sender[0], _SEED)


def _cells(options: Options) -> list[tuple[Row, Cell]]:
    demand = one_demand(options)
    variants: list[tuple[str, dict[str, Any]]] = [(RR_NSCC, {"schedule": [RR_NSCC]}), ("rr", {"schedule": ["rr"]})]
    if options.keys.get("queue_bytes") != 0:
        # A limit hides how the queue would grow: the incast itself shows without one.
        variants.append((_UNLIMITED, {"schedule": ["rr"], "queue_bytes": 0}))
    found = []
    for name, keys in variants:
        for balancer in options.load_balancers:
            experiment = experiment_of(options, demand, lb=balancer, seed=_SEED, **keys)
            (cell,) = cells_of(
                experiment, tables=PORTS, label=f"{balancer}{_OF_VARIANT.get(name, '')}", may_not_end=("rr",)
            )
            row = {
                "demand": demand.name,
                "divided_by": demand.divided_by,
                "hosts": len(cell.network.hosts),
                "wire_bytes": cell.network.wire_bytes,
                "run": name,
                "lb": balancer,
                "seed": _SEED,
                "hot_host": cell.network.hot_host,
            }
            found.append((row, cell))
    return found


def _table(cells: Sequence[tuple[Row, Cell]], store: Store) -> list[Row]:
    rows = []
    for row, cell in cells:
        if store.figures(cell).get("gave_up"):
            rows.append({**row, "ended": "no", "begin_us": None, "queue_max_packets": None})
            continue
        for begin, deepest in zip(*hot_queue(store, cell), strict=True):
            rows.append({**row, "ended": "yes", "begin_us": float(begin), "queue_max_packets": float(deepest)})
    return rows


def _draw(rows: list[Row], title: str) -> bytes:
    variants = distinct(rows, "run")
    first = rows[0]
    heading = f"{title}: port of {first['hot_host']}, {first['hosts']} hosts, {first['demand']}, {sent(first)}"
    figure, every = panels(variants, heading, y_label="queue [packets]", x_label="time since the common start [us]")
    for axes, variant in zip(every, variants, strict=True):
        for number, balancer in enumerate(distinct(rows, "lb")):
            own = [row for row in rows if (row["run"], row["lb"]) == (variant, balancer)]
            if own[0]["ended"] == "no":
                axes.plot([], [], **look(number), label=f"{balancer}: does not end")
                continue
            queue = np.array([row["queue_max_packets"] for row in own])
            axes.plot(
                [row["begin_us"] for row in own],
                np.maximum(queue, _LEAST_SHOWN),
                **look(number),
                drawstyle="steps-post",
                label=f"{balancer}: at most {queue.max():,.0f}",
            )
        axes.legend(frameon=False, fontsize=9)
    every[0].set_yscale("log")  # of all: they share it
    every[0].set_ylim(bottom=_LEAST_SHOWN)
    return png(figure)


FIGURE: Final = Figure(
    number=1,
    title="Queue at the hottest receiver under round robin",
    options=("demand", "lb", "hosts", "s", "bytes"),
    defaults={"lb": LOAD_BALANCERS, "hosts": (64,), "s": (1.0,), "bytes": (8_000_000,), "seeds": 1},
    quick={"hosts": (16,), "bytes": (2_000_000,)},
    cells=_cells,
    table=_table,
    draw=_draw,
)
