"""Experiment files and the options of compare: one set of keys, checked whole before anything starts."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from controller.errors import InputError
from testbed.cli import compare
from testbed.cli.experiment_options import experiment_mapping, schema
from testbed.experiment import DEMAND_KEYS, KEYS, DemandPhase, Experiment, from_mapping, read_toml, to_toml

MINIMAL = {"demand": [{"file": "m.csv"}]}

# The interface that other tools read: name, default, unit.
PROMISED: dict[str, tuple[Any, str]] = {
    "hosts": (0, ""),
    "hosts_per_leaf": (0, ""),
    "topology": ("leaf-spine", ""),
    "link_gbps": (800, "Gb/s"),
    "link_ns": (1000, "ns"),
    "link_gbps_of": ({}, "Gb/s"),
    "link_ns_of": ({}, "ns"),
    "dilation": (0, ""),
    "mtu_bytes": (4096, "B"),
    "queue_bytes": (0, "B"),
    "schedule": (["rr", "rate"], ""),
    "cc": ("none", ""),
    "lb": ("ops", ""),
    "phase": ("random", ""),
    "stage": ("virtual", ""),
    "fabric": ("kernel", ""),
    "gpus_per_server": (1, ""),
    "start_jitter_ns": (0, "ns"),
    "seed": (0, ""),
}

# Every key with another value than its default where it has one: on the command line and in a file.
SAMPLES = {
    "hosts": ("16", "16"),
    "hosts_per_leaf": ("2", "2"),
    "gpus_per_server": ("8", "8"),
    "topology": ("leaf-spine", '"leaf-spine"'),
    "link_gbps": ("100.5", "100.5"),
    "link_ns": ("500", "500"),
    "link_gbps_of": ("h3=200", "{ h3 = 200 }"),
    "link_ns_of": ("leaf1-spine2=1500.5", "{ leaf1-spine2 = 1500.5 }"),
    "dilation": ("200", "200"),
    "mtu_bytes": ("1500", "1500"),
    "queue_bytes": ("819200", "819200"),
    "schedule": ("rate", '["rate"]'),
    "cc": ("none", '"none"'),
    "lb": ("ecmp", '"ecmp"'),
    "phase": ("golden", '"golden"'),
    "stage": ("virtual", '"virtual"'),
    "fabric": ("kernel", '"kernel"'),
    "links": ("pairs", '"pairs"'),
    "start_jitter_ns": ("40.96", "40.96"),
    "seed": ("7", "7"),
    "trace": (None, "true"),
    "memory_mib": ("2048", "2048"),
    "limit_s": ("60", "60"),
}


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    return parser


def by_options(*words: str) -> Experiment:
    return from_mapping(experiment_mapping(options().parse_args([*words, "--out", "x"])))


def written(folder: Path, text: str, name: str = "experiment.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_toml(path)
    line = str(caught.value)
    assert "\n" not in line
    assert str(path) in line
    return line


def test_the_defaults_of_the_schema_are_those_of_an_experiment() -> None:
    assert [key.name for key in KEYS] == [f.name for f in fields(Experiment) if f.name != "demand"]
    plain = Experiment(demand=())
    for key in KEYS:
        assert getattr(plain, key.name) == key.default, key.name
    phase = DemandPhase(Path("m.csv"), "")
    assert {key.name for key in DEMAND_KEYS} == {f.name for f in fields(DemandPhase)}
    for key in DEMAND_KEYS:
        if key.default is not None:
            assert getattr(phase, key.name) == key.default, key.name


def test_an_experiment_with_a_demand_alone_has_the_defaults() -> None:
    experiment = from_mapping(MINIMAL)
    assert experiment == Experiment(demand=(DemandPhase(Path("m.csv"), "1"),))


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_each_default_may_be_written(key: Any) -> None:
    assert from_mapping({**MINIMAL, key.name: key.default}) == from_mapping(MINIMAL)


def test_what_the_schema_prints_is_what_was_promised() -> None:
    printed = json.loads(schema())
    for name, (default, unit) in PROMISED.items():
        assert printed[name]["default"] == default, name
        assert printed[name].get("unit", "") == unit, name
        assert printed[name]["help"], name
    assert set(printed) == {key.name for key in KEYS} | {"demand"}
    assert list(printed["demand"]["keys"]) == ["name", "file", "unit", "token_bytes", "after"]
    assert printed["demand"]["keys"]["unit"]["choices"] == ["tokens", "bytes", "wire-bytes"]
    assert printed["demand"]["keys"]["token_bytes"]["unit"] == "B"
    assert {"rr", "rate"} <= set(printed["schedule"]["choices"])
    assert {"random", "zero", "golden"} <= set(printed["phase"]["choices"])
    assert {"ops", "ecmp"} <= set(printed["lb"]["choices"])


def test_every_key_is_an_option_of_compare_and_the_reverse() -> None:
    offered = {action.dest: action.option_strings for action in options()._actions}
    for dest in ("help", "out", "json", "demand", "unit", "token_bytes"):
        del offered[dest]
    assert set(offered) == {key.name for key in KEYS}
    for name, strings in offered.items():
        assert strings == [f"--{name.replace('_', '-')}"]


@pytest.mark.parametrize("name", [key.name for key in KEYS])
def test_an_option_means_what_the_key_means(tmp_path: Path, name: str) -> None:
    word, literal = SAMPLES[name]
    given = [f"--{name.replace('_', '-')}", *([word] if word else [])]
    of_file = read_toml(written(tmp_path, f'{name} = {literal}\n[[demand]]\nfile = "m.csv"\n'))
    of_options = by_options("--demand", str(tmp_path / "m.csv"), *given)
    assert of_options == of_file
    default = from_mapping(MINIMAL)
    if name not in ("topology", "cc", "stage", "fabric"):
        assert getattr(of_file, name) != getattr(default, name)


def test_exceptions_may_be_given_several_times() -> None:
    words = ["--link-gbps-of", "h3=200", "--link-gbps-of", "leaf1-spine2=400.5", "--link-ns-of", "h3=0"]
    experiment = by_options("--demand", "m.csv", *words)
    assert experiment.link_gbps_of == {"h3": Fraction(200), "leaf1-spine2": Fraction("400.5")}
    assert experiment.link_ns_of == {"h3": Fraction(0)}


def test_demand_options_make_phases_that_follow_each_other() -> None:
    words = ["--demand", "a.csv", "--demand", "b.csv", "--unit", "tokens", "--token-bytes", "7168"]
    assert by_options(*words).demand == (
        DemandPhase(Path("a.csv"), "1", "tokens", 7168),
        DemandPhase(Path("b.csv"), "2", "tokens", 7168, ("1",)),
    )


def test_decimal_fractions_are_exact() -> None:
    experiment = from_mapping({**MINIMAL, "link_gbps": 0.1, "start_jitter_ns": 1e-05})
    assert experiment.link_gbps == Fraction(1, 10)
    assert experiment.start_jitter_ns == Fraction(1, 100_000)


UNKNOWN = {
    "misspelt": ('link_gbp = 100\n[[demand]]\nfile = "m.csv"\n', "'link_gbp' is not a key", "'link_gbps'"),
    "hyphen": ('hosts-per-leaf = 4\n[[demand]]\nfile = "m.csv"\n', "'hosts-per-leaf' is not a key", "'hosts_per_leaf'"),
    "plural": ('[[demands]]\nfile = "m.csv"\n', "'demands' is not a key", "'demand'"),
    "far off": ('xyzzy = 1\n[[demand]]\nfile = "m.csv"\n', "'xyzzy' is not a key", "--print-schema"),
    "of a demand": ('[[demand]]\nfile = "m.csv"\nunits = "bytes"\n', "demand 1: 'units' is not a key", "'unit'"),
    "of the second demand": (
        '[[demand]]\nfile = "m.csv"\n[[demand]]\nfiles = "m.csv"\n',
        "demand 2: 'files' is not a key",
        "'file'",
    ),
    "of the experiment in a demand": ('[[demand]]\nfile = "m.csv"\nseed = 1\n', "demand 1: 'seed' is not a key", ""),
}


@pytest.mark.parametrize(("text", "what", "nearest"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_key_is_refused_with_the_nearest_known(tmp_path: Path, text: str, what: str, nearest: str) -> None:
    line = refusal(written(tmp_path, text))
    assert what in line
    assert nearest in line


WRONG = {
    "text for a whole number": ('seed = "7"', "seed is '7': give a number"),
    "truth for a number": ("seed = true", "seed is True: give a number"),
    "list for a number": ("link_gbps = [800]", "link_gbps is [800]"),
    "fraction for a whole number": ("mtu_bytes = 1500.5", "mtu_bytes is 1500.5: give a whole number"),
    "date for a number": ("seed = 2026-01-01", "seed is"),
    "NaN": ("link_ns = nan", "link_ns is nan"),
    "infinity": ("link_gbps = inf", "link_gbps is inf"),
    "number for text": ("lb = 1", "lb is 1: give text"),
    "number for a flag": ("trace = 1", "trace is 1: give true or false"),
    "number for a table": ("link_gbps_of = 100", "link_gbps_of is 100: give a table"),
    "text in a table": ('link_gbps_of = { h1 = "fast" }', "link_gbps_of.h1 is 'fast'"),
    "number in a list": ("schedule = [1]", "schedule is [1]"),
    "table for text": ("lb = { a = 1 }", "lb is {'a': 1}"),
    "unknown choice": ('lb = "reps"', "lb 'reps' is not known: use ops or ecmp"),
    "unknown schedule": ('schedule = ["rr", "fast"]', "schedule 'fast' is not known: use rr or rate"),
    "unknown stage": ('stage = "host"', "stage 'host' is not known"),
    "schedule twice": ('schedule = ["rr", "rr"]', "schedule names something twice"),
    "no schedule": ("schedule = []", "schedule is empty"),
    "negative": ("queue_bytes = -1", "queue_bytes is -1: it must be 0"),
    "too small": ("mtu_bytes = 127", "mtu_bytes is 127: it must be 128 to 9216 B"),
    "too large": ("mtu_bytes = 9217", "mtu_bytes is 9217: it must be 128 to 9216 B"),
    "no speed": ("link_gbps = 0", "link_gbps is 0: it must be 0.001 to 100000 Gb/s"),
    "no speed of a link": ("link_gbps_of = { h1 = 0 }", "link_gbps_of.h1 is 0: it must be 0.001"),
    "speed of a link beyond that of links": ("link_gbps_of = { h1 = 1e300 }", "link_gbps_of.h1 is"),
    "delay of a link": ("link_ns_of = { h1 = -1 }", "link_ns_of.h1 is -1"),
    "too many hosts": ("hosts = 1001", "hosts is 1001: it must be 0 to 1000"),
    "no GPU in a server": ("gpus_per_server = 0", "gpus_per_server is 0: it must be 1 to 64"),
    "seed of 33 bits": ("seed = 4294967296", "seed is 4294967296"),
    "seed of 400 digits": (f"seed = 1{'0' * 400}", "seed is"),
    "seed of 5000 digits": (f"seed = 1{'0' * 5000}", ""),
}


@pytest.mark.parametrize(("text", "reason"), WRONG.values(), ids=WRONG)
def test_a_wrong_type_or_range_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refusal(written(tmp_path, f'{text}\n[[demand]]\nfile = "m.csv"\n'))


WRONG_DEMAND = {
    "none": ("seed = 1\n", "no demand"),
    "empty file": ("", "no demand"),
    "empty list": ("demand = []\n", "no demand"),
    "one table": ('[demand]\nfile = "m.csv"\n', "[[demand]]"),
    "a name": ('demand = "m.csv"\n', "[[demand]]"),
    "without a file": ('[[demand]]\nunit = "bytes"\n', "demand 1: no file"),
    "file of no name": ('[[demand]]\nfile = ""\n', "demand 1: no file"),
    "file is a number": ("[[demand]]\nfile = 1\n", "demand 1: file is 1: give text"),
    "unit": ('[[demand]]\nfile = "m.csv"\nunit = "packets"\n', "demand 1: unit 'packets' is not known"),
    "token_bytes": ('[[demand]]\nfile = "m.csv"\ntoken_bytes = -1\n', "demand 1: token_bytes is -1"),
    "after is a number": ('[[demand]]\nfile = "m.csv"\nafter = 1\n', "demand 1: after is 1"),
}


@pytest.mark.parametrize(("text", "reason"), WRONG_DEMAND.values(), ids=WRONG_DEMAND)
def test_a_wrong_demand_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refusal(written(tmp_path, text))


WRONG_OPTIONS = {
    "not a number": (["--seed", "x"], "--seed x: give a number"),
    "empty": (["--seed", ""], "--seed"),
    "NaN": (["--link-gbps", "nan"], "link_gbps is nan"),
    "fraction": (["--hosts", "1.5"], "hosts is 1.5: give a whole number"),
    "no number of a link": (["--link-gbps-of", "h3"], "--link-gbps-of h3: give LINK=NUMBER"),
    "text of a link": (["--link-ns-of", "h3=x"], "--link-ns-of x: give a number"),
    "no schedule": (["--schedule", ","], "schedule is empty"),
    "unknown schedule": (["--schedule", "rr,bvn"], "schedule 'bvn' is not known"),
    "unit": (["--unit", "packets"], "unit 'packets' is not known"),
    "400 digits": (["--seed", "1" + "0" * 400], "seed is"),
}


@pytest.mark.parametrize(("words", "reason"), WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
def test_a_wrong_option_is_refused(words: list[str], reason: str) -> None:
    with pytest.raises(InputError) as caught:
        by_options("--demand", "m.csv", *words)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_compare_without_a_demand_is_refused() -> None:
    with pytest.raises(InputError, match=r"no demand: give a matrix .*--demand FILE"):
        by_options()


def test_files_that_are_no_experiment_are_refused(tmp_path: Path) -> None:
    matrix = written(tmp_path, "0,1\n1,0\n", "m.csv")
    assert "is not TOML" in refusal(matrix)
    assert "does not exist" in refusal(tmp_path / "none.toml")
    assert "is a folder" in refusal(tmp_path)
    assert "cannot be read" in refusal(matrix / "experiment.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "is not text" in refusal(tmp_path / "binary.toml")


ROUND_TRIPS = {
    "defaults": MINIMAL,
    "numbers": {**MINIMAL, "link_gbps": 0.1, "link_ns": 12.5, "seed": 2**32 - 1, "hosts": 16, "limit_s": 1e6},
    "exceptions": {**MINIMAL, "link_gbps_of": {"h3": 200, "leaf1-spine2": 33.3}, "link_ns_of": {"h1": 0}},
    "choices": {**MINIMAL, "schedule": ["rate"], "lb": "ecmp", "phase": "golden", "trace": True},
    "phases": {
        "demand": [
            {"file": "b.csv", "name": "combine", "after": ["dispatch"]},
            {"file": "a.csv", "name": "dispatch", "unit": "tokens", "token_bytes": 7168},
        ]
    },
    "names with quotes": {"demand": [{"file": 'a "b" \\ c.csv', "name": "tab\there, line\nthere"}]},
    "names in any script": {"demand": [{"file": "mätrix-行列.csv", "name": "\N{MATHEMATICAL BOLD CAPITAL A}"}]},
    "names with control characters": {"demand": [{"file": "m.csv", "name": "a\x7fb\x01c"}]},
}


@pytest.mark.parametrize("data", ROUND_TRIPS.values(), ids=ROUND_TRIPS)
def test_an_experiment_survives_its_file(tmp_path: Path, data: dict[str, Any]) -> None:
    experiment = from_mapping(data, base=tmp_path / "matrices")
    elsewhere = tmp_path / "results"
    elsewhere.mkdir()
    assert read_toml(written(elsewhere, to_toml(experiment))) == experiment


def test_the_written_file_names_matrices_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = from_mapping(MINIMAL)
    elsewhere = tmp_path / "results"
    elsewhere.mkdir()
    path = written(elsewhere, to_toml(experiment))
    monkeypatch.chdir(elsewhere)
    (phase,) = read_toml(path).demand
    assert phase == replace(experiment.demand[0], file=tmp_path.resolve() / "m.csv")


def test_matrix_files_are_looked_for_beside_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "experiments"
    folder.mkdir()
    text = '[[demand]]\nname = "a"\nfile = "m.csv"\n[[demand]]\nfile = "../n.csv"\nafter = ["a"]\n'
    written(folder, text)
    monkeypatch.chdir(tmp_path)
    relative, upward = read_toml(Path("experiments/experiment.toml")).demand
    assert relative.file.resolve() == folder.resolve() / "m.csv"
    assert upward.file.resolve() == tmp_path.resolve() / "n.csv"
    (absolute,) = read_toml(written(folder, f'[[demand]]\nfile = "{tmp_path}/m.csv"\n')).demand
    assert absolute.file == tmp_path / "m.csv"


def test_options_look_for_matrix_files_here() -> None:
    assert by_options("--demand", "sub/m.csv").demand[0].file == Path("sub/m.csv")


def phases(*tables: dict[str, Any]) -> list[str]:
    return [p.name for p in from_mapping({"demand": [{"file": "m.csv", **table} for table in tables]}).demand]


def phases_refusal(*tables: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        phases(*tables)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_phases_run_after_those_they_wait_for() -> None:
    a, b, c = {"name": "a", "after": ["b"]}, {"name": "b", "after": ["c"]}, {"name": "c"}
    for order in ((a, b, c), (c, b, a), (b, a, c), (c, a, b)):
        assert phases(*order) == ["c", "b", "a"]
    assert phases({"name": "d", "after": ["c", "b", "a"]}, a, b, c) == ["c", "b", "a", "d"]


def test_phases_without_a_name_are_numbered() -> None:
    assert phases({}) == ["1"]
    assert phases({}, {"after": ["1"]}) == ["1", "2"]
    assert phases({"after": ["2"]}, {}) == ["2", "1"]


def test_phases_in_a_circle_are_refused() -> None:
    assert "circle" in phases_refusal({"name": "a", "after": ["b"]}, {"name": "b", "after": ["a"]})
    assert "circle" in phases_refusal({"name": "a", "after": ["a"]})
    tables = {"name": "a"}, {"name": "b", "after": ["a", "c"]}, {"name": "c", "after": ["b"]}
    assert "circle" in phases_refusal(*tables)


def test_phases_at_the_same_time_are_refused() -> None:
    line = phases_refusal({"name": "a"}, {"name": "b"})
    assert "a and b would run at the same time" in line
    line = phases_refusal({"name": "a"}, {"name": "b", "after": ["a"]}, {"name": "c", "after": ["a"]})
    assert "b and c would run at the same time" in line


def test_two_phases_of_one_name_are_refused() -> None:
    assert "one name" in phases_refusal({"name": "a"}, {"name": "a", "after": ["a"]})
    assert "one name" in phases_refusal({"name": "2"}, {"after": ["2"]})


def test_waiting_for_an_unknown_phase_is_refused_with_those_there_are() -> None:
    line = phases_refusal({"name": "dispatch"}, {"name": "combine", "after": ["dispach"]})
    assert "combine: after names 'dispach', which is no phase: there are dispatch, combine" in line
