"""Plots of a comparison for a page: plotly's figures, with what each shows and what is missing of it."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import CannotRunError
from testbed.report.saved import MissingTableError, Saved

__all__ = ["Plot", "draw_plots", "library"]

_COLOURS: Final = ("#b3261e", "#00629f", "#8a5a00", "#00734f", "#7b3f8c", "#444444")
"""Dark enough for a white page; told apart by those who see no red and green."""
_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_SYMBOLS: Final = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross")
"""Seven to six dashes, so that 42 runs can be told apart without colour."""
_PATTERNS: Final = ("", "/", "x", ".", "-", "+", "|")
_MARKERS: Final = 12
"""On a line."""
_MOST_POINTS: Final = 1500
"""Of a line: more than a screen has."""
_MOST_PORTS: Final = 16
_LEAST_PACKETS: Final = 0.5
"""Where a logarithmic axis of packets begins."""
_LONGEST_NAME: Final = 20
"""That fits into a phone's width with what is said of the run."""
_PLOT_PIXELS: Final = 340
_LEGEND_PIXELS: Final = 22
"""Of one line."""
_SINCE_START: Final = "time since the common start [us]"

Trace = dict[str, Any]


@dataclass(frozen=True)
class Plot:
    """One plot."""

    name: str
    title: str
    caption: str
    specification: str | None
    """Plotly's figure as JSON that may stand in a page; None where there is nothing to draw."""
    pixels: int
    """Height."""
    missing: tuple[str, ...]
    """A line for each run that is not shown: which, and why."""


class _NothingError(Exception):
    """A run has nothing to show in a plot; says why."""


@dataclass(frozen=True)
class _Look:
    """How a run looks in all plots."""

    number: int
    run: dict[str, Any]

    @property
    def name(self) -> str:
        """Of the run, as plotly shows it as it stands."""
        name = str(self.run["run"])
        return html.escape(
            name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 6]}… ({self.number + 1})", quote=False
        )

    @property
    def colour(self) -> str:
        return _COLOURS[self.number % len(_COLOURS)]

    def line(self, x: NDArray[Any], y: NDArray[Any], label: str) -> Trace:
        """Steps, told apart by dashes and markers."""
        return {
            "type": "scatter",
            "mode": "lines+markers",
            "name": label,
            "x": x,
            "y": y,
            "line": {
                "shape": "hv",
                "color": self.colour,
                "dash": _DASHES[self.number % len(_DASHES)],
                "width": 1.6,
            },
            "marker": {"symbol": self.symbol, "size": 8, "maxdisplayed": _MARKERS, "color": self.colour},
        }

    @property
    def symbol(self) -> str:
        return _SYMBOLS[self.number % len(_SYMBOLS)]

    @property
    def pattern(self) -> str:
        return _PATTERNS[self.number % len(_PATTERNS)]


def library() -> str:
    """Plotly's JavaScript, all of it. Raises CannotRunError where plotly is missing."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise CannotRunError("plotly is missing, which reports are drawn with: run make setup") from None
    return str(get_plotlyjs())


def draw_plots(saved: Saved) -> list[Plot]:
    """All plots of a report. What a table is missing for is said, not drawn."""
    return [_queue(saved), _utilisation(saved), _flows(saved), _receivers(saved), _ports(saved)]


def _looks(saved: Saved) -> list[_Look]:
    return [_Look(number, run) for number, run in enumerate(saved.runs)]


def _collect(saved: Saved, trace: Callable[[_Look], Trace]) -> tuple[list[Trace], tuple[str, ...]]:
    """The traces of all runs that have one, and why others have none."""
    traces, missing = [], []
    for look in _looks(saved):
        try:
            if not look.run["expected_bytes"]:
                raise _NothingError("nothing was sent")
            traces.append(trace(look))
        except (_NothingError, MissingTableError) as reason:
            missing.append(f"{look.run['run']}: {reason}")
    return traces, tuple(missing)


def _finish(
    name: str,
    title: str,
    caption: str,
    traces: Sequence[Trace],
    missing: tuple[str, ...],
    layout: dict[str, Any],
    pixels: int = _PLOT_PIXELS,
) -> Plot:
    pixels += _LEGEND_PIXELS * len(traces)
    if not traces:
        return Plot(name, title, caption, None, pixels, missing)
    try:
        import plotly.graph_objects
    except ImportError:
        raise CannotRunError("plotly is missing, which reports are drawn with: run make setup") from None
    common = {
        "template": "none",
        "height": pixels,
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1b1b1b"},
        "showlegend": True,
        # Above the plot, a run a line, so that it meets no text of the axes at any width.
        "legend": {
            "orientation": "v",
            "x": 0,
            "y": 1.02,
            "xanchor": "left",
            "yanchor": "bottom",
            "itemwidth": 50,
            "font": {"size": 12},
        },
        "hovermode": "closest",
    }
    axis = {"automargin": True, "gridcolor": "#dddddd", "zeroline": False, "showline": True, "linecolor": "#666666"}
    axes = {side: {**axis, **layout.pop(side, {})} for side in ("xaxis", "yaxis")}
    figure = plotly.graph_objects.Figure(data=list(traces), layout={**common, **axes, **layout})
    text = json.dumps(json.loads(figure.to_json(engine="json")), separators=(",", ":"))
    # In a script's text nothing may look like its end, or like a comment.
    return Plot(name, title, caption, text.replace("<", "\\u003c"), pixels, missing)


def _bound(saved: Saved, lowest: float, highest: float) -> Trace:
    """A vertical line at the lower bound, which is the same for all runs of one demand."""
    bound_us = saved.runs[0]["lower_bound_ns"] / 1000
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"lower bound, {bound_us:.2f} us",
        "x": [bound_us, bound_us],
        "y": [lowest, highest],
        "line": {"color": "#777777", "width": 1},
        "hoverinfo": "name",
    }


def _grouped(values: NDArray[Any], size: int, combine: np.ufunc) -> NDArray[Any]:
    return np.asarray(combine.reduceat(values, np.arange(0, len(values), size)))


def _of(table: dict[str, NDArray[Any]], rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Some rows of ports.parquet, in the order of time."""
    own = {name: values[rows] for name, values in table.items()}
    order = np.argsort(own["begin_ns"], kind="stable")
    return {name: values[order] for name, values in own.items()}


