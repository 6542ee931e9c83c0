"""``incastfree robust``: schedules against what their plans do not know of, with a table and a picture, from a grid of runs."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any, Final

from controller.cli.options import whole_number
from controller.demand import MTU_BYTES
from controller.errors import CannotRunError, InputError
from testbed.cli.experiment_options import add_experiment_options, experiment_mapping
from testbed.cli.output import csv_bytes, job_count, list_of, run_and_write
from testbed.experiment import DEMAND_KEYS
from testbed.figures.options import Options, seeds_text
from testbed.grid.store import Store
from testbed.robustness.disturbances import DISTURBANCES
from testbed.robustness.picture import draw
from testbed.robustness.sweep import markdown, sweep, table
from testbed.stage.virtual.machine import work_folder

__all__ = ["SCHEDULES"]

HELP: Final = "run schedules against jitter, failures, wrong estimates and more"

SCHEDULES: Final = ("rr+nscc", "rate", "rate+fallback", "fast:barrier", "fast:clock", "bvn:barrier", "bvn:clock")
_SET_HERE: Final = ("hosts", "schedule", "cc", "seed", "stage", "fabric", "trace")
"""Keys of an experiment that the verb decides, or has as lists."""
_DEFAULTS: Final = {"hosts": 16, "s": 0.5, "bytes": 8_000_000, "seeds": 3}
_QUICK: Final = {"hosts": 8, "s": 0.5, "bytes": 400_000, "seeds": 1}
_GPUS, _SERVER_LINK_GBPS = 4, 3600
"""Of a server, so that fast is not bvn: NVLink's 450 GB/s a direction."""
_SUFFIXES: Final = {"table": ".csv", "text": ".md", "picture": ".png", "cells": "-cells.csv"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is run against what, the demand, and every other key of an experiment."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for table, picture and cells")
    parser.add_argument(
        "--quick", action="store_true", help="short messages, one seed, the strongest of each: its numbers mean little"
    )
    chosen = parser.add_argument_group("robustness")
    chosen.add_argument(
        "--schedule", type=list_of(str), metavar="LIST", help=f"what is run; default: {','.join(SCHEDULES)}"
    )
    chosen.add_argument(
        "--against", type=list_of(str), metavar="LIST", help=f"disturbances; default: {','.join(DISTURBANCES)}"
    )
    chosen.add_argument("--hosts", dest="size", type=whole_number, metavar="N", help=_help("hosts", "hosts"))
    chosen.add_argument("--s", dest="skew", type=float, metavar="S", help=_help("Zipf's skew", "s"))
    chosen.add_argument(
        "--bytes",
        dest="amount",
        type=whole_number,
        metavar="N",
        help=_help("wire bytes of a sender, its share to itself included", "bytes"),
    )
    chosen.add_argument(
        "--seeds", type=whole_number, metavar="N", help=_help("seeds 1 to N, of the demand and of the run", "seeds")
    )
    grid = parser.add_argument_group("grid")
    grid.add_argument(
        "--jobs", type=job_count, default=None, metavar="N", help="runs at a time; default: one a processor"
    )
    grid.add_argument("--dask", default="", metavar="ADDRESS", help="run on the cluster of this scheduler instead")
    add_experiment_options(parser, without=_SET_HERE, demand_help="matrix file, instead of Zipf's demand")


def _help(text: str, option: str) -> str:
    return f"{text}; default: {_DEFAULTS[option]}, with --quick {_QUICK[option]}"


