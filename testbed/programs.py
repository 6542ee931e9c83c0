"""Runs real programs on an experiment's network, once a host, in virtual time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from controller.errors import CannotRunError, InputError
from testbed.experiment import KEYS, Experiment, Run, plain
from testbed.job import prepare_job
from testbed.measure.spans import collectives, figures, flow_columns, read_spans
from testbed.measure.store import write_table
from testbed.runner import identity
from testbed.scenario import Scenario, prepare
from testbed.stage.machine import GUEST_ENVIRONMENT
from testbed.stage.ranks import COMMAND, OUTPUT, RESULT, SPANS
from testbed.stage.virtual.guest import VISIBLE
from testbed.stage.virtual.machine import VirtualMachine, work_folder

__all__ = ["SCHEDULES", "SYSCTLS", "Output", "Program", "check_command", "prepare_programs", "run_program"]

SYSCTLS: Final[dict[str, str]] = {
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_no_metrics_save": "1",
}
"""Of every host, unless said otherwise: docs/exec.md says why."""
SCHEDULES: Final = ("rr", "rate")
"""What exec can run, the default first."""
_OF_THE_ENGINE: Final[dict[str, str]] = {
    "server_link_gbps": "each rank is a host with one port",
    "loss_ack": "the engine's ACKs are lost by it, and TCP's are packets as all others (loss_data)",
    "loss_recovery": "programs bring their own",
    "stages": "programs send as they like",
    "barrier_ns": "programs send as they like",
    "phase": "programs send as they like",
    "control_delay_ns": "rates of a demand are in force from the beginning",
    "meanwhile": "rates of a demand are in force from the beginning",
    "start_jitter_ns": "programs start together, and wait as they like",
    "trace": "packets of programs are counted, not traced",
}
"""Keys without an effect on real programs, and why: refused where they are not as by default, and not in results."""
_OF_A_PLAN: Final = ("estimate_stale", "estimate_error")
"""And those that have one on the rates of a demand alone."""
_DEFAULTS: Final = {key.name: key.default for key in KEYS}
_FACTOR: Final = 100
_RANK_MIB: Final = 192
"""Of a program and its libraries, rounded up: PyTorch's."""
_SHARED_MIB: Final = 1024
_PATIENCE: Final = Path(__file__).with_name("stage") / "patience.so"
_FOLLOWED: Final = ("out", "err")
_OF_THE_GUEST: Final = ("/dev/", "/proc/", "/run/", "/sys/")
"""Folders of which ranks see others than we do."""

Output = Callable[[int, str, str], None]
"""Called with a rank, "out" or "err", and each line that it prints."""


@dataclass(frozen=True)
class Program:
    """What every rank runs."""

    argv: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    sysctls: Mapping[str, str]


def prepare_programs(experiment: Experiment) -> Scenario:
    """The scenario of an experiment for real programs: with a dilation at which TCP's timers make sense (docs/exec.md).

    Raises InputError for what real programs do not know.
    """
    for name, known in (("stage", "virtual"), ("fabric", "kernel"), ("nic", "ebpf")):
        if getattr(experiment, name) != known:
            raise InputError(f"{name} is {getattr(experiment, name)}: exec knows {name} {known} alone: leave it out")
    if experiment.lb == "reps":
        raise InputError("lb is reps, which needs the engine's ACKs: for real programs give ops, ecmp or ar")
    if experiment.background:
        raise InputError("background: the engine sends it, and real programs run without: leave it out")
    for name, why in _OF_THE_ENGINE.items():
        if getattr(experiment, name) != _DEFAULTS[name]:
            raise InputError(
                f"{name} is {plain(getattr(experiment, name))}, which has no effect in exec: {why}; leave it out"
            )
    if experiment.cc != _DEFAULTS["cc"]:
        raise InputError(f"cc is {experiment.cc}: programs bring their own congestion control: leave it out")
    for run in experiment.runs:
        if run.schedule not in SCHEDULES:
            raise InputError(f"schedule {run.name}: programs send when they like: give {' or '.join(SCHEDULES)}")
        if run.cc != "none":
            raise InputError(
                f"schedule {run.name}: programs bring their own congestion control: give {' or '.join(SCHEDULES)}"
            )
        if run.schedule == "rate" and not experiment.demand:
            raise InputError(
                "schedule rate needs a demand: give a [[demand]], or rr where a program writes its own rates"
            )
    if "rate" not in {run.schedule for run in experiment.runs}:
        for name in _OF_A_PLAN:
            if getattr(experiment, name):
                raise InputError(
                    f"{name}: rr has no rates to make from an estimate: leave it out, or give schedule rate"
                )
    if experiment.gpus_per_server > 1 and not experiment.demand:
        raise InputError("gpus_per_server: without a demand it has no effect, since each rank is a host: leave it out")
    scenario = prepare(experiment)
    if len(scenario.demands) > 1:
        raise InputError(f"{len(scenario.demands)} demands: exec writes the rates of one; leave the others out")
    return prepare(
        replace(
            experiment,
            dilation=experiment.dilation or scenario.dilation * _FACTOR,
            # As it is here: trimming decides the automatic limit of queues, and nothing else.
            queue_bytes=scenario.parameters.queue_bytes,
            trimming=False,
            links="pairs",
        )
    )


