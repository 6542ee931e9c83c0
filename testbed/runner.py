"""Runs the schedules of an experiment, each in a machine of its own, and keeps what each measured."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import platform
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from controller import __version__
from controller.errors import CannotRunError, InputError
from controller.formats import files_of
from testbed.engine import cca
from testbed.experiment import Run, to_toml
from testbed.job import LOGS, USER_CONTROL, Job, prepare_job
from testbed.measure.results import RunData, collect, empty_figures
from testbed.measure.store import write_atomically, write_table
from testbed.phases import Phase, phases_of
from testbed.scenario import Scenario
from testbed.stage.host.budget import check_budget
from testbed.stage.host.checks import require
from testbed.stage.host.machine import HostMachine
from testbed.stage.machine import Machine
from testbed.stage.virtual import kernel
from testbed.stage.virtual.machine import VirtualMachine, work_folder

__all__ = [
    "PICTURES",
    "REPORT",
    "TABLES",
    "WALL_FIGURES",
    "Progress",
    "identity",
    "nothing_to_send",
    "prepare_folder",
    "run_experiment",
    "run_schedule",
]

TABLES: Final = ("flows", "ports", "counters", "trace")
PICTURES: Final = ("queue.png", "utilisation.png")
REPORT: Final = "report.html"
_SLOW_S: Final = 10.0
WALL_FIGURES: Final = ("wall_s", "setup_s", "engine_s")
"""The only figures that differ between two runs of one experiment."""

Progress = Callable[[str, float, float, int, int], None]
"""(run, fabric ns, wall s, packets delivered, packets expected), while a run goes on."""


def run_schedule(
    scenario: Scenario,
    schedule: str,
    cpu: int | None,
    progress: Progress,
    stop: threading.Event,
    at_once: int = 1,
    logs: Path | None = None,
    inspect: Callable[[Path], None] | None = None,
    planned: Iterable[Phase] | None = None,
) -> RunData:
    """One run in one machine of the experiment's stage; ``schedule``: SCHEDULE or SCHEDULE+CC.

    ``inspect`` is given the folder of what the run has written, before it goes; what is traced is then read by it alone.
    ``logs``: a folder for the logs of switches that are processes, however the run ends. ``planned``: its phases, where they have been begun. Raises CannotRunError with one line where it cannot finish.
    """
    run = scenario.experiment.run_of(schedule)
    begin = time.monotonic()
    cc_sha256 = None
    marks: dict[str, float] = {}
    engine_s = 0.0

    def on_line(kind: str, text: str) -> None:
        nonlocal engine_s
        now = time.monotonic()
        if kind == "progress":
            kernel_ns, delivered, expected = (int(word) for word in text.split())
            progress(run.name, float(kernel_ns / scenario.dilation), now - begin, delivered, expected)
        elif kind == "measured":
            engine_s += now - marks["phase"]
        marks.setdefault(kind, now)
        marks[kind] = now if kind == "phase" else marks[kind]

    with work_folder() as work:
        job: Job = prepare_job(scenario, run, work, planned)
        if run.cc.endswith(".py"):
            cc_sha256 = _sha256(work / USER_CONTROL)
        machine = _machine(scenario, job, work, cpu, at_once)
        watcher = threading.Thread(target=_stop_with, args=(machine, stop), daemon=True)
        watcher.start()
        try:
            machine.run("collective", on_line, limit_s=float(scenario.experiment.limit_s))
        finally:
            if logs:
                _keep_logs(work / LOGS, logs)
        if inspect:
            inspect(work)
            # A trace that was made for it alone is not turned into columns: it may be as large as the memory.
            scenario = replace(scenario, experiment=replace(scenario.experiment, trace=False))
        data = collect(scenario, run, work)
    figures = {
        **identity(scenario, run),
        "cc_sha256": cc_sha256,
        **data.figures,
        "wall_s": round(time.monotonic() - begin, 3),
        "setup_s": round(marks["ready"] - begin, 3),
        "engine_s": round(engine_s, 3),
    }
    return replace(data, figures=figures)


def _machine(scenario: Scenario, job: Job, work: Path, cpu: int | None, at_once: int) -> Machine:
    if scenario.experiment.stage == "host":
        check_budget(scenario.experiment, scenario.wiring, scenario.demands, scenario.speeds_bps, scenario.dilation)
        return HostMachine(work, memory_mib=job.memory_mib, cpu=cpu)
    return VirtualMachine(work, memory_mib=job.memory_mib, cpu=cpu, at_once=at_once)


def _kernel_of(scenario: Scenario) -> tuple[str, str | None]:
    """Version, and the key of a kernel that we have built."""
    if scenario.experiment.stage == "host":
        return platform.release(), None
    built = kernel.find()
    return built.version, built.key


def _keep_logs(found: Path, folder: Path) -> None:
    """What cannot be kept is lost: the run's own end is what counts."""
    for log in found.glob("*.log"):
        with contextlib.suppress(OSError):
            write_atomically(folder / log.name, log.read_bytes())