def _queue(saved: Saved) -> Plot:
    deepest = [_LEAST_PACKETS]

    def trace(look: _Look) -> Trace:
        host, mtu = look.run["hot_host"], look.run["mtu_bytes"]
        if host is None:
            raise _NothingError("no port that faces a host ever had a queue")
        table = saved.table(look.run["run"], "ports", ("toward", "begin_ns", "queue_max_bytes"))
        own = _of(table, table["toward"] == host)
        if not len(own["begin_ns"]):
            raise _NothingError(f"ports.parquet has no port toward {host}")
        size = -(-len(own["begin_ns"]) // _MOST_POINTS)
        begin_us = own["begin_ns"][::size] / 1000
        packets = _grouped(own["queue_max_bytes"], size, np.maximum) / mtu
        deepest.append(float(packets.max()))
        label = f"{look.name}: {html.escape(host, quote=False)}, at most {np.ceil(packets.max()):.0f}"
        return look.line(begin_us, np.maximum(packets, _LEAST_PACKETS), label)

    traces, missing = _collect(saved, trace)
    if traces:
        traces.append(_bound(saved, _LEAST_PACKETS, max(deepest)))
    return _finish(
        "queue",
        "Queue at the hottest host port",
        "The deepest queue within each step of time, in packets of the MTU, at the switch port that faces a host and has the "
        "deepest queue of the run. The axis is logarithmic; what is less than half a packet is drawn as half a packet.",
        traces,
        missing,
        {
            "xaxis": {"title": {"text": _SINCE_START}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "queue [packets]"}, "type": "log", "dtick": 1},
        },
    )


def _is_nic_of(host: str, table: dict[str, NDArray[Any]]) -> NDArray[Any]:
    ports, first = np.unique(table["port"], return_index=True)
    own = [table["name"][row].startswith(f"{host}-eth") for row in first]
    return np.isin(table["port"], ports[own])


def _utilisation(saved: Saved) -> Plot:
    steps: list[str] = []

    def trace(look: _Look) -> Trace:
        run = look.run
        if run["bottleneck"] is None:
            raise _NothingError("it has no bottleneck")
        columns = ("phase", "port", "name", "toward", "begin_ns", "bucket_ns", "sent_bytes")
        table = saved.table(run["run"], "ports", columns)
        begin_us: list[NDArray[Any]] = []
        percent: list[NDArray[Any]] = []
        for phase, named in enumerate(run["bottleneck"].split(", ")):
            side, _, host = named.partition(" ")
            facing = table["toward"] == host if side == "receiver" else _is_nic_of(host, table)
            own = _of(table, (table["phase"] == phase) & facing)
            if not len(own["begin_ns"]):
                continue
            size = -(-len(own["begin_ns"]) // _MOST_POINTS)
            gbps = run["link_gbps_of"].get(host, run["link_gbps"])
            sent = _grouped(own["sent_bytes"], size, np.add)
            time_ns = _grouped(own["bucket_ns"], size, np.add)
            begin_us.append(own["begin_ns"][::size] / 1000)
            percent.append(100 * sent / (time_ns * gbps / 8))
            if not phase:
                steps.append(f"{time_ns[0] / 1000:.2f} us ({run['run']})")
        if not begin_us:
            raise _NothingError(f"ports.parquet has nothing of the bottleneck, {run['bottleneck']}")
        named = run["bottleneck"] if len(run["bottleneck"]) <= _LONGEST_NAME else "of each phase"
        label = f"{look.name}: {html.escape(named, quote=False)}"
        return look.line(np.concatenate(begin_us), np.concatenate(percent), label)

    traces, missing = _collect(saved, trace)
    if traces:
        traces.append(_bound(saved, 0, 100))
    widths = f" Each step is the mean of {', '.join(steps)}." if steps else ""
    return _finish(
        "utilisation",
        "Use of the bottleneck",
        "Data that the port that sets the lower bound sent, as a share of what its line rate could. Retransmissions count. With "
        f"several phases it is the bottleneck of each.{widths}",
        traces,
        missing,
        {
            "xaxis": {"title": {"text": _SINCE_START}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "share of line rate [%]"}, "range": [0, 105]},
        },
    )


