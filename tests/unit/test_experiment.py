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
from testbed.experiment import (
    BACKGROUND_KEYS,
    DEMAND_KEYS,
    FAILURE_KEYS,
    KEYS,
    Background,
    DemandPhase,
    Experiment,
    LinkFailure,
    Run,
    from_mapping,
    read_toml,
    to_toml,
)

MINIMAL = {"demand": [{"file": "m.csv"}]}

# The interface that other tools read: name, default, unit.
PROMISED: dict[str, tuple[Any, str]] = {
    "hosts": (0, ""),
    "hosts_per_leaf": (0, ""),
    "topology": ("leaf-spine", ""),
    "fat_tree_k": (0, ""),
    "link_gbps": (800, "Gb/s"),
    "link_ns": (1000, "ns"),
    "link_gbps_of": ({}, "Gb/s"),
    "link_ns_of": ({}, "ns"),
    "dilation": (0, ""),
    "mtu_bytes": (4096, "B"),
    "queue_bytes": ("auto", "B"),
    "trimming": (True, ""),
    "ecn_kmin_bytes": ("auto", "B"),
    "ecn_kmax_bytes": ("auto", "B"),
    "loss_data": (0, ""),
    "loss_ack": (0, ""),
    "loss_recovery": ("sack", ""),
    "schedule": (["rr+nscc", "rate"], ""),
    "cc": ("none", ""),
    "stages": ("barrier", ""),
    "barrier_ns": ("auto", "ns"),
    "lb": ("ops", ""),
    "phase": ("random", ""),
    "stage": ("virtual", ""),
    "fabric": ("kernel", ""),
    "gpus_per_server": (1, ""),
    "server_link_gbps": (0, "Gb/s"),
    "start_jitter_ns": (0, "ns"),
    "estimate_stale": (0, ""),
    "estimate_error": (0, ""),
    "seed": (0, ""),
}

