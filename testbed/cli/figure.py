"""``incastfree figure``: the paper's four figures, each with its table and its picture, from a grid of runs."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from controller.cli.options import whole_number
from controller.errors import CannotRunError, InputError
from testbed.cli.experiment_options import add_experiment_options, experiment_mapping
from testbed.cli.output import csv_bytes, job_count, list_of, run_and_write
from testbed.experiment import DEMAND_KEYS
from testbed.figures import incast, real, scale, use
from testbed.figures.options import Figure, Options, check_load_balancers
from testbed.grid.store import Store
from testbed.stage.virtual.machine import work_folder

HELP: Final = "make a figure of the paper: its runs, table and picture"

_FIGURES: Final[dict[int, Figure]] = {each.FIGURE.number: each.FIGURE for each in (incast, real, scale, use)}
_SET_HERE: Final = ("hosts", "lb", "schedule", "cc", "seed", "stage", "fabric", "trace")
"""Keys of an experiment that a figure decides, or has as lists."""
_OPTIONS: Final = {"lb": "balancers", "hosts": "sizes", "s": "skews", "bytes": "amounts", "seeds": "seeds"}
"""Where argparse keeps what only some figures have."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The number, what the figures choose, and every other key of an experiment."""
    parser.add_argument("number", type=int, choices=sorted(_FIGURES), metavar="NUMBER", help=_numbers())
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for table, picture and cells")
    parser.add_argument("--quick", action="store_true", help="a small one, to try it: its numbers mean little")
    chosen = parser.add_argument_group("figure")
    chosen.add_argument("--lb", dest="balancers", type=list_of(str), metavar="LIST", help=_help("load balancers", "lb"))
    chosen.add_argument(
        "--hosts", dest="sizes", type=list_of(whole_number), metavar="LIST", help=_help("numbers of hosts", "hosts")
    )
    chosen.add_argument("--s", dest="skews", type=list_of(float), metavar="LIST", help=_help("Zipf's skew", "s"))
    chosen.add_argument(
        "--bytes",
        dest="amounts",
        type=list_of(whole_number),
        metavar="LIST",
        help=_help("wire bytes of a sender, its share to itself included, for all or for each of --hosts", "bytes"),
    )
    chosen.add_argument(
        "--seeds",
        type=whole_number,
        metavar="N",
        help=_help("seeds 1 to N, of the order of popularity and of the run", "seeds"),
    )
    grid = parser.add_argument_group("grid")
    grid.add_argument(
        "--jobs", type=job_count, default=None, metavar="N", help="runs at a time; default: one a processor"
    )
    grid.add_argument("--dask", default="", metavar="ADDRESS", help="run on the cluster of this scheduler instead")
    add_experiment_options(
        parser, without=_SET_HERE, demand_help="matrix file; figure 2 takes several, 1 and 4 one instead of Zipf's"
    )


def _numbers() -> str:
    return "; ".join(f"{number}: {figure.title}" for number, figure in sorted(_FIGURES.items()))


def _help(text: str, option: str) -> str:
    """With the defaults of the figures that have it."""
    defaults = []
    for number, figure in sorted(_FIGURES.items()):
        if option in figure.options:
            value = figure.defaults[option]
            shown = (
                ",".join(f"{item:g}" if isinstance(item, float) else str(item) for item in value)
                if isinstance(value, tuple)
                else value
            )
            defaults.append(f"{shown} in figure {number}")
    return f"{text}; default: {', '.join(defaults)}"


def run(arguments: argparse.Namespace) -> int:
    """Runs what is missing of the grid, then writes figure-N.csv, figure-N.png, and figure-N-cells.csv, which names the cells.

    Figures that compare both runs also write figure-N-gain.csv. What an earlier command wrote stays until all of it can be replaced.
    """
    if str(arguments.out) in ("", "."):
        raise InputError("--out names no folder of its own: give one for the results, such as results/figure-3")
    if arguments.dask and arguments.jobs is not None:
        raise InputError("--jobs is for this machine, and with --dask the workers' threads decide: leave one out")
    for module in ("pyarrow", "matplotlib"):
        if importlib.util.find_spec(module) is None:
            raise CannotRunError(f"{module} is missing, which results are written with: run make setup")
    figure = _FIGURES[arguments.number]
    with work_folder() as scratch:
        cells = figure.cells(_options(figure, arguments, scratch))
    files = {what: arguments.out / f"figure-{figure.number}{suffix}" for what, suffix in _SUFFIXES.items()}
    if figure.gain is None:
        del files["gain"]

    def made(store: Store) -> dict[str, bytes]:
        rows = figure.table(cells, store)
        found = {"table": csv_bytes(rows), "picture": figure.draw(rows, figure.title)}
        return found | ({"gain": csv_bytes(figure.gain(cells, store))} if figure.gain is not None else {})

    run_and_write(arguments, cells, files, made)
    return 0


