"""``incastfree exec``: a command once a host, on real sockets, through an experiment's NICs and switches, in virtual time."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from controller.errors import CannotRunError, InputError
from testbed.cli.execute import check_output
from testbed.cli.experiment_options import experiment_mapping
from testbed.experiment import Experiment, from_mapping, read_toml, to_toml
from testbed.measure.store import alone_in, write_atomically
from testbed.programs import SCHEDULES, SYSCTLS, Program, check_command, prepare_programs, run_program
from testbed.scenario import Scenario

HELP: Final = "run a command once a host, on real sockets, in virtual time (docs/exec.md)"
_OVERRIDES: Final = ("dilation", "limit_s", "limit_virtual_s", "lb", "seed", "memory_mib")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FILE, a few keys of it, and the command behind "--"."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="experiment in TOML; without a [[demand]] it needs hosts"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for results and output")
    parser.add_argument(
        "--json", action="store_true", help="print result.json to stdout, and the ranks' output to stderr"
    )
    parser.add_argument(
        "--schedule", metavar="RUNS", help="rr (no pacing), rate, or both, in place of the file's; default: rr"
    )
    for name in _OVERRIDES:
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=f"in place of the file's key {name}")
    parser.set_defaults(demand=None, unit=None, token_bytes=None)
    parser.add_argument(
        "--sysctl",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of every host, such as net.ipv4.tcp_congestion_control=reno",
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND", help='behind "--": what every rank runs')


def run(arguments: argparse.Namespace) -> int:
    """Runs the schedules one after the other."""
    out: Path = arguments.out
    check_output(out)
    experiment = _experiment(arguments)
    scenario = prepare_programs(experiment)
    for note in scenario.notes:
        print(f"note: {note}", file=sys.stderr)
    program = Program(arguments.command, Path.cwd(), dict(os.environ), {**SYSCTLS, **_sysctls(arguments.sysctl)})
    check_command(program)
    with alone_in(out):
        return _run_all(scenario, program, arguments)


def _run_all(scenario: Scenario, program: Program, arguments: argparse.Namespace) -> int:
    out: Path = arguments.out
    experiment = scenario.experiment
    _prepare_folder(out, experiment)
    stream = sys.stderr if arguments.json else sys.stdout

    def show(rank: int, kind: str, line: str) -> None:
        print(f"[rank{rank}]: {line}", file=sys.stderr if kind == "err" else stream, flush=True)

    runs: list[dict[str, Any]] = []
    for schedule in experiment.schedule:
        folder = out / experiment.run_of(schedule).name
        runs.append(_interruptible(lambda stop, s=schedule, f=folder: run_program(scenario, s, program, f, show, stop)))
        write_atomically(out / "result.json", (json.dumps({"runs": runs}, indent=1, allow_nan=False) + "\n").encode())
        if not arguments.json:
            print(_summary(runs[-1]))
    if arguments.json:
        print((out / "result.json").read_text(), end="")
    else:
        print(f"results           {out / 'result.json'}")
    return 0


def _interruptible(work: Any) -> dict[str, Any]:
    """In a thread of its own, so that an interrupt is seen at once and ends it."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            result: dict[str, Any] = pool.submit(work, stop).result()
        finally:
            stop.set()
    return result


def _experiment(arguments: argparse.Namespace) -> Experiment:
    experiment = read_toml(arguments.file, needs_demand=False, defaults={"schedule": SCHEDULES[0]})
    given = experiment_mapping(arguments)
    checked = from_mapping(
        {"schedule": SCHEDULES[0], **given, "hosts": 2},
        where=f"{arguments.file} with the options: ",
        needs_demand=False,
    )
    return replace(experiment, **{name: getattr(checked, name) for name in given})


def _sysctls(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("net.") or ".." in name or "/" in name:
            raise InputError(f"--sysctl {text!r}: give NAME=VALUE of a network setting, such as net.ipv4.tcp_ecn=0")
        found[name] = value
    return found


def _prepare_folder(out: Path, experiment: Experiment) -> None:
    """Takes away what an earlier run left in it. Raises CannotRunError where that cannot be done."""
    try:
        (out / "result.json").unlink(missing_ok=True)
        for run_ in experiment.runs:
            folder = out / run_.name
            folder.mkdir(exist_ok=True)
            for file in (*folder.glob("rank-*.out"), *folder.glob("rank-*.err"), folder / "flows.parquet"):
                with contextlib.suppress(FileNotFoundError):
                    file.unlink()
        write_atomically(out / "experiment.toml", to_toml(experiment).encode())
    except OSError as error:
        raise CannotRunError(
            f"{error.filename or out} cannot be written: {error.strerror}; choose another --out"
        ) from None


def _summary(run: dict[str, Any]) -> str:
    """A few lines; result.json has all."""
    lines = [
        f"{run['run']}: {run['hosts']} ranks ended after {run['duration_ns'] / 1000:,.3f} us of fabric time "
        f"(dilation {run['dilation']:g}), {run['wall_s']:.1f} s of wall time",
        f"  {run['delivered_bytes']:,} B on the wire in {run['packets']:,} packets, {run['drops']:,} dropped at full "
        f"queues, {run['lost']:,} lost on links, {run['marks']:,} marked; hot queue {run['hot_queue_max_bytes']:,} B at {run['hot_host'] or '-'}, "
        f"deepest inner {run['fabric_queue_max_bytes']:,} B",
    ]
    for each in run["collectives"]:
        bound = ""
        if each["lower_bound_ns"]:
            bound = (
                f", {100 * each['inflation']:.2f} % over its bound of {each['lower_bound_ns'] / 1000:,.3f} us "
                f"({each['bottleneck']})"
            )
        lines.append(f"  {each['name']} {each['turn']}: {each['cct_ns'] / 1000:,.3f} us{bound}")
    return "\n".join(lines)