# Every key with another value than its default where it has one: on the command line and in a file.
SAMPLES = {
    "hosts": ("16", "16"),
    "hosts_per_leaf": ("2", "2"),
    "gpus_per_server": ("8", "8"),
    "server_link_gbps": ("3600", "3600\ngpus_per_server = 8"),
    "topology": ("fat-tree", '"fat-tree"'),
    "fat_tree_k": ("8", '8\ntopology = "fat-tree"'),
    "link_gbps": ("100.5", "100.5"),
    "link_ns": ("500", "500"),
    "link_gbps_of": ("h3=200", "{ h3 = 200 }"),
    "link_ns_of": ("leaf1-spine2=1500.5", "{ leaf1-spine2 = 1500.5 }"),
    "dilation": ("200", "200"),
    "nic": ("doca-model", '"doca-model"'),
    "control_delay_ns": ("13.2e6", "13.2e6"),
    "meanwhile": ("old", '"old"'),
    "mtu_bytes": ("1500", "1500"),
    "queue_bytes": ("819200", "819200"),
    "trimming": ("--no-trimming", "false"),
    "ecn_kmin_bytes": ("4096", "4096"),
    "ecn_kmax_bytes": ("8192", "8192"),
    "loss_data": ("1e-3", "0.001"),
    "loss_ack": ("0.5", "0.5"),
    "loss_recovery": ("timeout", '"timeout"'),
    "schedule": ("rate,rr+nscc", '["rate", "rr+nscc"]'),
    "cc": ("nscc", '"nscc"'),
    "stages": ("clock", '"clock"'),
    "barrier_ns": ("5000", "5000"),
    "lb": ("ecmp", '"ecmp"'),
    "phase": ("golden", '"golden"'),
    "stage": ("host", '"host"'),
    "fabric": ("kernel", '"kernel"'),
    "links": ("pairs", '"pairs"'),
    "start_jitter_ns": ("40.96", "40.96"),
    "estimate_stale": ("0.2", "0.2"),
    "estimate_error": ("0.05", "0.05"),
    "seed": ("7", "7"),
    "trace": ("--trace", "true"),
    "memory_mib": ("2048", "2048"),
    "limit_s": ("60", "60"),
    "limit_virtual_s": ("12.5", "12.5"),
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
    tables = ("demand", "link_failure", "background")
    assert [key.name for key in KEYS] == [f.name for f in fields(Experiment) if f.name not in tables]
    plain = Experiment(demand=())
    for key in KEYS:
        assert getattr(plain, key.name) == key.default, key.name
    phase = DemandPhase(Path("m.csv"), "")
    assert {key.name for key in DEMAND_KEYS} == {f.name for f in fields(DemandPhase)}
    for key in DEMAND_KEYS:
        if key.default is not None:
            assert getattr(phase, key.name) == key.default, key.name
    assert [key.name for key in FAILURE_KEYS] == [f.name for f in fields(LinkFailure)]
    assert [key.name for key in BACKGROUND_KEYS] == [f.name for f in fields(Background)]
    assert [key.default for key in BACKGROUND_KEYS] == [
        None,
        None,
        None,
        None,
        Background("h1", "h2", 1, Fraction(1)).start_ns,
    ]


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
    assert set(printed) == {key.name for key in KEYS} | {"demand", "link_failure", "background"}
    assert list(printed["demand"]["keys"]) == [
        *("name", "file", "unit", "token_bytes", "after", "format", "steps", "layers", "ranks", "experts_per_rank"),
        *("placement", "source_rows", "token_copies", "direction", "combine_token_bytes"),
    ]
    assert printed["demand"]["keys"]["unit"]["choices"] == ["auto", "tokens", "bytes", "wire-bytes"]
    assert printed["demand"]["keys"]["token_bytes"]["unit"] == "B"
    assert {"rr", "rate"} <= set(printed["schedule"]["choices"])
    assert {"random", "zero", "golden"} <= set(printed["phase"]["choices"])
    assert {"ops", "reps", "ecmp", "ar"} == set(printed["lb"]["choices"])
    assert list(printed["link_failure"]["keys"]) == ["link", "down_ns", "up_ns"]
    assert [printed["link_failure"]["keys"][name]["unit"] for name in ("down_ns", "up_ns")] == ["ns", "ns"]
    background = printed["background"]["keys"]
    assert list(background) == ["source", "destination", "bytes", "rate_gbps", "start_ns"]
    assert [background[name]["unit"] for name in ("bytes", "rate_gbps", "start_ns")] == ["B", "Gb/s", "ns"]
    assert printed["loss_recovery"]["choices"] == ["sack", "timeout", "none"]
    automatic = {name for name, entry in printed.items() if entry.get("or") == "auto"}
    assert automatic == {"queue_bytes", "ecn_kmin_bytes", "ecn_kmax_bytes", "barrier_ns"}
    assert printed["schedule"]["options"]["bvn"] == ["bottleneck", "any", "weight", "barrier", "clock", "free"]
    assert printed["schedule"]["options"]["rr"] == []
    assert {name: printed[name]["maximum"] for name in ("loss_data", "loss_ack")} == {
        "loss_data": 0.99,
        "loss_ack": 0.99,
    }


def test_every_key_is_an_option_of_compare_and_the_reverse() -> None:
    offered = {action.dest: action.option_strings for action in options()._actions}
    of_demands = [key.name for key in DEMAND_KEYS if key.name not in ("name", "file", "after")]
    for dest in ("help", "out", "json", "demand", *of_demands):
        del offered[dest]
    assert set(offered) == {key.name for key in KEYS}
    flags = {key.name for key in KEYS if key.kind == "flag"}
    for name, strings in offered.items():
        option = name.replace("_", "-")
        assert strings == [f"--{option}", *([f"--no-{option}"] if name in flags else [])]


@pytest.mark.parametrize("name", [key.name for key in KEYS])
def test_an_option_means_what_the_key_means(tmp_path: Path, name: str) -> None:
    word, literal = SAMPLES[name]
    given = [word] if word.startswith("--") else [f"--{name.replace('_', '-')}", word]
    of_file = read_toml(written(tmp_path, f'{name} = {literal}\n[[demand]]\nfile = "m.csv"\n'))
    if name == "fat_tree_k":
        given += ["--topology", "fat-tree"]
    if name == "server_link_gbps":
        given += ["--gpus-per-server", "8"]
    of_options = by_options("--demand", str(tmp_path / "m.csv"), *given)
    assert of_options == of_file
    default = from_mapping(MINIMAL)
    if name != "fabric":
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
    "unknown choice": ('lb = "spray"', "lb 'spray' is not known: use ops or reps or ecmp or ar"),
    "unknown schedule": ('schedule = ["rr", "slow"]', "schedule 'slow' is not known: use rr or rate"),
    "unknown stage": ('stage = "cloud"', "stage 'cloud' is not known: use virtual or host"),
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
    "text for a queue": ('queue_bytes = "big"', "queue_bytes is 'big': give a number, or auto"),
    "auto in another case": ('queue_bytes = "Auto"', "queue_bytes is 'Auto': give a number, or auto"),
    "truth for a queue": ("queue_bytes = true", "queue_bytes is True: give a number, or auto"),
    "fraction for a queue": ("queue_bytes = 5000.5", "queue_bytes is 5000.5: give a whole number"),
    "negative threshold": ("ecn_kmin_bytes = -1", "ecn_kmin_bytes is -1: it must be 0 to 2147483648 B, or auto"),
    "threshold of 33 bits": ("ecn_kmax_bytes = 4294967296", "ecn_kmax_bytes is 4294967296: it must be 0 to 2147483648"),
    "thresholds the wrong way round": (
        "ecn_kmin_bytes = 8193\necn_kmax_bytes = 8192",
        "ecn_kmin_bytes is 8193, above ecn_kmax_bytes 8192",
    ),
    "text for trimming": ('trimming = "no"', "trimming is 'no': give true or false"),
    "automatic trimming": ('trimming = "auto"', "trimming is 'auto': give true or false"),
    "more than certain loss": ("loss_data = 1.001", "loss_data is 1.001: it must be 0 to 0.99"),
    "negative loss": ("loss_ack = -0.001", "loss_ack is -0.001: it must be 0 to 0.99"),
    "loss that is no number": ("loss_data = nan", "loss_data is nan: give a number"),
    "automatic loss": ('loss_ack = "auto"', "loss_ack is 'auto': give a number"),
    "unknown recovery": ('loss_recovery = "rack"', "loss_recovery 'rack' is not known: use sack or timeout or none"),
    "truth for recovery": ("loss_recovery = false", "loss_recovery is False: give text"),
    "recycled values in an open loop": ('loss_recovery = "none"\nlb = "reps"', "without ACKs it hears of no path"),
    "adaptive routing on BMv2": ('fabric = "bmv2"\nlb = "ar"', "lb ar: only the fabric kernel"),
    "control in an open loop": ('loss_recovery = "none"\ncc = "nscc"', "without ACKs nscc hears nothing"),
    "controlled run in an open loop": (
        'loss_recovery = "none"\nschedule = ["rr", "rate+nscc"]',
        "loss_recovery is none: without ACKs nscc hears nothing; give sack or timeout, or cc none",
    ),
    "number for a control": ("cc = 1", "cc is 1: give text"),
    "list of controls": ('cc = ["nscc"]', "cc is ['nscc']: give text"),
    "misspelt control": ('cc = "ncsc"', "cc 'ncsc' is not known: did you mean 'nscc'?"),
    "control in capitals": ('cc = "NSCC"', "cc 'NSCC' is not known: did you mean 'nscc'?"),
    "unknown control": ('cc = "swift"', "cc 'swift' is not known (built in: none, nscc"),
    "misspelt control of a run": ('schedule = ["rr+nsc"]', "cc 'nsc' is not known: did you mean 'nscc'?"),
    "no control of a run": ('schedule = ["rr+"]', "cc '' is not known"),
    "two controls of a run": ('schedule = ["rr+nscc+nscc"]', "cc 'nscc+nscc' is not known"),
    "control without a schedule": ('schedule = ["+nscc"]', "schedule '' is not known: use rr or rate"),
    "control for a schedule": ('schedule = ["nscc"]', "schedule 'nscc' is not known: use rr or rate"),
    "unknown schedule with a control": ('schedule = ["slow+nscc"]', "schedule 'slow' is not known: use rr or rate"),
    "option of another schedule": ('schedule = ["rr:clock"]', "schedule rr has no option 'clock': it has none"),
    "unknown option": (
        'schedule = ["bvn:fast"]',
        "schedule bvn has no option 'fast': use bottleneck, any, weight, barrier",
    ),
    "two modes": ('schedule = ["bvn:clock:free"]', "schedule bvn:clock:free has two options of a kind"),
    "stages with rates": ('schedule = ["bvn+dcqcn"]', "bvn+dcqcn: dcqcn sets rates, which stages have none of"),
    "no schedule file": ('schedule = ["mine.py"]', "mine.py' cannot be read"),
    "controlled run twice": ('schedule = ["rr+nscc", "rr", "rr+nscc"]', "schedule names something twice"),
    "controlled run twice, spaced": (
        'schedule = ["rr+nscc", "rr + nscc"]',
        "schedule gives two runs one name: rr+nscc, rr+nscc; leave one out",
    ),
    "control in a missing file": ('cc = "none.py"', "none.py' cannot be read (No such file or directory)"),
    "run with a missing file": ('schedule = ["rr+none.py"]', "none.py' cannot be read (No such file or directory)"),
}