def run(arguments: argparse.Namespace) -> int:
    """Runs what is missing of the grid, then writes robustness.csv, .md and .png, and robustness-cells.csv, which names the cells.

    What an earlier command wrote stays until all of it can be replaced.
    """
    if str(arguments.out) in ("", "."):
        raise InputError("--out names no folder of its own: give one for the results, such as results/robustness")
    if arguments.dask and arguments.jobs is not None:
        raise InputError("--jobs is for this machine, and with --dask the workers' threads decide: leave one out")
    for name in arguments.against or ():
        if name not in DISTURBANCES:
            raise InputError(f"--against: {name!r} is not known: give a list of {', '.join(DISTURBANCES)}")
    for module in ("pyarrow", "matplotlib"):
        if importlib.util.find_spec(module) is None:
            raise CannotRunError(f"{module} is missing, which results are written with: run make setup")
    schedules = arguments.schedule or SCHEDULES
    with work_folder() as scratch:
        options = _options(arguments, scratch)
        grid = sweep(
            options,
            schedules,
            arguments.against or tuple(DISTURBANCES),
            strongest=arguments.quick,
        )
    if options.keys.get("gpus_per_server", 1) == 1 and any(name.startswith("fast") for name in schedules):
        grid.left_out.append("each host is a server by itself, so that fast is bvn: --gpus-per-server 4 makes servers")
    for line in grid.left_out:
        print(f"note: {line}", file=sys.stderr)

    def made(store: Store) -> dict[str, bytes]:
        for line in dict.fromkeys(
            f"{cell.label}: {why}" for _, cell in grid.cells if (why := store.figures(cell).get("gave_up"))
        ):
            print(f"note: {line}", file=sys.stderr)
        rows = table(grid.cells, store)
        return {"table": csv_bytes(rows), "text": markdown(rows).encode(), "picture": draw(rows, _title(options))}

    files = {what: arguments.out / f"robustness{suffix}" for what, suffix in _SUFFIXES.items()}
    run_and_write(arguments, grid.cells, files, made)
    return 0


def _options(arguments: argparse.Namespace, scratch: Path) -> Options:
    """Raises InputError for what does not fit together."""
    chosen: dict[str, Any] = dict(_QUICK if arguments.quick else _DEFAULTS)
    mapping = experiment_mapping(arguments)
    demands = tuple(
        {name: value for name, value in table.items() if name not in ("name", "after")}
        for table in mapping.pop("demand", [])
    )
    if len(demands) > 1:
        raise InputError("--demand: a robustness table is of one matrix: give one")
    reading = [key.name for key in DEMAND_KEYS if key.name != "file" and getattr(arguments, key.name, None) is not None]
    if reading and not demands:
        raise InputError(f"--{reading[0].replace('_', '-')} says how the file of --demand is read, give one")
    for option, place in (("hosts", "size"), ("s", "skew"), ("bytes", "amount"), ("seeds", "seeds")):
        given = getattr(arguments, place)
        if given is None:
            continue
        if demands and option != "seeds":
            raise InputError(f"--{option}: --demand says it; leave it out")
        chosen[option] = given
    if not 1 <= chosen["seeds"] <= 1000:
        raise InputError(f"--seeds {chosen['seeds']}: give 1 to 1000")
    if chosen["bytes"] < int(mapping.get("mtu_bytes", MTU_BYTES)):
        raise InputError(f"--bytes {chosen['bytes']}: give at least one packet")
    if mapping.get("loss_recovery") == "none":
        raise InputError("--loss-recovery none: what a disturbance takes would never come: give sack or timeout")
    if not demands and "gpus_per_server" not in mapping and chosen["hosts"] > _GPUS and chosen["hosts"] % _GPUS == 0:
        mapping["gpus_per_server"] = _GPUS
        mapping.setdefault("server_link_gbps", _SERVER_LINK_GBPS)
    return Options(
        demands=demands,
        keys=mapping,
        load_balancers=(),
        hosts=(chosen["hosts"],),
        skews=(chosen["s"],),
        bytes_per_sender=(chosen["bytes"],),
        seeds=chosen["seeds"],
        quick=arguments.quick,
        scratch=scratch,
    )


def _title(options: Options) -> str:
    what = (
        Path(options.demands[0]["file"]).stem
        if options.demands
        else f"Zipf s = {options.skews[0]:g}, {options.hosts[0]} hosts, {options.bytes_per_sender[0] / 1e6:g} MB a sender"
    )
    seeds = f"mean of seeds {seeds_text(options.seeds)}, 95 % confidence intervals" if options.seeds > 1 else "seed 1"
    return f"Robustness: {what}, {seeds}"
