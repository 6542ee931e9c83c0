"""incastfree exec before anything is booted: what of an experiment it takes, and what it says of the rest."""

from __future__ import annotations

import argparse
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from controller.errors import InputError
from testbed import programs
from testbed.cli import exec as verb
from testbed.experiment import KEYS, Experiment
from testbed.scenario import Scenario, prepare

DEMAND = '[[demand]]\nfile = "demand.csv"\n'


def read(folder: Path, keys: str, *options: str) -> Experiment:
    """The experiment of a file and of the options before "--"."""
    (folder / "demand.csv").write_text("0,8000,0\n8000,0,0\n8000,8000,0\n")
    (folder / "net.toml").write_text(keys)
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    words = [str(folder / "net.toml"), "--out", str(folder / "out"), *options, "--", "true"]
    return verb._experiment(parser.parse_args(words))


def taken(folder: Path, keys: str, *options: str) -> Scenario:
    return programs.prepare_programs(read(folder, keys, *options))


@pytest.mark.parametrize(
    ("keys", "options", "expected"),
    [
        ("hosts = 3\n", (), ("rr",)),
        ('schedule = ["rate"]\n' + DEMAND, (), ("rate",)),
        ('schedule = ["rate"]\n' + DEMAND, ("--schedule", "rr"), ("rr",)),
        ('hosts = 3\nschedule = ["rr+nscc"]\n', ("--schedule", "rr"), ("rr",)),
        (DEMAND, ("--schedule", "rr,rate"), ("rr", "rate")),
    ],
)
def test_the_schedule_of_the_file_counts(
    tmp_path: Path, keys: str, options: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    """And that of the option more."""
    assert taken(tmp_path, keys, *options).experiment.schedule == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('schedule = ["bvn:clock"]\n' + DEMAND, "schedule bvn:clock: programs send when they like"),
        ('schedule = ["rr+nscc"]\nhosts = 3\n', r"schedule rr\+nscc: programs bring their own"),
        ('schedule = ["rr+nscc", "rate"]\n' + DEMAND, r"schedule rr\+nscc"),
        ('schedule = ["rate"]\nhosts = 3\n', "schedule rate needs a demand"),
        ('cc = "nscc"\nhosts = 3\n', "cc is nscc"),
        ("gpus_per_server = 2\nhosts = 4\n", "gpus_per_server"),
        ("estimate_stale = 0.5\n" + DEMAND, "estimate_stale: rr has no rates"),
        ("estimate_error = 0.5\nhosts = 3\n", "estimate_error: rr has no rates"),
    ],
)
def test_what_programs_do_not_know_is_refused(tmp_path: Path, keys: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        taken(tmp_path, keys)


def other_than_default(name: str) -> Any:
    """Another value of a key."""
    (key,) = (key for key in KEYS if key.name == name)
    if key.choices:
        return next(choice for choice in key.choices if choice != key.default)
    return True if key.kind == "flag" else Fraction(1, 2)


@pytest.mark.parametrize("name", programs._OF_THE_ENGINE)
def test_keys_without_an_effect_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"^{name} is .*, which has no effect in exec"):
        programs.prepare_programs(Experiment((), hosts=3, schedule=("rr",), **{name: other_than_default(name)}))


def test_an_estimate_counts_where_there_are_rates(tmp_path: Path) -> None:
    assert taken(tmp_path, 'estimate_error = 0.5\nschedule = ["rate"]\n' + DEMAND).experiment.estimate_error


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("", "is empty"),
        ("nobodys-command", "in no folder of PATH"),
        ("note", "in no folder of PATH"),
        ("./nothing", "no such file"),
        ("/nowhere/nothing", "no such file"),
        ("./note", "is not executable"),
        ("./", "is a folder"),
        ("bin/", "is a folder"),
    ],
)
def test_commands_that_nobody_finds(tmp_path: Path, word: str, message: str) -> None:
    (tmp_path / "note").write_text("")
    (tmp_path / "bin").mkdir()
    with pytest.raises(InputError, match=message):
        programs.check_command(programs.Program([word], tmp_path, {"PATH": str(tmp_path)}, {}))


@pytest.mark.parametrize("word", ["tool", "./bin/tool", "/dev/fd/3", "/proc/self/exe"])
def test_commands_that_ranks_may_find(tmp_path: Path, word: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "tool").chmod(0o755)
    programs.check_command(programs.Program([word], tmp_path, {"PATH": str(tmp_path / "bin")}, {}))


@pytest.mark.parametrize("trimming", [True, False])
def test_results_claim_no_trimming(trimming: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what else is the engine's; the key decides the automatic limit of the queues, which stays."""
    experiment = Experiment((), hosts=3, schedule=("rr",), trimming=trimming)
    scenario = programs.prepare_programs(experiment)
    assert scenario.parameters.queue_bytes == prepare(experiment).parameters.queue_bytes
    monkeypatch.setattr("testbed.runner._kernel_of", lambda _: ("6", "key"))
    found = programs._identity(scenario, scenario.experiment.runs[0])
    assert found["trimming"] is False
    assert found["links"] == "pairs"
    assert found["cc"] == "none"
    assert not {"loss_recovery", "phase", "control_delay_ns", "start_jitter_ns", "rto_ns", "trace"} & set(found)
