"""Repeats a run of a saved comparison with its packets recorded, and checks that it is the same run."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from controller.errors import CannotRunError, InputError
from testbed.experiment import Experiment
from testbed.explain.account import PhaseAccount, account_of
from testbed.explain.trace import Trace, unsound
from testbed.phases import phases_of
from testbed.report.rerun import saved_experiment
from testbed.report.saved import Saved
from testbed.runner import WALL_FIGURES, Progress, identity, run_schedule
from testbed.scenario import Scenario, prepare

__all__ = ["Explanation", "chosen", "explain"]

_VERSIONS: Final = ("version", "kernel_version", "kernel_key", "python_version")
_DIGITS: Final = 3
"""Of a nanosecond, in the figures."""


@dataclass(frozen=True)
class Explanation:
    """Of one run."""

    scenario: Scenario
    run: Mapping[str, Any]
    """As it was saved."""
    phases: tuple[PhaseAccount, ...]

    @property
    def kernel_ns(self) -> int:
        """The CCT."""
        return sum(phase.kernel_ns for phase in self.phases)


def chosen(saved: Saved, which: str | None) -> Mapping[str, Any]:
    """The run of a name, or of a number from 1; without either the only one. Raises InputError."""
    names = [run["run"] for run in saved.runs]
    listed = ", ".join(names)
    if which is None:
        if len(names) > 1:
            raise InputError(f"{saved.folder} holds {len(names)} runs: give --run and one of {listed}")
        return saved.runs[0]
    if which in names:
        return saved.runs[names.index(which)]
    if which.isdecimal() and 1 <= int(which) <= len(names):
        return saved.runs[int(which) - 1]
    raise InputError(f"--run {which}: {saved.folder} holds {listed}; give one of these, or its number from 1")


def explain(saved: Saved, run: Mapping[str, Any], progress: Progress) -> Explanation:
    """Runs it again. Raises CannotRunError where the run cannot be repeated, or is not the same one."""
    name = run["run"]
    if run["cct_ns"] is None:
        raise CannotRunError(f"{name} lost bytes, so that there is no last one: give loss_recovery sack or timeout")
    if not run["expected_bytes"]:
        raise CannotRunError(f"{name} had nothing to send: there is nothing to explain")
    experiment = saved_experiment(saved, run)
    if experiment.stage != "virtual" or experiment.fabric != "kernel":
        what = "in real time" if experiment.stage != "virtual" else "with switches of BMv2"
        raise CannotRunError(
            f"{name} ran {what}, where no run repeats another: run it with --stage virtual --fabric kernel"
        )
    scenario = prepare(replace(experiment, trace=True))
    schedule = _schedule(saved, experiment, run)
    phases: list[PhaseAccount] = []

    def inspect(work: Path) -> None:
        own = experiment.run_of(schedule)
        for number, phase in enumerate(phases_of(scenario, own)):
            if phase.demand.total_bytes:
                phases.append(account_of(scenario, own, Trace(scenario, work, number), number))

    stop = threading.Event()
    try:
        data = run_schedule(scenario, schedule, min(os.sched_getaffinity(0)), progress, stop, inspect=inspect)
    finally:
        stop.set()
    _check_same(run, data.figures, set(identity(scenario, experiment.run_of(schedule))))
    found = Explanation(scenario, run, tuple(phases))
    lasted = [phase_ns for phase_ns in run["phase_cct_ns"] if phase_ns]
    if [round(float(phase.kernel_ns / scenario.dilation), _DIGITS) for phase in phases] != lasted:
        raise unsound(f"the phases of {name} did not end when its figures say")
    return found


def _schedule(saved: Saved, experiment: Experiment, run: Mapping[str, Any]) -> str:
    for schedule in experiment.schedule:
        own = experiment.run_of(schedule)
        if own.name == run["run"]:
            if own.cc.endswith(".py"):
                _check_control(Path(own.cc), run.get("cc_sha256"))
            if own.schedule.endswith(".py"):
                _check_control(Path(own.schedule), run.get("schedule_sha256"))
            return schedule
    raise InputError(f"{saved.folder / 'experiment.toml'} has no run {run['run']}: run the experiment again")


def _check_control(file: Path, expected: object) -> None:
    if hashlib.sha256(file.read_bytes()).hexdigest() != expected:
        raise InputError(f"{file} has changed since the result was made with it: run the experiment again")


def _check_same(saved: Mapping[str, Any], found: Mapping[str, Any], given: set[str]) -> None:
    """Raises CannotRunError where a figure that was measured differs."""
    measured = [key for key in found if key not in given and key not in WALL_FIGURES]
    plain = json.loads(json.dumps({key: found[key] for key in measured}))
    other = [key for key in measured if key not in saved or saved[key] != plain[key]]
    if not other:
        return
    first = "cct_ns" if "cct_ns" in other else other[0]
    versions = [f"{key} {saved.get(key)}, here {found[key]}" for key in _VERSIONS if saved.get(key) != found[key]]
    raise CannotRunError(
        f"{saved['run']} is another run here ({first} {saved.get(first)}, here {plain[first]}), of which nothing can be said: "
        + (
            f"it was made with {'; '.join(versions)}"
            if versions
            else "it was made with other code of the same version, or by a schedule or control that is not the same each time"
        )
        + "; run the experiment again"
    )