@pytest.mark.parametrize(("text", "reason"), WRONG.values(), ids=WRONG)
def test_a_wrong_type_or_range_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refusal(written(tmp_path, f'{text}\n[[demand]]\nfile = "m.csv"\n'))


FAILURE = {"link": '"h1"', "down_ns": "5", "up_ns": "40.5"}


def failure(*left_out: str, **changed: str) -> str:
    """A [[link_failure]] with some of its lines changed."""
    lines = [f"{name} = {value}" for name, value in {**FAILURE, **changed}.items() if name not in left_out]
    return "\n".join(["[[link_failure]]", *lines, ""])


WRONG_FAILURES = {
    "a number": ("link_failure = 1\n", "link_failure must be tables: write [[link_failure]]"),
    "a name": ('link_failure = "h1"\n', "link_failure must be tables"),
    "a list of names": ('link_failure = ["h1"]\n', "link_failure must be tables"),
    "one table": ('[link_failure]\nlink = "h1"\n', "link_failure must be tables"),
    "nothing in it": ("[[link_failure]]\n", "link_failure 1: no link: give link, down_ns, up_ns"),
    "without a link": (failure("link"), "link_failure 1: no link: give link, down_ns, up_ns"),
    "without a beginning": (failure("down_ns"), "link_failure 1: no down_ns: give"),
    "without an end": (failure("up_ns"), "link_failure 1: no up_ns: give"),
    "unknown key": (failure(until_ns="5"), "link_failure 1: 'until_ns' is not a key: did you mean"),
    "key of an experiment": (failure(seed="5"), "link_failure 1: 'seed' is not a key"),
    "of the second": (failure() + failure("up_ns", link='"h2"'), "link_failure 2: no up_ns"),
    "up before down": (failure(up_ns="4"), "link_failure 1: up_ns is 4: it must be above down_ns, 5"),
    "up with down": (failure(up_ns="5.0"), "link_failure 1: up_ns is 5.0: it must be above down_ns, 5"),
    "before the start": (failure(down_ns="-1"), "link_failure 1: down_ns is -1: it must be 0 to 1000000000000 ns"),
    "for ever": (failure(up_ns="inf"), "link_failure 1: up_ns is inf: it must be 0 to 1000000000000 ns"),
    "text for a time": (failure(down_ns='"now"'), "link_failure 1: down_ns is 'now': give a number"),
    "number for a link": (failure(link="1"), "link_failure 1: link is 1: give text"),
    "a link twice": (failure() + failure(down_ns="50", up_ns="60"), "link_failure 2: h1 fails twice"),
    "misspelt": ("link_failures = []\n", "'link_failures' is not a key: did you mean 'link_failure'?"),
}


