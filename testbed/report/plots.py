"""Pictures of a comparison, as the paper's Figures 1 and 4."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import CannotRunError
from testbed.measure.store import write_atomically
from testbed.scenario import Scenario

__all__ = ["COLOURS", "STYLES", "draw_all", "hottest", "png"]

STYLES: Final = ("-", "--", "-.", ":")
COLOURS: Final = ("#c1272d", "#0072b2", "#e69f00", "#009e73")
"""Told apart by those who see no red and green, and by line style without colour."""
_MORE: Final = (*COLOURS, "#56b4e9", "#cc79a7", "#000000")
"""With the four styles 28 lines, no two of which are alike."""
_FEW: Final = 4
"""So many runs have their names in the plot, and a line of the hottest host besides."""


def draw_all(scenario: Scenario, out: Path, runs: list[dict[str, Any]]) -> dict[str, Path]:
    """Writes queue.png and utilisation.png; returns what they show by name."""
    try:
        import matplotlib
        import pyarrow.parquet
    except ImportError as error:
        raise CannotRunError(f"{error.name} is missing: run make setup") from None
    matplotlib.use("Agg")
    tables = {run["run"]: pyarrow.parquet.read_table(out / run["run"] / "ports.parquet").to_pydict() for run in runs}
    series = {name: {column: np.array(values) for column, values in table.items()} for name, table in tables.items()}
    queue, utilisation = out / "queue.png", out / "utilisation.png"
    _draw_queue(scenario, runs, series, queue)
    _draw_utilisation(scenario, runs, series, utilisation)
    return {"queue (figure 1)": queue, "use (figure 4)": utilisation}


def _line_of(number: int) -> dict[str, str]:
    return {"linestyle": STYLES[number % len(STYLES)], "color": _MORE[number % len(_MORE)]}


def _legend(figure: Any, axes: Any, runs: int) -> None:
    """In the plot, or below it where there are many."""
    if runs <= _FEW:
        axes.legend(frameon=False, fontsize=9)
    else:
        figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=8)


def _axes(title: str, runs: int) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    below = 0.2 * -(-runs // 2) if runs > _FEW else 0
    figure, axes = plt.subplots(figsize=(8, 4.2 + below), dpi=120, layout="constrained")
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel("time since the common start [us]")
    axes.grid(alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    write_atomically(path, png(figure))


def png(figure: Any) -> bytes:
    """The picture, which is closed: the same bytes for the same figure."""
    import matplotlib.pyplot as plt

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    plt.close(figure)
    return buffer.getvalue()


def hottest(scenario: Scenario) -> str:
    """The receiver that needs longest for all that is sent to it; with phases, for all of them."""
    load = sum(demand.wire_bytes.sum(axis=0) for demand in scenario.demands)
    times = [float(int(bytes_) / speed) for bytes_, speed in zip(load, scenario.speeds_bps, strict=False)]
    return scenario.wiring.hosts[int(np.argmax(times))]


def _draw_queue(
    scenario: Scenario, runs: list[dict[str, Any]], series: dict[str, dict[str, NDArray[Any]]], path: Path
) -> None:
    """The queue at the port of the receiver that most is sent to; logarithmic, since the runs differ by orders."""
    mtu = scenario.experiment.mtu_bytes
    hot_host = hottest(scenario)
    figure, axes = _axes(
        f"Queue at the switch port of {hot_host}, to which most is sent, {scenario.hosts} hosts", len(runs)
    )
    for number, run in enumerate(runs):
        if run["hot_host"] is None:
            continue
        columns = series[run["run"]]
        own = columns["toward"] == hot_host
        deepest = columns["queue_max_bytes"][own].max(initial=0) / mtu
        axes.plot(
            columns["begin_ns"][own] / 1000,
            np.maximum(columns["queue_max_bytes"][own] / mtu, 0.5),
            **_line_of(number),
            drawstyle="steps-post",
            label=f"{run['run']}: at most {deepest:,.0f} packets",
        )
    axes.axvline(runs[0]["lower_bound_ns"] / 1000, color="0.4", linewidth=0.8)
    axes.annotate(
        f"lower bound, set by {scenario.bottleneck_text}",
        (runs[0]["lower_bound_ns"] / 1000, 0.99),
        xycoords=("data", "axes fraction"),
        rotation=90,
        fontsize=8,
        color="0.4",
        ha="right",
        va="top",
    )
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    axes.set_ylabel(f"queue [packets of {mtu} B]")
    _legend(figure, axes, len(runs))
    _save(figure, path)


def _draw_utilisation(
    scenario: Scenario, runs: list[dict[str, Any]], series: dict[str, dict[str, NDArray[Any]]], path: Path
) -> None:
    """Use of all links into hosts, over time: what is sent over what could be; of few runs, of the hottest host's besides."""
    hosts = scenario.hosts
    facing = [scenario.wiring.host_port(host) for host in range(hosts)]
    hot_host = hottest(scenario)
    capacity = float(sum(scenario.wiring.ports[port].gbps for port in facing)) / 8  # bytes a ns
    figure, axes = _axes(f"Use of the links into {hosts} hosts", len(runs))
    for number, run in enumerate(runs):
        if run["hot_host"] is None:
            continue
        columns = series[run["run"]]
        own = np.isin(columns["port"], facing)
        begin, where = np.unique(columns["begin_ns"][own], return_inverse=True)
        sent = np.bincount(where, weights=columns["sent_bytes"][own] / columns["bucket_ns"][own])
        axes.plot(
            begin / 1000,
            100 * sent / capacity,
            **_line_of(number),
            drawstyle="steps-post",
            label=f"{run['run']}: mean of all hosts",
        )
        if len(runs) > _FEW:
            continue
        hot = columns["toward"] == hot_host
        speed = float(scenario.wiring.ports[scenario.wiring.hosts.index(hot_host)].gbps) / 8
        axes.plot(
            columns["begin_ns"][hot] / 1000,
            100 * columns["sent_bytes"][hot] / columns["bucket_ns"][hot] / speed,
            **_line_of(number),
            linewidth=0.8,
            alpha=0.6,
            label=f"{run['run']}: {hot_host}",
        )
    axes.set_ylim(0, 105)
    axes.set_ylabel("share of the line rate [%]")
    _legend(figure, axes, len(runs))
    _save(figure, path)
