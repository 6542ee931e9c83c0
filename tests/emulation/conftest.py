"""Fixtures of the tests that boot the virtual stage."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from testbed.experiment import from_mapping
from testbed.job import Scenario, prepare
from testbed.measure.results import RunData
from testbed.runner import run_schedule
from testbed.stage.virtual.machine import VirtualMachine, work_folder

CPU = 0
OPEN_LOOP: dict[str, Any] = {"loss_recovery": "none", "queue_bytes": 0}
"""Nothing is acknowledged, and no queue is ever full."""


def scenario_of(demand: Path, **keys: Any) -> Scenario:
    """An experiment on a matrix of wire bytes."""
    keys.setdefault("unit", "wire-bytes")
    table = {name: keys.pop(name) for name in ("unit", "token_bytes") if name in keys}
    return prepare(from_mapping({"demand": [{"file": str(demand), **table}], **keys}))


def run_once(scenario: Scenario, schedule: str) -> RunData:
    """One run, on one processor, without progress."""
    return run_schedule(scenario, schedule, CPU, lambda *_: None, threading.Event())


def run_all(scenarios: Iterable[Scenario], schedule: str) -> list[RunData]:
    """One run each, one a processor at a time."""
    return run_each((scenario, schedule) for scenario in scenarios)


def run_each(runs: Iterable[tuple[Scenario, str]]) -> list[RunData]:
    """(scenario, schedule): the same with schedules of their own."""
    processors: queue.SimpleQueue[int] = queue.SimpleQueue()
    available = sorted(os.sched_getaffinity(0))
    for cpu in available:
        processors.put(cpu)

    def run(what: tuple[Scenario, str]) -> RunData:
        cpu = processors.get()
        try:
            return run_schedule(*what, cpu, lambda *_: None, threading.Event())
        finally:
            processors.put(cpu)

    with ThreadPoolExecutor(len(available)) as pool:
        return list(pool.map(run, runs))


def write_matrix(path: Path, matrix: NDArray[Any]) -> Path:
    """As a file of demand."""
    np.savetxt(path, matrix, fmt="%d", delimiter=",")
    return path


@pytest.fixture
def guest() -> Callable[[str], list[str]]:
    """Runs a Python script as root in a virtual machine of its own; returns the lines it said.

    A script says a line with ``from testbed.stage.virtual.console import say; say("line", text)``.
    """

    def run(source: str) -> list[str]:
        lines: list[str] = []
        with work_folder() as work:
            (work / "script.py").write_text(source)
            machine = VirtualMachine(work, memory_mib=512, cpu=CPU)
            machine.run("script", lambda kind, text: lines.append(text) if kind == "line" else None, limit_s=120)
        return lines

    return run
