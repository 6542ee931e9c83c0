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
from testbed.measure.results import RunData
from testbed.runner import run_schedule
from testbed.scenario import Scenario, prepare
from testbed.stage.virtual.machine import VirtualMachine, work_folder

CPU = min(os.sched_getaffinity(0))
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


def assert_all_arrived(data: RunData, scenario: Scenario) -> None:
    """Every byte once, known at both ends, and the tables agree with the figures."""
    figures, flows = data.figures, data.flows
    assert figures["delivered_bytes"] == figures["expected_bytes"] == scenario.expected_bytes
    assert flows["delivered_bytes"].tolist() == flows["bytes"].tolist()
    for name in ("first_arrival_ns", "last_arrival_ns", "last_ack_ns"):
        assert not np.isnan(flows[name]).any(), name
    assert (flows["first_arrival_ns"] <= flows["last_arrival_ns"]).all()
    # The ACK that ends a flow is sent when the last packet has come, and crosses two links at least.
    shortest_ns = float(min(port.ns for port in scenario.wiring.ports))
    assert (flows["last_ack_ns"] - flows["last_arrival_ns"] > 2 * shortest_ns).all()
    assert figures["cct_ns"] == pytest.approx(flows["last_arrival_ns"].max(), abs=2e-3)
    begun_ns = np.cumsum([0, *figures["phase_cct_ns"]])
    last_ack_ns = [flows["last_ack_ns"][flows["phase"] == phase].max() for phase in range(len(begun_ns) - 1)]
    assert figures["cct_last_ack_ns"] == pytest.approx(sum(last_ack_ns - begun_ns[:-1]), abs=0.01)
    for name in ("retransmissions", "nacks", "timeouts", "sack_losses", "probes", "duplicates"):
        assert figures[name] == flows[name].sum(), name
    new = int((-(-flows["bytes"] // scenario.experiment.mtu_bytes)).sum())
    assert figures["packets"] == new + figures["retransmissions"]
    # A packet is sent again because something said that it was lost; a second copy that arrives was sent again.
    causes = sum(flows[name] for name in ("nacks", "timeouts", "sack_losses", "probes"))
    assert (flows["retransmissions"] <= causes).all()
    assert (flows["duplicates"] <= flows["retransmissions"]).all()
    assert figures["nacks"] <= figures["trims"]


@pytest.fixture
def guest() -> Callable[[str], list[str]]:
    """Runs a Python script as root in a virtual machine of its own; returns the lines it said.

    A script says a line with ``from testbed.stage.console import say; say("line", text)``.
    """

    def run(source: str) -> list[str]:
        lines: list[str] = []
        with work_folder() as work:
            (work / "script.py").write_text(source)
            machine = VirtualMachine(work, memory_mib=512, cpu=CPU)
            machine.run("script", lambda kind, text: lines.append(text) if kind == "line" else None, limit_s=120)
        return lines

    return run