def _flows(saved: Saved) -> Plot:
    def trace(look: _Look) -> Trace:
        table = saved.table(look.run["run"], "flows", ("bytes", "delivered_bytes", "last_arrival_ns"))
        complete = table["delivered_bytes"] == table["bytes"]
        done_us = np.sort(table["last_arrival_ns"][complete].astype(float)) / 1000
        if not len(done_us):
            raise _NothingError("no flow was completed")
        at = np.unique(np.linspace(0, len(done_us) - 1, _MOST_POINTS).astype(int))
        percent = 100 * (at + 1) / len(complete)
        label = f"{look.name}: {len(done_us)} of {len(complete)} flows"
        return look.line(np.concatenate(([0], done_us[at])), np.concatenate(([0], percent)), label)

    traces, missing = _collect(saved, trace)
    if traces:
        traces.append(_bound(saved, 0, 100))
    return _finish(
        "flows",
        "Completion of flows",
        "The share of all flows whose last byte had arrived. Flows that were never completed count, so that a line may end "
        "below 100 %. All flows count alike, whatever their size.",
        traces,
        missing,
        {
            "xaxis": {"title": {"text": _SINCE_START}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "flows completed [%]"}, "range": [0, 105]},
        },
    )


def _receivers(saved: Saved) -> Plot:
    def trace(look: _Look) -> Trace:
        done = look.run["receiver_done_ns"]
        known = [(f"h{host + 1}", time_ns / 1000) for host, time_ns in enumerate(done) if time_ns is not None]
        if not known:
            raise _NothingError("no receiver got anything")
        return {
            "type": "scatter",
            "mode": "markers",
            "name": look.name,
            "x": [host for host, _ in known],
            "y": [time_us for _, time_us in known],
            "marker": {
                "symbol": f"{look.symbol}-open",
                "size": 9,
                "color": look.colour,
                "line": {"width": 2},
            },
        }

    traces, missing = _collect(saved, trace)
    hosts = [f"h{host + 1}" for host in range(saved.runs[0]["hosts"])]
    return _finish(
        "receivers",
        "Completion of receivers",
        "When each receiver had the last byte that came to it.",
        traces,
        missing,
        {
            "xaxis": {
                "title": {"text": "receiver"},
                "type": "category",
                "categoryorder": "array",
                "categoryarray": hosts,
            },
            "yaxis": {"title": {"text": "last byte [us]"}, "rangemode": "tozero"},
        },
    )


def _ports(saved: Saved) -> Plot:
    deepest: dict[str, dict[str, float]] = {}

    def of_run(look: _Look) -> Trace:
        run = look.run
        table = saved.table(run["run"], "ports", ("port", "name", "toward", "queue_max_bytes"))
        switches = table["port"] >= run["hosts"]  # ports before are the hosts' own
        names, toward = table["name"][switches], table["toward"][switches]
        _, first, where = np.unique(table["port"][switches], return_index=True, return_inverse=True)
        most = np.zeros(len(first))
        np.maximum.at(most, where, table["queue_max_bytes"][switches])
        deepest[run["run"]] = {
            f"{names[row].rpartition('-eth')[0]} to {toward[row]}": float(bytes_) / run["mtu_bytes"]
            for row, bytes_ in zip(first, most, strict=True)
        }
        return {"name": look.name, "marker": {"color": look.colour, "pattern": {"shape": look.pattern, "size": 6}}}

    looks, missing = _collect(saved, of_run)
    every = {port for ports in deepest.values() for port in ports}
    shown = sorted(every, key=lambda port: (-max(ports.get(port, 0) for ports in deepest.values()), port))[:_MOST_PORTS]
    traces = [
        {
            **look,
            "type": "bar",
            "orientation": "h",
            "y": [html.escape(port, quote=False) for port in shown],
            "x": [ports.get(port, 0) for port in shown],
        }
        for look, ports in zip(looks, deepest.values(), strict=True)
    ]
    which = f"The {len(shown)} deepest of {len(every)} switch ports" if len(shown) < len(every) else "All switch ports"
    return _finish(
        "ports",
        "Deepest queue by port",
        f"{which} that sent something, deepest first: the deepest queue that each had in the whole run, in packets of the MTU.",
        traces if shown else [],
        missing,
        {
            "barmode": "group",
            "bargap": 0.25,
            "xaxis": {"title": {"text": "deepest queue [packets]"}, "rangemode": "tozero"},
            "yaxis": {"autorange": "reversed", "type": "category", "dtick": 1},
        },
        90 + len(shown) * (14 + 9 * len(traces)),
    )
