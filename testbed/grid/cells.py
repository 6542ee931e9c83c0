"""A cell is one experiment with one run, whole as data: it can be sent anywhere, and is known by its hash."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from controller.errors import CannotRunError, InputError
from testbed.engine import _engine
from testbed.experiment import Experiment, Run, from_mapping
from testbed.fabric import KERNEL_OBJECTS
from testbed.grid.processors import borrowed_processor
from testbed.measure.results import RunData
from testbed.measure.store import table_bytes
from testbed.report.plots import hottest
from testbed.runner import WALL_FIGURES, identity, run_schedule
from testbed.scenario import Scenario, prepare
from testbed.stage.virtual.machine import work_folder

__all__ = ["RESULT", "Cell", "Files", "Halt", "Matrix", "Network", "Outcome", "cells_of", "run_cell", "versions"]

RESULT: Final = "result.json"
_ENDLESS: Final = "many times the lower bound"
"""What a run is told that did not end in time (testbed/stage/tasks.py)."""
_NO_PART_OF_A_RUN: Final = ("cli", "report", "figures", "grid", "robustness", "workload")
"""Folders of controller and testbed whose code changes no result; demands count by their content."""

_OF_PLACES: Final = ("demand", "notes")
"""What a result says of where its files lie, which is not the same everywhere."""
_OF_MEANS: Final = ("memory_mib", "limit_s", "limit_virtual_s")
"""Keys that decide whether a run ends here, and nothing of its result: what failed is tried with more, and the rest need not run again."""

Files = dict[str, bytes]
"""What is kept of a cell: result.json, and NAME.parquet for each of its tables."""


@dataclass(frozen=True)
class Network:
    """What a figure must know of the hosts' links and of the demand. No part of the address: it follows from the experiment."""

    hosts: tuple[str, ...]
    hot_host: str
    """The receiver that needs longest for what is sent to it."""
    hot_gbps: float
    total_gbps: float
    """Of all links into hosts."""
    mtu_bytes: int
    wire_bytes: int
    lower_bound_ns: float


@dataclass(frozen=True)
class Matrix:
    """One phase of the demand, with its file's content."""

    content: bytes
    suffix: str
    name: str
    unit: str
    token_bytes: int
    after: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """One experiment with one run. Everything that it needs lies in it."""

    keys: dict[str, Any]
    """As an experiment file says them, without schedule and demand."""
    run: str
    """SCHEDULE+CC; a schedule or control of the user's by the name of its file."""
    matrices: tuple[Matrix, ...]
    control: bytes | None
    tables: tuple[str, ...]
    """Which are kept: flows, ports, counters."""
    may_not_end: bool
    """That it was given up after many times the lower bound is then a result, not a failure."""
    label: str
    """What people call it."""
    network: Network
    packets: int
    """A measure of the work."""
    address: str = field(default="")
    """sha256 of what decides the result; empty until it is known."""
    schedule: bytes | None = None
    """Content of a schedule of the user's."""


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: with files or with the reason, in one line, why there are none."""

    cell: Cell
    files: Files | None
    reason: str = ""


class Halt:
    """Ends all runs that are going on, and those that would begin."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[threading.Event] = set()
        self._halted = False

    @contextlib.contextmanager
    def one_run(self) -> Iterator[threading.Event]:
        """The event that ends this run; set in any case when it is over, so that nobody waits for it any more."""
        event = threading.Event()
        with self._lock:
            if self._halted:
                raise CannotRunError("interrupted")
            self._running.add(event)
        try:
            yield event
        finally:
            event.set()
            with self._lock:
                self._running.discard(event)

    def halt(self) -> None:
        """From any thread."""
        with self._lock:
            self._halted = True
            for event in self._running:
                event.set()