_SUFFIXES: Final = {"table": ".csv", "picture": ".png", "gain": "-gain.csv", "cells": "-cells.csv"}


def _options(figure: Figure, arguments: argparse.Namespace, scratch: Path) -> Options:
    """Raises InputError for what the figure does not have, or cannot do."""
    chosen: dict[str, Any] = {**figure.defaults, **(figure.quick if arguments.quick else {})}
    mapping = experiment_mapping(arguments)
    demands = tuple(
        {name: value for name, value in table.items() if name not in ("name", "after")}
        for table in mapping.pop("demand", [])
    )
    instead = ("hosts", "s", "bytes") if demands and figure.number in (1, 4) else ()
    for option, place in _OPTIONS.items():
        given = getattr(arguments, place)
        if given is None:
            continue
        if option not in figure.options or option in instead:
            why = (
                "--demand says it"
                if option in instead
                else f"it has {', '.join(f'--{name}' for name in figure.options)}"
            )
            raise InputError(f"--{option} is not for figure {figure.number}: {why}; leave it out")
        chosen[option] = given
    _check_demands(figure, demands, arguments)
    check_load_balancers(chosen["lb"])
    if figure.number in (1, 4):
        for option in ("hosts", "s", "bytes"):
            if len(chosen[option]) > 1:
                raise InputError(f"--{option}: figure {figure.number} shows one demand: give one value")
    if figure.number == 3 and len(chosen["bytes"]) not in (1, len(chosen["hosts"])):
        raise InputError(f"--bytes: give one value, or one for each of the {len(chosen['hosts'])} of --hosts")
    if len(set(chosen.get("hosts", ()))) < len(chosen.get("hosts", ())):
        raise InputError("--hosts names something twice: give each number once")
    if not 1 <= chosen["seeds"] <= 1000:
        raise InputError(f"--seeds {chosen['seeds']}: give 1 to 1000")
    mtu_bytes = int(mapping.get("mtu_bytes", 0))
    for amount in chosen.get("bytes", ()):
        if amount < max(1, mtu_bytes):
            raise InputError(f"--bytes {amount}: give at least one packet")
    return Options(
        demands=demands,
        keys=mapping,
        load_balancers=tuple(chosen["lb"]),
        hosts=tuple(chosen.get("hosts", ())),
        skews=tuple(chosen.get("s", ())),
        bytes_per_sender=tuple(chosen.get("bytes", ())),
        seeds=chosen["seeds"],
        quick=arguments.quick,
        scratch=scratch,
    )


def _check_demands(figure: Figure, demands: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> None:
    if "demand" not in figure.options and demands:
        raise InputError(f"--demand is not for figure {figure.number}, which makes its own by --hosts, --s and --bytes")
    reading = [key.name for key in DEMAND_KEYS if getattr(arguments, key.name, None) is not None]
    reading = [f"--{name.replace('_', '-')}" for name in reading if name != "file"]
    if reading and not demands and figure.number != 2:
        without = "give one" if "demand" in figure.options else "which this figure does not take: leave it out"
        raise InputError(f"{reading[0]} says how the file of --demand is read, {without}")
    if figure.number == 2:
        if not demands:
            raise InputError(
                "figure 2 needs matrices: give --demand FILE, once for each, with --unit and --token-bytes"
            )
        stems = [Path(table["file"]).stem for table in demands]
        if len(set(stems)) < len(stems):
            raise InputError(f"--demand: two files have one name: {', '.join(stems)}; rename one")
    elif len(demands) > 1:
        raise InputError(f"--demand: figure {figure.number} shows one matrix: give one")