def check_command(program: Program) -> None:
    """Raises InputError for a command that no rank would find, as far as that can be known here."""
    name = program.argv[0]
    if not name:
        raise InputError('the command behind "--" is empty: give what every rank runs')
    if os.path.dirname(name):
        path = program.folder / name
        if str(path).startswith(_OF_THE_GUEST):
            return
        if not path.exists():
            raise InputError(f"{name}: there is no such file: give a command that every rank can run")
        if path.is_dir() or not os.access(path, os.X_OK):
            raise InputError(
                f"{name} is {'a folder' if path.is_dir() else 'not executable'}: give a command that every rank can run"
            )
    elif shutil.which(name, path=program.environment.get("PATH", os.defpath)) is None:
        raise InputError(f"{name} is in no folder of PATH: give a command that every rank can run")


def run_program(
    scenario: Scenario, schedule: str, program: Program, out: Path, on_output: Output, stop: threading.Event
) -> dict[str, Any]:
    """One run; keeps the ranks' output in ``out``, however it ends, and returns its figures.

    Raises CannotRunError, in one line, where a rank fails, hangs or spins.
    """
    experiment = scenario.experiment
    run = experiment.run_of(schedule)
    hosts = len(scenario.wiring.hosts)
    begin_s = time.monotonic()

    def on_line(kind: str, text: str) -> None:
        if kind in _FOLLOWED:
            rank, _, line = text.partition(" ")
            on_output(int(rank), kind, line)

    with work_folder() as work:
        prepare_job(scenario, run, work)
        if run.schedule != "rate":
            (work / "rates-0.bin").unlink(missing_ok=True)
        _write_command(scenario, program, work)
        machine = VirtualMachine(
            work, memory_mib=experiment.memory_mib or _SHARED_MIB + _RANK_MIB * hosts, cpu=max(os.sched_getaffinity(0))
        )
        watcher = threading.Thread(target=_stop_with, args=(machine, stop), daemon=True)
        watcher.start()
        try:
            machine.run("ranks", on_line, limit_s=float(experiment.limit_s))
        except CannotRunError as error:
            raise CannotRunError(f"{error}; what the ranks printed is in {out}") from None
        finally:
            _keep_output(work / OUTPUT, out)
        result = json.loads((work / RESULT).read_text())
        spans = [read_spans(work / SPANS / str(rank), rank, hosts) for rank in range(hosts)]
        found = {
            **_identity(scenario, run),
            "command": list(program.argv),
            "command_sha256": _sha256_of_files(program),
            "path": program.environment.get("PATH", ""),
            "environment_sha256": _sha256_of_environment(program),
            "sysctls": dict(program.sysctls),
            **figures(scenario, result),
            "collectives": collectives(scenario, spans, result["begin_ns"]),
            "wall_s": round(time.monotonic() - begin_s, 3),
        }
        write_table(out / "flows.parquet", flow_columns(scenario, result))
    return found


def _identity(scenario: Scenario, run: Run) -> dict[str, Any]:
    """Without what has no effect here."""
    found = identity(scenario, run)
    for name in (*_OF_THE_ENGINE, "rto_ns"):
        del found[name]
    return found


def _stop_with(machine: VirtualMachine, stop: threading.Event) -> None:
    stop.wait()
    machine.kill("interrupted")


def _write_command(scenario: Scenario, program: Program, work: Path) -> None:
    """What testbed/stage/ranks.py reads, and the paths that its machine must show."""
    if not _PATIENCE.exists():
        raise CannotRunError(f"{_PATIENCE} was not built: run make setup")
    code = str(Path(__file__).resolve().parents[1])
    preloaded = program.environment.get("LD_PRELOAD")
    path = program.environment.get("PYTHONPATH")
    environment = {
        **program.environment,
        **{name: value for name, value in GUEST_ENVIRONMENT.items() if name.startswith("PYTHON")},
        "OMP_NUM_THREADS": program.environment.get("OMP_NUM_THREADS", "1"),
        "LD_PRELOAD": f"{_PATIENCE}:{preloaded}" if preloaded else str(_PATIENCE),
        "PYTHONPATH": f"{code}{os.pathsep}{path}" if path else code,
    }
    (work / COMMAND).write_text(
        json.dumps(
            {
                "argv": list(program.argv),
                "environment": environment,
                "folder": str(program.folder),
                "limit_s": float(scenario.experiment.limit_virtual_s),
                "sysctls": dict(program.sysctls),
                "line_rates_bps": [str(speed) for speed in scenario.speeds_bps],
                "mtu_bytes": scenario.experiment.mtu_bytes,
            }
        )
    )
    shown = {str(program.folder), *(word for word in map(os.path.abspath, program.argv) if os.path.exists(word))}
    for name in ("PATH", "PYTHONPATH"):
        shown |= {folder for folder in environment.get(name, "").split(os.pathsep) if os.path.isdir(folder)}
    # Of a folder that is shown all is.
    outermost = [path for path in sorted(shown) if not any(path.startswith(f"{other}/") for other in shown)]
    (work / VISIBLE).write_text("".join(f"{path}\n" for path in outermost))


def _keep_output(found: Path, folder: Path) -> None:
    """What cannot be kept is lost: the run's own end is what counts."""
    if not found.is_dir():
        return
    for log in sorted(found.iterdir()):
        with contextlib.suppress(OSError):
            shutil.copyfile(log, folder / log.name)


def _sha256_of_environment(program: Program) -> str:
    """What is searched and not found takes time (docs/exec.md): PATH, and whatever else a program goes by. Values may be secrets."""
    lines = sorted(f"{name}={value}\0" for name, value in program.environment.items())
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def _sha256_of_files(program: Program) -> dict[str, str]:
    """Of each word of the command that is a file: what was run."""
    found = {}
    for word in dict.fromkeys(
        (shutil.which(program.argv[0], path=program.environment.get("PATH")) or "", *program.argv[1:])
    ):
        file = program.folder / word
        if word and file.is_file():
            found[word] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found