@pytest.mark.parametrize(("text", "reason"), WRONG_FAILURES.values(), ids=WRONG_FAILURES)
def test_a_wrong_failure_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refusal(written(tmp_path, f'{text}[[demand]]\nfile = "m.csv"\n'))


def test_links_that_fail(tmp_path: Path) -> None:
    text = failure() + failure(link='"leaf1-spine2"', down_ns="0", up_ns="1e12")
    experiment = read_toml(written(tmp_path, f'{text}[[demand]]\nfile = "m.csv"\n'))
    assert experiment.link_failure == (
        LinkFailure("h1", Fraction(5), Fraction("40.5")),
        LinkFailure("leaf1-spine2", Fraction(0), Fraction(10**12)),
    )
    assert from_mapping({**MINIMAL, "link_failure": []}) == from_mapping(MINIMAL)


BACKGROUND = {"source": '"h1"', "destination": '"h2"', "bytes": "4096", "rate_gbps": "33.3"}


def background(*left_out: str, **changed: str) -> str:
    """A [[background]] with some of its lines changed."""
    lines = [f"{name} = {value}" for name, value in {**BACKGROUND, **changed}.items() if name not in left_out]
    return "\n".join(["[[background]]", *lines, ""])


WRONG_BACKGROUND = {
    "a number": ("background = 1\n", "background must be tables: write [[background]]"),
    "one table": ('[background]\nsource = "h1"\n', "background must be tables"),
    "nothing in it": ("[[background]]\n", "background 1: no source: give source, destination, bytes, rate_gbps"),
    "without a rate": (background("rate_gbps"), "background 1: no rate_gbps: give"),
    "of the second": (background() + background("bytes"), "background 2: no bytes: give"),
    "unknown key": (background(byte="1"), "background 1: 'byte' is not a key: did you mean 'bytes'?"),
    "to itself": (background(destination='"h1"'), "background 1: h1 sends to itself"),
    "no rate": (background(rate_gbps="0"), "background 1: rate_gbps is 0: it must be 0.001 to 100000 Gb/s"),
    "too little": (background(bytes="63"), "background 1: bytes is 63: it must be 64"),
    "half a byte": (background(bytes="64.5"), "background 1: bytes is 64.5: give a whole number"),
    "before the start": (background(start_ns="-1"), "background 1: start_ns is -1"),
    "a host's number": (background(source="1"), "background 1: source is 1: give text"),
    "misspelt": ("backgrounds = []\n", "'backgrounds' is not a key: did you mean 'background'?"),
}