def _matrices(scenario: Scenario) -> tuple[Matrix, ...]:
    """The files as they are where each is one matrix, which says all; else what was read of them, as wire bytes."""
    one_each = len(scenario.inputs) == len(scenario.experiment.demand)
    if one_each and all(given.phase.is_matrix for given in scenario.inputs):
        return tuple(
            Matrix(
                given.phase.file.read_bytes(),
                given.phase.file.suffix,
                given.name,
                given.unit,
                given.phase.token_bytes,
                given.phase.after,
            )
            for given in scenario.inputs
        )
    matrices: list[Matrix] = []
    for given, demand in zip(scenario.inputs, scenario.demands, strict=True):
        stream = io.BytesIO()
        np.save(stream, demand.wire_bytes)
        after = (matrices[-1].name,) if matrices else ()
        matrices.append(Matrix(stream.getvalue(), ".npy", given.name, "wire-bytes", 0, after))
    return tuple(matrices)


def cells_of(
    experiment: Experiment, *, tables: tuple[str, ...], label: str, may_not_end: Collection[str] = ()
) -> list[Cell]:
    """One cell for each run of a checked experiment. ``may_not_end``: names of such runs.

    Raises InputError for what does not fit together, for a demand of nothing, and for real time, which is never the same twice.
    """
    if experiment.stage != "virtual" or experiment.fabric != "kernel":
        raise InputError("a grid runs in virtual time on the fabric kernel: what it keeps must be the same every time")
    scenario = prepare(experiment)
    if not scenario.expected_bytes:
        raise InputError(
            f"{experiment.demand[0].file}: nothing to send: give another matrix, with something off its diagonal"
        )
    mtu = experiment.mtu_bytes
    packets = sum(int((-(-demand.wire_bytes // mtu)).sum()) for demand in scenario.demands)
    # One of each for all cells: some grids have hundreds, with megabytes each.
    network = _network(scenario)
    matrices = _matrices(scenario)
    cells = []
    for run in experiment.runs:
        own, own_schedule = run.cc.endswith(".py"), run.schedule.endswith(".py")
        planned = ":".join((Path(run.schedule).name if own_schedule else run.schedule, *run.options))
        cell = Cell(
            keys={name: value for name, value in experiment.keys().items() if name not in ("schedule", "cc")}
            | {
                "link_failure": [
                    {"link": each.link, "down_ns": each.down_ns, "up_ns": each.up_ns}
                    for each in experiment.link_failure
                ],
                "background": [dict(vars(each)) for each in experiment.background],
            },
            run=f"{planned}+{Path(run.cc).name if own else run.cc}",
            matrices=matrices,
            control=Path(run.cc).read_bytes() if own else None,
            tables=tables,
            may_not_end=run.name in may_not_end,
            label=f"{label} {run.name}",
            network=network,
            packets=packets,
            schedule=Path(run.schedule).read_bytes() if own_schedule else None,
        )
        cells.append(replace(cell, address=_address(canonical(scenario, run))))
    return cells


def _network(scenario: Scenario) -> Network:
    ports, hosts = scenario.wiring.ports, tuple(scenario.wiring.hosts)[: scenario.hosts]
    into = [float(ports[scenario.wiring.host_port(host)].gbps) for host in range(len(hosts))]
    hot = hottest(scenario)
    return Network(
        hosts=hosts,
        hot_host=hot,
        hot_gbps=into[hosts.index(hot)],
        total_gbps=sum(into),
        mtu_bytes=scenario.experiment.mtu_bytes,
        wire_bytes=scenario.expected_bytes,
        lower_bound_ns=float(scenario.lower_bound_s * 10**9),
    )


def canonical(scenario: Scenario, run: Run) -> dict[str, Any]:
    """All that decides a result: the keys as run, contents by their hashes instead of paths, and what runs them."""
    document = identity(scenario, run)
    for name in (*_OF_PLACES, *_OF_MEANS):
        del document[name]
    if run.schedule.endswith(".py"):
        document["schedule"] = Path(run.schedule).name
    if run.cc.endswith(".py"):
        document["cc"] = Path(run.cc).name
    cc_sha256 = _sha256(Path(run.cc).read_bytes()) if run.cc.endswith(".py") else None
    return {**document, "cc_sha256": cc_sha256, **versions()}


@functools.cache
def versions() -> dict[str, str]:
    """Hashes of the engine, of the eBPF object and of the Python of a run, beside the versions in every result.

    Of the code as it was when this was first asked: a process that lives long runs what it has loaded.
    """
    testbed = Path(__file__).resolve().parents[1]
    sources = hashlib.sha256()
    for root in (testbed.parent / "controller", testbed):
        for path in sorted(root.rglob("*.py")):
            place = path.relative_to(root)
            if place.parts[0] in _NO_PART_OF_A_RUN:
                continue
            sources.update(f"{root.name}/{place}\0{_sha256(path.read_bytes())}\n".encode())
    try:
        return {
            "engine_sha256": _sha256(Path(_engine.__file__).read_bytes()),
            "fabric_sha256": _sha256(b"".join(path.read_bytes() for path in KERNEL_OBJECTS)),
            "sources_sha256": sources.hexdigest(),
        }
    except OSError as error:
        raise CannotRunError(f"{error.filename} is missing: run make setup") from None


def _address(document: dict[str, Any]) -> str:
    return _sha256(json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _experiment(cell: Cell, folder: Path) -> Experiment:
    """The experiment of a cell, with its files in ``folder``."""
    phases: list[dict[str, Any]] = []
    for number, matrix in enumerate(cell.matrices):
        file = folder / f"demand-{number}{matrix.suffix}"
        file.write_bytes(matrix.content)
        phases.append(
            {
                "file": file.name,
                "name": matrix.name,
                "unit": matrix.unit,
                "token_bytes": matrix.token_bytes,
                "after": list(matrix.after),
            }
        )
    planned, _, cc = cell.run.partition("+")
    if cell.control is not None:
        (folder / cc).write_bytes(cell.control)
    if cell.schedule is not None:
        (folder / planned.partition(":")[0]).write_bytes(cell.schedule)
    return from_mapping({**cell.keys, "schedule": [cell.run], "demand": phases}, base=folder)


def run_cell(cell: Cell, halt: Halt, progress: Callable[[int, int], None], at_once: int) -> Files:
    """Runs it on a processor of its own, and returns what is kept of it: the same bytes every time.

    Wall times (runner.WALL_FIGURES) are left out of the result, and paths. ``progress``: (packets delivered, expected).
    Raises CannotRunError in one line.
    """
    with halt.one_run() as stop, work_folder() as folder:
        experiment = _experiment(cell, folder)
        scenario = prepare(experiment)
        run = experiment.runs[0]
        document = canonical(scenario, run)
        if _address(document) != cell.address:
            raise CannotRunError(
                "what runs it here is not what asked for it: use one version of incastfree, of its build and of Python everywhere"
            )
        try:
            with borrowed_processor() as cpu:
                data = run_schedule(
                    scenario,
                    experiment.schedule[0],
                    cpu,
                    lambda _run, _ns, _s, delivered, expected: progress(delivered, expected),
                    stop,
                    at_once,
                )
        except CannotRunError as error:
            if not cell.may_not_end or _ENDLESS not in str(error):
                raise
            return {RESULT: _json({**document, "cct_ns": None, "inflation": None, "gave_up": str(error)})}
        return _files(cell, document, data)


def _files(cell: Cell, document: dict[str, Any], data: RunData) -> Files:
    measured = {
        name: value for name, value in data.figures.items() if name not in (*WALL_FIGURES, *_OF_PLACES, *_OF_MEANS)
    }
    files = {RESULT: _json({**measured, **document})}
    for name in cell.tables:
        files[f"{name}.parquet"] = table_bytes(getattr(data, name))
    return files


def _json(figures: dict[str, Any]) -> bytes:
    """In the layout of what ``compare`` writes."""
    return (json.dumps({"runs": [figures]}, indent=1, allow_nan=False) + "\n").encode()