def identity(scenario: Scenario, run: Run, *, ran: bool = True) -> dict[str, Any]:
    """The experiment's keys as they were run."""
    version, key = _kernel_of(scenario) if ran else (None, None)
    phases = [given.phase for given in scenario.inputs]
    hashes = {file: _sha256_of_all(file) for file in {phase.file for phase in phases}}
    parameters = scenario.parameters
    return {
        "run": run.name,
        **scenario.experiment.keys(),
        "hosts": scenario.hosts,
        **scenario.shape,
        "dilation": _plain_number(float(scenario.dilation)),
        "schedule": run.schedule,
        "schedule_options": list(run.options),
        "schedule_sha256": _sha256(Path(run.schedule)) if run.schedule.endswith(".py") else None,
        "cc": run.cc,
        "queue_bytes": parameters.queue_bytes,
        "ecn_kmin_bytes": parameters.ecn_kmin_bytes,
        "ecn_kmax_bytes": parameters.ecn_kmax_bytes,
        "links": scenario.links,
        "rtt_ns": float(parameters.rtt_ns),
        "rto_ns": parameters.rto_ns,
        "link_failure": [
            {"link": each.link, "down_ns": float(each.down_ns), "up_ns": float(each.up_ns)}
            for each in scenario.experiment.link_failure
        ],
        "background": [
            {**vars(each), "rate_gbps": float(each.rate_gbps), "start_ns": float(each.start_ns)}
            for each in scenario.experiment.background
        ],
        "demand": [str(phase.file.resolve()) for phase in phases],
        "demand_sha256": [hashes[phase.file] for phase in phases],
        "unit": [given.unit for given in scenario.inputs],
        "token_bytes": [phase.token_bytes for phase in phases],
        "phase_names": [given.name for given in scenario.inputs],
        "notes": scenario.notes,
        "version": __version__,
        "python_version": platform.python_version(),
        "kernel_version": version,
        "kernel_key": key,
        "bmv2_version": scenario.bmv2_version,
    }