@pytest.mark.parametrize(("text", "reason"), WRONG_BACKGROUND.values(), ids=WRONG_BACKGROUND)
def test_a_wrong_background_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refusal(written(tmp_path, f'{text}[[demand]]\nfile = "m.csv"\n'))


def test_background_flows(tmp_path: Path) -> None:
    text = background() + background(source='"h2"', start_ns="10.5", destination='"h1"')
    experiment = read_toml(written(tmp_path, f'{text}[[demand]]\nfile = "m.csv"\n'))
    assert experiment.background == (
        Background("h1", "h2", 4096, Fraction("33.3"), Fraction(0)),
        Background("h2", "h1", 4096, Fraction("33.3"), Fraction("10.5")),
    )
    assert from_mapping({**MINIMAL, "background": []}) == from_mapping(MINIMAL)


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
    "unknown schedule": (["--schedule", "rr,slow"], "schedule 'slow' is not known"),
    "unit": (["--unit", "packets"], "unit 'packets' is not known"),
    "400 digits": (["--seed", "1" + "0" * 400], "seed is"),
    "no number of a queue": (["--queue-bytes", "big"], "--queue-bytes big: give a number, or auto"),
    "no queue": (["--queue-bytes", ""], "--queue-bytes : give a number, or auto"),
    "automatic seed": (["--seed", "auto"], "--seed auto: give a number"),
    "infinite queue": (["--queue-bytes", "1e400"], "queue_bytes is inf: it must be 0 to 1099511627776 B, or auto"),
    "thresholds": (["--ecn-kmin-bytes", "2", "--ecn-kmax-bytes", "1"], "ecn_kmin_bytes is 2, above ecn_kmax_bytes 1"),
    "loss": (["--loss-data", "2"], "loss_data is 2: it must be 0 to 0.99"),
    "recovery": (["--loss-recovery", "fack"], "loss_recovery 'fack' is not known: use sack or timeout or none"),
    "open loop": (["--loss-recovery", "none", "--schedule", "rr,rr+nscc"], "without ACKs nscc hears nothing"),
    "control": (["--cc", "nsc"], "cc 'nsc' is not known: did you mean 'nscc'?"),
    "control of a run": (["--schedule", "rr+nsc"], "cc 'nsc' is not known: did you mean 'nscc'?"),
    "run twice": (["--schedule", "rr+nscc,rr+nscc"], "schedule names something twice: rr+nscc, rr+nscc"),
    "leaves of a fat tree": (
        ["--topology", "fat-tree", "--hosts-per-leaf", "4"],
        "hosts_per_leaf is for topology leaf-spine, not fat-tree: leave it out",
    ),
    "k of two tiers": (["--fat-tree-k", "4"], "fat_tree_k is for topology fat-tree, not leaf-spine: leave it out"),
    "odd k": (["--topology", "fat-tree", "--fat-tree-k", "7"], "fat_tree_k is 7: give an even number"),
    "topology": (["--topology", "fattree"], "topology 'fattree' is not known: use leaf-spine or fat-tree"),
    "not UTF-8": (["--demand", "\udcff.csv"], "demand 2: file is '\\udcff.csv', which is not UTF-8: rename it"),
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
    "automatic": {**MINIMAL, "queue_bytes": "auto", "ecn_kmin_bytes": "auto", "ecn_kmax_bytes": "auto"},
    "fat tree": {**MINIMAL, "topology": "fat-tree", "fat_tree_k": 8, "link_gbps_of": {"agg1-core3": 100}},
    "queues": {**MINIMAL, "queue_bytes": 0, "ecn_kmin_bytes": 1, "ecn_kmax_bytes": 2**31, "trimming": False},
    "losses": {**MINIMAL, "loss_data": 1e-7, "loss_ack": 0.99, "loss_recovery": "timeout"},
    "controls": {**MINIMAL, "schedule": ["rr", "rr+none", "rate+nscc"], "cc": "nscc"},
    "failures": {
        **MINIMAL,
        "link_gbps_of": {"h3": 200},
        "link_failure": [
            {"link": "h1", "down_ns": 0, "up_ns": 1e-5},
            {"link": "leaf1-spine2", "down_ns": 1000.25, "up_ns": 10**12},
        ],
    },
    "background": {
        **MINIMAL,
        "background": [
            {"source": "h1", "destination": "h2", "bytes": 2**50, "rate_gbps": 0.125, "start_ns": 1.5},
            {"source": "h1", "destination": "h2", "bytes": 64, "rate_gbps": 240},
        ],
    },
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


