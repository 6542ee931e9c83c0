"""The experiment of a saved result, checked to be the same: for what models it, or runs it again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from controller.errors import InputError
from testbed.experiment import Experiment, read_toml
from testbed.report.saved import Saved
from testbed.scenario import Scenario, prepare

__all__ = ["saved_experiment", "saved_scenario"]


def saved_experiment(saved: Saved, run: Mapping[str, Any]) -> Experiment:
    """Of experiment.toml in the folder. Raises InputError where it, or a file that it names, is not what ``run`` was made of."""
    path = saved.folder / "experiment.toml"
    experiment = read_toml(path)
    sums = run.get("demand_sha256")
    if not isinstance(sums, list) or len(sums) != len(experiment.demand):
        raise InputError(f"{path} is not the experiment of {run['run']}: run the experiment again")
    for phase, expected in zip(experiment.demand, sums, strict=True):
        _check_same(phase.file, expected)
    return experiment


def saved_scenario(saved: Saved, run: Mapping[str, Any]) -> Scenario:
    """The same laid out, as the in-kernel fabric in virtual time would run it, whatever did: its demands, network and speeds."""
    return prepare(replace(saved_experiment(saved, run), fabric="kernel", stage="virtual"))


def _check_same(file: Path, expected: object) -> None:
    try:
        found = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(
            f"{file}, from which the result was made, cannot be read: {error.strerror}; put it back, or run the experiment again"
        ) from None
    if found != expected:
        raise InputError(f"{file} has changed since the result was made from it: run the experiment again")