def nothing_to_send(scenario: Scenario, schedule: str) -> dict[str, Any]:
    """The figures of a run of an empty demand, which needs no machine."""
    hosts = scenario.hosts
    run = scenario.experiment.run_of(schedule)
    return {
        **identity(scenario, run, ran=False),
        "cc_sha256": _sha256(Path(run.cc)) if run.cc.endswith(".py") else None,
        **empty_figures(hosts),
        **dict.fromkeys(WALL_FIGURES, 0),
    }


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _sha256_of_all(path: Path) -> str:
    """Of a file; of several, such as one a rank, of their hashes in order."""
    hashes = []
    for file in files_of(path):
        with file.open("rb") as stream:
            digest = hashlib.sha256()
            while part := stream.read(1 << 20):
                digest.update(part)
        hashes.append(digest.hexdigest())
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _plain_number(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _stop_with(machine: Machine, stop: threading.Event) -> None:
    stop.wait()
    machine.kill("interrupted")


def run_experiment(scenario: Scenario, out: Path, progress: Progress) -> list[dict[str, Any]]:
    """All schedules, one a processor at a time, in real time one after the other; ``out`` holds each result as soon as its run has ended.

    Writes result.json, experiment.toml and, in a folder a run, flows.parquet, ports.parquet and with ``trace``
    trace.parquet. Raises the first error of a run after the others have ended.
    """
    schedules = scenario.experiment.schedule
    processors: queue.SimpleQueue[int] = queue.SimpleQueue()
    real_time = scenario.experiment.stage == "host"
    # Devices prefer the first processor; what must not be late takes the last.
    available = sorted(os.sched_getaffinity(0), reverse=real_time)
    for cpu in available:
        processors.put(cpu)
    finished: dict[str, dict[str, Any]] = {}
    writing = threading.Lock()
    stop = threading.Event()
    if real_time:  # before the results of an earlier comparison are gone
        require()
        check_budget(scenario.experiment, scenario.wiring, scenario.demands, scenario.speeds_bps, scenario.dilation)
    else:
        kernel.find()
    planned = {schedule: _begun(scenario, schedule) for schedule in schedules}  # likewise
    prepare_folder(scenario, out)

    # In real time one run would make the other late.
    at_once = 1 if real_time else min(len(available), len(schedules))

    def work(schedule: str) -> None:
        cpu = processors.get()
        try:
            name = scenario.experiment.run_of(schedule).name
            data = run_schedule(
                scenario, schedule, cpu, progress, stop, at_once, out / name, planned=planned.pop(schedule)
            )
        except CannotRunError as error:
            if len(schedules) == 1 or str(error).startswith(name):
                raise
            raise CannotRunError(f"{name}: {error}") from error
        finally:
            processors.put(cpu)
        with writing:
            finished[schedule] = data.figures
            _keep(out, data.figures["run"], data, [finished[s] for s in schedules if s in finished])

    pool = ThreadPoolExecutor(max_workers=at_once)
    tasks: list[Future[None]] = [pool.submit(work, schedule) for schedule in schedules]
    failed: CannotRunError | InputError | None = None
    try:
        for task in tasks:
            try:
                task.result()
            except (CannotRunError, InputError) as error:
                failed = failed or error
    except BaseException:
        stop.set()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        stop.set()
    if failed:
        raise failed
    return [finished[schedule] for schedule in schedules]


def _begun(scenario: Scenario, schedule: str) -> Iterator[Phase]:
    """The phases of a run, planned as far as may fail, and its control looked at: that raises InputError here, in the thread that
    hears signals.

    A built-in schedule that plans the first demand plans all of them, and a plan of stages may be large: the others are made when
    they are run. A user's file may fail, or not end, at any.
    """
    run = scenario.experiment.run_of(schedule)
    phases = phases_of(scenario, run)
    control = cca.load(run.cc)
    if run.schedule.endswith(".py"):
        slow = threading.Timer(_SLOW_S, _say_slow, [run.schedule])
        slow.daemon = True
        slow.start()
        try:
            planned = list(phases)
        finally:
            slow.cancel()
        if control and control.kind == "rate" and any(phase.plan.stage_count for phase in planned):
            raise InputError(f"{run.name}: {run.cc} sets rates, which stages have none of: give one of windows")
        return iter(planned)
    return itertools.chain([next(phases)], phases)


def _say_slow(schedule: str) -> None:
    print(f"note: {schedule} has been planning for {_SLOW_S:g} s; no limit ends it, Ctrl-C does", file=sys.stderr)


def prepare_folder(scenario: Scenario, out: Path) -> None:
    """Makes the results' folder, takes away what an earlier comparison left in it, and says what is to be run.

    Raises CannotRunError where that cannot be done, and InputError where ``out`` is a file: before anything was run.
    """
    try:
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file, not a folder: choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            for run in json.loads((out / "result.json").read_text())["runs"]:
                for name in TABLES:
                    (out / run["run"] / f"{name}.parquet").unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    (out / run["run"]).rmdir()
        for name in ("result.json", REPORT, *PICTURES):
            (out / name).unlink(missing_ok=True)
        for run in scenario.experiment.runs:
            (out / run.name).mkdir(exist_ok=True)
            for switch in scenario.wiring.switches:
                (out / run.name / f"{switch}.log").unlink(missing_ok=True)
        write_atomically(out / "experiment.toml", to_toml(scenario.experiment).encode())
    except OSError as error:
        raise CannotRunError(
            f"{error.filename or out} cannot be written: {error.strerror}; choose another --out"
        ) from None


def _keep(out: Path, name: str, data: RunData, runs: list[dict[str, Any]]) -> None:
    folder = out / name
    try:
        folder.mkdir(exist_ok=True)
        write_table(folder / "flows.parquet", data.flows)
        write_table(folder / "ports.parquet", data.ports)
        write_table(folder / "counters.parquet", data.counters)
        if data.trace is not None:
            write_table(folder / "trace.parquet", data.trace)
        write_atomically(out / "result.json", (json.dumps({"runs": runs}, indent=1, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise CannotRunError(f"{error.filename or out} cannot be written: {error.strerror}") from None