def test_what_is_automatic_stays_so_in_its_file() -> None:
    lines = to_toml(from_mapping(MINIMAL)).splitlines()
    for name in ("queue_bytes", "ecn_kmin_bytes", "ecn_kmax_bytes"):
        assert f'{name} = "auto"' in lines
    assert by_options("--demand", "m.csv", "--queue-bytes", "auto").queue_bytes == "auto"


def test_trimming_is_on_unless_it_is_not() -> None:
    assert by_options("--demand", "m.csv").trimming
    assert by_options("--demand", "m.csv", "--trimming").trimming
    assert not by_options("--demand", "m.csv", "--no-trimming").trimming


def test_a_run_is_a_schedule_and_may_name_a_control() -> None:
    runs = from_mapping({**MINIMAL, "schedule": ["rr", "rr+nscc", "rate+none"]}).runs
    assert runs == (Run("rr", "rr", "none"), Run("rr+nscc", "rr", "nscc"), Run("rate", "rate", "none"))
    assert by_options("--demand", "m.csv", "--schedule", "rr, rr + nscc ,rate+none").runs == runs


def test_cc_is_for_the_runs_that_name_none() -> None:
    runs = from_mapping({**MINIMAL, "schedule": ["rr", "rate+none", "rate"], "cc": "nscc"}).runs
    # A name says what was run, wherever that was asked for.
    assert runs == (Run("rr+nscc", "rr", "nscc"), Run("rate", "rate", "none"), Run("rate+nscc", "rate", "nscc"))
    assert [run.cc for run in from_mapping(MINIMAL).runs] == ["nscc", "none"]


