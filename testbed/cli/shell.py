"""``incastfree shell``: Mininet's command line on an experiment's network."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from controller.errors import InputError
from testbed.experiment import read_toml
from testbed.job import prepare_job
from testbed.scenario import prepare
from testbed.stage.virtual.machine import VirtualMachine, work_folder

HELP: Final = "Mininet's command line on the network of an experiment file (h1 ping h2)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Hosts are those of the file: its `hosts`, or of its demand."""
    parser.add_argument("file", type=Path, metavar="FILE", help="experiment in TOML")


def run(arguments: argparse.Namespace) -> int:
    """Ends with the command line's exit."""
    experiment = read_toml(arguments.file, needs_demand=False)
    if experiment.stage != "virtual":
        raise InputError(
            f"{arguments.file}: stage is {experiment.stage}, but the shell knows virtual time alone: leave it out"
        )
    scenario = prepare(experiment)
    absent = [name for name in ("background", "link_failure") if getattr(experiment, name)]
    if absent:
        print(f"note: {' and '.join(absent)} of {arguments.file} are the engine's: not in the shell", file=sys.stderr)
    print(
        "The network alone: nothing is paced, and no schedule or congestion control sends. "
        f"Times in there are kernel times: {float(scenario.dilation):g} of them are 1 of fabric time. "
        "The clock stands still while anything computes.",
        flush=True,
    )
    with work_folder() as work:
        if not sys.stdin.isatty():
            # A console would lose what comes before somebody reads it.
            (work / "commands").write_text(sys.stdin.read())
        job = prepare_job(scenario, scenario.experiment.runs[0], work)
        machine = VirtualMachine(work, memory_mib=job.memory_mib + 16 * len(scenario.wiring.hosts), cpu=None)
        machine.run_interactive("shell")
    return 0
