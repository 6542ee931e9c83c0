"""Figure 3: CCT inflation by skew, number of hosts and load balancer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from testbed.figures.inflation import gain_table, inflation_table
from testbed.figures.options import (
    LOAD_BALANCERS,
    RR_NSCC,
    Figure,
    Options,
    Row,
    demand_of_zipf,
    experiment_of,
    seeds_text,
)
from testbed.figures.pictures import MARKERS, distinct, panels
from testbed.grid.cells import Cell, cells_of
from testbed.grid.store import Store
from testbed.report.plots import COLOURS, png

__all__ = ["FIGURE"]

_RUNS: Final = (RR_NSCC, "rate")


def _cells(options: Options) -> list[tuple[Row, Cell]]:
    amounts = options.bytes_per_sender
    each = amounts * len(options.hosts) if len(amounts) == 1 else amounts
    found = []
    for skew in options.skews:
        for hosts, bytes_per_sender in zip(options.hosts, each, strict=True):
            for seed in range(1, options.seeds + 1):
                demand = demand_of_zipf(options, hosts, skew, bytes_per_sender, seed)
                for balancer in options.load_balancers:
                    experiment = experiment_of(options, demand, lb=balancer, seed=seed, schedule=list(_RUNS))
                    label = f"s={skew:g} N={hosts} {balancer} seed {seed}"
                    for cell, run in zip(cells_of(experiment, tables=(), label=label), _RUNS, strict=True):
                        row = {
                            "s": skew,
                            "hosts": hosts,
                            "bytes_per_sender": bytes_per_sender,
                            "lb": balancer,
                            "run": run,
                            "popularity_seeds": seeds_text(options.seeds),
                            "run_seeds": seeds_text(options.seeds),
                        }
                        found.append((row, cell))
    return found


def _table(cells: Sequence[tuple[Row, Cell]], store: Store) -> list[Row]:
    return _sorted(inflation_table(cells, store), ("s", "lb", "run", "hosts"))


def _gain(cells: Sequence[tuple[Row, Cell]], store: Store) -> list[Row]:
    return _sorted(gain_table(cells, store), ("s", "hosts", "lb"))


def _sorted(rows: list[Row], order: Sequence[str]) -> list[Row]:
    places = {column: distinct(rows, column) for column in order}
    return sorted(rows, key=lambda row: [places[column].index(row[column]) for column in order])


def _draw(rows: list[Row], title: str) -> bytes:
    skews = distinct(rows, "s")
    amounts = ", ".join(f"{amount / 1e6:g}" for amount in distinct(rows, "bytes_per_sender"))
    seeds = "seed 1"
    if rows[0]["runs"] > 1:
        seeds = f"mean of seeds {rows[0]['run_seeds']} with 95 % confidence intervals"
    heading = f"{title}: {amounts} MB a sender, {seeds}"
    figure, every = panels(
        [f"s = {skew:g}" for skew in skews], heading, y_label="CCT over the lower bound [%]", x_label="hosts"
    )
    balancers, sizes = distinct(rows, "lb"), distinct(rows, "hosts")
    for axes, skew in zip(every, skews, strict=True):
        for number, balancer in enumerate(balancers):
            for run in distinct(rows, "run"):
                own = [row for row in rows if (row["s"], row["lb"], row["run"]) == (skew, balancer, run)]
                paced = run == "rate"
                colour = COLOURS[number % len(COLOURS)]
                axes.errorbar(
                    [row["hosts"] * (1 + 0.03 * (number - (len(balancers) - 1) / 2)) for row in own],
                    [row["inflation_mean_percent"] for row in own],
                    yerr=[row["ci95_half_width_percent"] or 0 for row in own],
                    linestyle="-" if paced else "--",
                    marker=MARKERS[number % len(MARKERS)],
                    markerfacecolor=colour if paced else "white",
                    color=colour,
                    capsize=3,
                    label=f"{run}, {balancer}",
                )
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
    handles = every[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(balancers), frameon=False, fontsize=9)
    return png(figure)


FIGURE: Final = Figure(
    number=3,
    title="CCT inflation on Zipf demands",
    options=("lb", "hosts", "s", "bytes", "seeds"),
    defaults={
        "lb": LOAD_BALANCERS,
        "hosts": (64, 128, 256, 512),
        "s": (0.25, 0.5),
        "bytes": (16_000_000,),
        "seeds": 5,
    },
    quick={"hosts": (8, 16), "bytes": (6_000_000,), "seeds": 2},
    cells=_cells,
    table=_table,
    draw=_draw,
    gain=_gain,
)