def test_an_open_loop_needs_runs_without_control() -> None:
    runs = from_mapping({**MINIMAL, "loss_recovery": "none", "schedule": ["rr", "rate+none"]}).runs
    assert [run.cc for run in runs] == ["none", "none"]
    assert from_mapping({**MINIMAL, "loss_recovery": "timeout", "schedule": ["rr+nscc"]}).runs[0].cc == "nscc"
    # cc is for runs that name none, and here there are none of these.
    data = {**MINIMAL, "loss_recovery": "none", "cc": "nscc", "schedule": ["rr+none"]}
    assert from_mapping(data).runs[0].cc == "none"


def test_a_control_is_looked_for_beside_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "experiments"
    (folder / "controls").mkdir(parents=True)
    for place in (folder / "mycontrol.py", folder / "controls" / "other.v2.py"):
        place.write_text("raise SystemExit  # not run here\n")
    monkeypatch.chdir(tmp_path)
    text = (
        'schedule = ["rr+mycontrol.py", "rate", "rr+nscc"]\ncc = "controls/other.v2.py"\n[[demand]]\nfile = "m.csv"\n'
    )
    experiment = read_toml(written(folder, text))
    mine, other = str(folder / "mycontrol.py"), str(folder / "controls" / "other.v2.py")
    expected = (Run("rr+mycontrol", "rr", mine), Run("rate+other.v2", "rate", other), Run("rr+nscc", "rr", "nscc"))
    assert experiment.runs == expected
    # The same from elsewhere, by the file that was written.
    elsewhere = tmp_path / "results"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert read_toml(written(elsewhere, to_toml(experiment))).runs == expected
    # Options look here.
    monkeypatch.chdir(folder)
    assert by_options("--demand", "m.csv", "--schedule", "rr+mycontrol.py").runs == expected[:1]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"mycontrol\.py' cannot be read"):
        by_options("--demand", "m.csv", "--schedule", "rr+mycontrol.py")


def test_a_file_that_is_not_python_is_refused_with_its_line(tmp_path: Path) -> None:
    written(tmp_path, "x = 1\nif True\n", "bad.py")
    for line in ('cc = "bad.py"', 'schedule = ["rate+bad.py"]'):
        reason = refusal(written(tmp_path, f'{line}\n[[demand]]\nfile = "m.csv"\n'))
        assert f"{tmp_path / 'bad.py'}, line 2: not valid Python" in reason


def test_two_runs_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder, "", "same.py")
    for second in ("rr+b/same.py", "rr+./a/same.py"):
        text = f'schedule = ["rr+a/same.py", "{second}"]\n[[demand]]\nfile = "m.csv"\n'
        line = refusal(written(tmp_path, text))
        assert "schedule gives two runs one name: rr+same, rr+same; leave one out, or rename its file" in line
    text = 'schedule = ["rr+a/same.py", "rate+b/same.py"]\n[[demand]]\nfile = "m.csv"\n'
    assert [run.name for run in read_toml(written(tmp_path, text)).runs] == ["rr+same", "rate+same"]


@pytest.mark.parametrize("words", [["--cc", "\udcff.py"], ["--schedule", "rr+\udcff.py"]], ids=["cc", "run"])
def test_a_control_whose_name_no_file_can_say_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "\udcff.py").write_text("")
    with pytest.raises(InputError, match=r"cc is '.*\\udcff\.py', which is not UTF-8: rename it"):
        by_options("--demand", "m.csv", *words)


@pytest.mark.parametrize(("words", "what"), [([], "demand 1: file"), (["--cc", "mine.py"], "cc")], ids=["demand", "cc"])
def test_a_folder_whose_name_no_file_can_say_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], what: str
) -> None:
    folder = tmp_path / "\udcff"
    folder.mkdir()
    (folder / "mine.py").write_text("")
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match="which is not UTF-8: rename it") as caught:
        by_options("--demand", str(tmp_path / "m.csv") if words else "m.csv", *words)
    assert str(caught.value).startswith(f"{what} is '")


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
