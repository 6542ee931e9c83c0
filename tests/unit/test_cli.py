"""The command: exit codes, one line for what is wrong, and what it prints where nothing is booted."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from controller import __version__
from controller.cli.main import ENTRY_POINTS, main
from controller.demand import load_demand
from controller.schedule import make_plan, rate
from testbed.cli import execute
from testbed.measure.store import alone_in
from testbed.report import plots
from testbed.runner import Progress, nothing_to_send
from testbed.scenario import Scenario
from testbed.stage.virtual import kernel
from testbed.workload.zipf import zipf

pytestmark = pytest.mark.filterwarnings("error")

COMMAND = Path(sys.executable).with_name("incastfree")
VERBS = (
    "rates",
    "load",
    "show",
    "unload",
    "doctor",
    "run",
    "compare",
    "figure",
    "agree",
    "report",
    "workload",
    "shell",
    "exec",
    "theory",
    "robust",
    "explain",
    "clean",
)


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative names are of a folder with some files in it."""
    monkeypatch.chdir(tmp_path)
    files = {
        "good.csv": "0,5000,0,64\n4096,0,0,4096\n0,100000,0,0\n64,64,0,0\n",
        "zero.csv": "0,0,0\n0,0,0\n0,0,0\n",
        "ragged.csv": "0,1\n1\n",
        "wide.csv": "0,1,2\n1,0,2\n",
        "nan.csv": "0,nan\n1,0\n",
        "negative.csv": "0,-1\n1,0\n",
        "one.csv": "5\n",
        "empty.csv": "",
        "text.csv": "all work and no play\n",
        "diagonal.csv": "7,4096\n4096,9\n",
        "huge.csv": "0,1.7e308\n1.7e308,0\n",
        "good.toml": '[[demand]]\nfile = "good.csv"\n',
        "zero.toml": '[[demand]]\nfile = "zero.csv"\n',
        "missing.toml": '[[demand]]\nfile = "nowhere.csv"\n',
        "nul.toml": '[[demand]]\nfile = "a\\u0000b.csv"\n',
        "deep.toml": f"x = {'[' * 100_000}\n",
        "unknown.toml": 'link_gbp = 100\n[[demand]]\nfile = "good.csv"\n',
        "range.toml": 'mtu_bytes = 1\n[[demand]]\nfile = "good.csv"\n',
        "link.toml": 'link_gbps_of = { h9 = 1 }\n[[demand]]\nfile = "good.csv"\n',
        "failure.toml": '[[link_failure]]\nlink = "h9"\ndown_ns = 1\nup_ns = 2\n[[demand]]\nfile = "good.csv"\n',
        "times.toml": '[[link_failure]]\nlink = "h1"\ndown_ns = 2\nup_ns = 1\n[[demand]]\nfile = "good.csv"\n',
        "open.toml": 'loss_recovery = "none"\ncc = "nscc"\n[[demand]]\nfile = "good.csv"\n',
        "control.toml": 'schedule = ["rr+bad.py"]\n[[demand]]\nfile = "good.csv"\n',
        "queue.toml": 'queue_bytes = "large"\n[[demand]]\nfile = "good.csv"\n',
        "bad.py": "def\n",
        "peers.toml": '0 = "10.0.0.1"\n1 = "10.0.0.2"\n2 = "10.0.0.3"\n3 = "10.0.0.4"\n',
        "few-peers.toml": '0 = "10.0.0.1"\n',
        "twice.toml": '0 = "10.0.0.1"\n1 = "10.0.0.1"\n',
        "mapped.toml": '0 = "10.0.0.1"\n1 = "::ffff:10.0.0.1"\n',
        "rank-twice.toml": '1 = "10.0.0.1"\n01 = "10.0.0.2"\n',
        "group.toml": '0 = "ff02::1"\n',
        "nobody.toml": '0 = "0.0.0.0"\n',
        "no-address.toml": '0 = "host0"\n',
        "number.toml": "0 = 5\n1 = true\n",
        "rank.toml": '9 = "10.0.0.1"\n',
        "rank-name.toml": 'zero = "10.0.0.1"\n',
        "no-table.toml": "peers = 5\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "zip.npy").write_bytes(b"PK\x03\x04\x14\x00\x06\x00")
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)))
    objects = np.empty((2, 2), dtype=object)
    np.save(tmp_path / "objects.npy", objects, allow_pickle=True)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.py").mkdir()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Result:
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else -1
    return Result(code, *capsys.readouterr())


def bad(result: Result) -> str:
    """Exit code 2, one line on stderr, nothing on stdout."""
    assert result.err.count("\n") == 1, result.err
    assert result.err.endswith("\n")
    assert "Traceback" not in result.err
    assert result.err.startswith("incastfree")
    assert (result.code, result.out) == (2, "")
    return result.err


NOT_A_MATRIX = {
    "nowhere.csv": "does not exist",
    "folder": "is a folder",
    "good.csv/x": "cannot be read",
    "ragged.csv": "row 2 has 1 values",
    "wide.csv": "2 x 3",
    "nan.csv": "row 1, column 2",
    "negative.csv": "is negative",
    "one.csv": "single host",
    "empty.csv": "is empty",
    "text.csv": "not a number",
    "huge.csv": "2^63",
    "binary.csv": "neither CSV text nor NPY",
    "zip.npy": "damaged zip file",
    "objects.npy": "Python objects",
}
VERBS_WITH_A_MATRIX = {
    "rates": ["rates", "MATRIX"],
    "load": ["load", "MATRIX", "--dev", "none0", "--rank", "0", "--peers", "peers.toml"],
    "compare": ["compare", "--demand", "MATRIX", "--out", "out"],
    "agree": ["agree", "--demand", "MATRIX", "--out", "out"],
}


@pytest.mark.parametrize(("file", "reason"), NOT_A_MATRIX.items(), ids=NOT_A_MATRIX)
@pytest.mark.parametrize("words", VERBS_WITH_A_MATRIX.values(), ids=VERBS_WITH_A_MATRIX)
def test_a_bad_matrix(capsys: pytest.CaptureFixture[str], words: list[str], file: str, reason: str) -> None:
    line = bad(run(capsys, *[file if word == "MATRIX" else word for word in words]))
    assert reason in line
    assert file in line
    assert not Path("out").exists()


def compare(*options: str) -> list[str]:
    return ["compare", "--demand", "good.csv", "--out", "out", *options]


BAD_WORDS: dict[str, tuple[list[str], str]] = {
    "nothing": ([], "VERB"),
    "unknown verb": (["rate", "good.csv"], "'rate'"),
    "unknown option": (["rates", "good.csv", "--fast"], "--fast"),
    "option that is no key": (["compare", "--demand", "good.csv", "--out", "out", "--link-gpbs", "1"], "--link-gpbs"),
    "words of two lines": (["rates", "good.csv", "a\nb"], "unrecognized"),
    "file name of two lines": (["rates", "a\nb.csv"], "does not exist"),
    "no file": (["rates"], "FILE"),
    "wrong unit": (["rates", "good.csv", "--unit", "packets"], "packets"),
    "wrong unit of compare": (["compare", "--demand", "good.csv", "--unit", "packets", "--out", "out"], "'packets'"),
    "tokens without a size": (["rates", "good.csv", "--unit", "tokens"], "token_bytes"),
    "size without tokens": (
        ["rates", "good.csv", "--token-bytes", "7168"],
        "give --unit tokens, or leave --token-bytes out",
    ),
    "negative size": (["rates", "good.csv", "--unit", "tokens", "--token-bytes=-1"], "-1"),
    "size is text": (["rates", "good.csv", "--unit", "tokens", "--token-bytes", "x"], "'x'"),
    "size is a fraction": (["rates", "good.csv", "--unit", "tokens", "--token-bytes", "1.5"], "1.5"),
    "size is huge": (["rates", "good.csv", "--unit", "tokens", "--token-bytes", "1e30"], "token_bytes"),
    "size is huge, of nothing": (["rates", "zero.csv", "--unit", "tokens", "--token-bytes", "1e30"], "token"),
    "no rank": (["rates", "good.csv", "--ranks", "0"], "argument --ranks: 0: give 1 or more"),
    "no expert": (["rates", "good.csv", "--experts-per-rank", "0"], "--experts-per-rank: 0: give 1 or more"),
    "small MTU": (["rates", "good.csv", "--mtu-bytes", "127"], "--mtu-bytes 127"),
    "huge MTU": (["rates", "good.csv", "--mtu-bytes", "1e30"], "--mtu-bytes"),
    "no GPU in a server": (["rates", "good.csv", "--gpus-per-server", "0"], "--gpus-per-server"),
    "huge server": (["rates", "good.csv", "--gpus-per-server", "1e30"], "--gpus-per-server"),
    "no speed": (["rates", "good.csv", "--link-gbps", "0"], "--link-gbps 0"),
    "speed is not a number": (["rates", "good.csv", "--link-gbps", "nan"], "--link-gbps nan"),
    "compare without demand": (["compare", "--out", "out"], "no demand"),
    "compare without out": (["compare", "--demand", "good.csv"], "--out"),
    "compare with a wrong schedule": (["compare", "--demand", "good.csv", "--schedule", "x", "--out", "out"], "'x'"),
    "compare with a wrong range": (["compare", "--demand", "good.csv", "--seed=-1", "--out", "out"], "seed is -1"),
    "compare with a huge seed": (
        ["compare", "--demand", "good.csv", "--seed", "1" + "0" * 400, "--out", "out"],
        "seed is",
    ),
    "compare with an unknown link": (
        ["compare", "--demand", "good.csv", "--link-gbps-of", "h5=100", "--out", "out"],
        "'h5' is not a link",
    ),
    "compare with other hosts": (["compare", "--demand", "good.csv", "--hosts", "5", "--out", "out"], "hosts is 5"),
    "compare with phases of other sizes": (
        ["compare", "--demand", "good.csv", "--demand", "zero.csv", "--out", "out"],
        "zero.csv has 3 hosts",
    ),
    "run without a file": (["run"], "--print-schema"),
    "run without out": (["run", "good.toml"], "--out"),
    "run a missing file": (["run", "nowhere.toml", "--out", "out"], "does not exist"),
    "run a folder": (["run", "folder", "--out", "out"], "is a folder"),
    "run a matrix": (["run", "good.csv", "--out", "out"], "is not TOML"),
    "run binary garbage": (["run", "binary.csv", "--out", "out"], "is not text"),
    "run below a file": (["run", "good.csv/x", "--out", "out"], "good.csv/x"),
    "run with a missing matrix": (["run", "missing.toml", "--out", "out"], "nowhere.csv does not exist"),
    "run with an impossible name": (["run", "nul.toml", "--out", "out"], ".csv"),
    "run brackets without end": (["run", "deep.toml", "--out", "out"], "deep.toml"),
    "run with an unknown key": (["run", "unknown.toml", "--out", "out"], "did you mean 'link_gbps'?"),
    "run with a wrong range": (["run", "range.toml", "--out", "out"], "mtu_bytes is 1"),
    "run with an unknown link": (["run", "link.toml", "--out", "out"], "'h9' is not a link"),
    "shell of a missing file": (["shell", "nowhere.toml"], "does not exist"),
    "compare with a queue of words": (compare("--queue-bytes", "large"), "--queue-bytes large: give a number, or auto"),
    "compare with a queue for no packet": (compare("--queue-bytes", "4095"), "no packet of 4096 B fits"),
    "compare in no memory": (compare("--memory-mib", "159"), "memory_mib is 159: give 160 or more, or 0"),
    "compare with a word for trimming": (compare("--trimming", "no"), "no"),
    "compare with a threshold above the other": (
        compare("--ecn-kmin-bytes", "9", "--ecn-kmax-bytes", "8"),
        "ecn_kmin_bytes is 9, above ecn_kmax_bytes 8",
    ),
    "compare with a threshold above the automatic other": (
        compare("--ecn-kmax-bytes", "4096"),
        "ecn_kmin_bytes is 81920, above ecn_kmax_bytes, 4096: give both",
    ),
    "compare with too much loss": (compare("--loss-data", "1.1"), "loss_data is 1.1: it must be 0 to 0.99"),
    "compare with negative loss": (compare("--loss-ack=-1"), "loss_ack is -1: it must be 0 to 0.99"),
    "compare with an unknown recovery": (compare("--loss-recovery", "tlp"), "use sack or timeout or none"),
    "compare without what a control needs": (
        compare("--loss-recovery", "none", "--schedule", "rr,rr+nscc"),
        "without ACKs nscc hears nothing",
    ),
    "compare with a misspelt control": (compare("--cc", "nsc"), "did you mean 'nscc'?"),
    "compare with a control in a folder": (compare("--cc", "folder.py"), "cannot be read (Is a directory)"),
    "compare with a control of two lines": (compare("--cc", "a\nb.py"), "cannot be read"),
    "compare with a control that is no Python": (compare("--schedule", "rr+bad.py"), "bad.py, line 1: not valid"),
    "compare with one run twice": (compare("--schedule", "rr+nscc,rr+nscc"), "names something twice"),
    "compare with half a run": (compare("--schedule", "rr+"), "cc '' is not known"),
    "compare with failures": (compare("--link-failure", "h1"), "--link-failure"),
    "run with a failure of no link": (["run", "failure.toml", "--out", "out"], "link_failure: 'h9' is not a link"),
    "run with a failure backwards": (["run", "times.toml", "--out", "out"], "up_ns is 1: it must be above down_ns, 2"),
    "run without what a control needs": (["run", "open.toml", "--out", "out"], "open.toml: loss_recovery is none"),
    "run with a control that is no Python": (["run", "control.toml", "--out", "out"], "bad.py, line 1: not valid"),
    "run with a queue of words": (
        ["run", "queue.toml", "--out", "out"],
        "queue_bytes is 'large': give a number, or auto",
    ),
    "shell with a failure of no link": (["shell", "failure.toml"], "link_failure: 'h9' is not a link"),
    "workload of no kind": (["workload"], "KIND"),
    "workload of an unknown kind": (["workload", "pareto"], "'pareto'"),
}
ZIPF = {"--hosts": "4", "--s": "1", "--bytes": "1e6", "--out": "out.csv"}
BAD_ZIPF = {
    "one host": ({"--hosts": "1"}, "--hosts 1"),
    "too many hosts": ({"--hosts": "1001"}, "--hosts 1001"),
    "hosts are text": ({"--hosts": "many"}, "--hosts"),
    "negative skew": ({"--s": "-1"}, "--s"),
    "large skew": ({"--s": "11"}, "--s 11"),
    "skew is not a number": ({"--s": "nan"}, "--s nan"),
    "less than a packet": ({"--bytes": "4095"}, "--bytes 4095"),
    "half a byte": ({"--bytes": "5000.5"}, "--bytes"),
    "infinite": ({"--bytes": "inf"}, "--bytes"),
    "small MTU": ({"--mtu-bytes": "127"}, "--mtu-bytes 127"),
    "more in all than 2^63": ({"--bytes": "4e18"}, "--bytes"),
    "more than 2^63": ({"--bytes": "1e20"}, "--bytes"),
    "more than 2^63 packets": ({"--bytes": "1e25"}, "--bytes"),
}
LOAD = {"--dev": "none0", "--rank": "0", "--peers": "peers.toml"}
BAD_LOAD = {
    "rank beyond the matrix": ({"--rank": "4"}, "--rank 4"),
    "rank is text": ({"--rank": "first"}, "--rank"),
    "unknown kind of NIC": ({"--nic": "abacus"}, "'abacus'"),
    "no speed": ({"--link-gbps": "0"}, "--link-gbps 0"),
    "small MTU": ({"--mtu-bytes": "1"}, "--mtu-bytes"),
    "missing peers": ({"--peers": "nowhere.toml"}, "nowhere.toml does not exist"),
    "peers are a folder": ({"--peers": "folder"}, "folder"),
    "peers are a matrix": ({"--peers": "good.csv"}, "good.csv is not TOML"),
    "peers are binary": ({"--peers": "binary.csv"}, "binary.csv is not TOML"),
    "peers are no table": ({"--peers": "no-table.toml"}, "no-table.toml"),
    "a peer has no address": ({"--peers": "few-peers.toml"}, "rank 1 has no address"),
    "two peers have one": ({"--peers": "twice.toml"}, "another rank"),
    "two peers have one, in two ways": ({"--peers": "mapped.toml"}, "another rank"),
    "a rank in two ways": ({"--peers": "rank-twice.toml"}, "rank 1 has two addresses"),
    "a peer is a group": ({"--peers": "group.toml"}, "ff02::1 is the address of no host"),
    "a peer is nobody": ({"--peers": "nobody.toml"}, "0.0.0.0 is the address of no host"),
    "a peer's is a name": ({"--peers": "no-address.toml"}, "'host0' is not an IP address"),
    "a peer's is a number": ({"--peers": "number.toml"}, "is not an IP address"),
    "a peer beyond the matrix": ({"--peers": "rank.toml"}, "'9' is not a rank"),
    "a peer that is no rank": ({"--peers": "rank-name.toml"}, "'zero' is not a rank"),
}


def with_options(start: list[str], options: dict[str, str]) -> list[str]:
    return [*start, *(f"{name}={value}" for name, value in options.items())]


@pytest.mark.parametrize(("words", "reason"), BAD_WORDS.values(), ids=BAD_WORDS)
def test_bad_words(capsys: pytest.CaptureFixture[str], words: list[str], reason: str) -> None:
    assert reason in bad(run(capsys, *words))
    assert not Path("out").exists()


@pytest.mark.parametrize(("changed", "reason"), BAD_ZIPF.values(), ids=BAD_ZIPF)
def test_bad_zipf(capsys: pytest.CaptureFixture[str], changed: dict[str, str], reason: str) -> None:
    assert reason in bad(run(capsys, *with_options(["workload", "zipf"], {**ZIPF, **changed})))
    assert not Path("out.csv").exists()


@pytest.mark.parametrize(("changed", "reason"), BAD_LOAD.values(), ids=BAD_LOAD)
def test_bad_load(capsys: pytest.CaptureFixture[str], changed: dict[str, str], reason: str) -> None:
    assert reason in bad(run(capsys, *with_options(["load", "good.csv"], {**LOAD, **changed})))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--out", "good.csv"], "--out good.csv is the demand itself: choose another name"),
        (["--out", "folder/../good.csv"], "is the demand itself"),
        (["--demand-out", "good.csv"], "--demand-out good.csv is the demand itself"),
        (["--out", "r.csv", "--demand-out", "r.csv"], "--demand-out r.csv is that of --out"),
    ],
)
def test_rates_overwrites_no_demand(capsys: pytest.CaptureFixture[str], words: list[str], reason: str) -> None:
    before = Path("good.csv").read_text()
    assert reason in bad(run(capsys, "rates", "good.csv", *words))
    assert Path("good.csv").read_text() == before
    assert not Path("r.csv").exists()


FAILS_LATER = """
from dataclasses import replace
from controller.schedule.rate import SCHEDULE as RATE

def plan(demand, setting):
    if demand.total_bytes > 10**6:
        raise ValueError("that is much")
    return RATE.plan(demand, setting)

SCHEDULE = replace(RATE, name="later", plan=plan)
"""


def test_what_cannot_be_planned_leaves_an_earlier_comparison(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "find", lambda: kernel.Kernel(Path("linux"), "6.12", "key"))
    table = Path("out/rr/flows.parquet")
    table.parent.mkdir(parents=True)
    table.write_text("earlier")
    Path("out/result.json").write_text('{"runs": [{"run": "rr"}]}')
    assert "rate:2: give the share" in bad(
        run(capsys, "compare", "--demand", "good.csv", "--schedule", "rr,rate:2", "--out", "out")
    )
    assert table.read_text() == "earlier"
    assert sorted(path.name for path in Path("out").iterdir()) == ["result.json", "rr"]
    Path("later.py").write_text(FAILS_LATER)
    Path("much.csv").write_text("0,9000000\n0,0\n")
    Path("little.csv").write_text("0,9000\n0,0\n")
    demands = ("--demand", "little.csv", "--demand", "much.csv")
    line = bad(run(capsys, "compare", *demands, "--schedule", "rr,later.py", "--out", "out"))
    assert "later.py, line 7: made no plan (ValueError: that is much)" in line
    Path("stages.py").write_text("from controller.schedule.spreadout import SCHEDULE\n")
    line = bad(run(capsys, "compare", "--demand", "good.csv", "--schedule", "rr,stages.py+dcqcn", "--out", "out"))
    assert "stages+dcqcn: dcqcn sets rates, which stages have none of" in line
    for source, reason in (
        ("x = 1", "must define one subclass of testbed.engine.cca.Control, but defines none"),
        ("import nowhere", "line 1: cannot be imported (ModuleNotFoundError"),
        ("raise BaseException('no')", "line 1: cannot be imported (BaseException: no)"),
    ):
        Path("own.py").write_text(source)
        assert reason in bad(
            run(capsys, "compare", "--demand", "good.csv", "--schedule", "rr,rr+own.py", "--out", "out")
        )
    assert table.read_text() == "earlier"


def test_a_folder_is_for_one_command_at_a_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "find", lambda: kernel.Kernel(Path("linux"), "6.12", "key"))
    with alone_in(Path("out")):
        code, out, err = run(capsys, "compare", "--demand", "good.csv", "--out", "out")
        assert (code, out) == (1, "")
        assert "out is in use by another command: wait for it, or choose another --out" in err
    assert not Path("out").exists()  # it stayed empty
    assert "good.csv is a file, not a folder" in bad(
        run(capsys, "compare", "--demand", "good.csv", "--out", "good.csv")
    )


def test_what_a_plan_prints_is_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    Path("chatty.py").write_text(
        "print('imported')\nfrom controller.schedule.spreadout import SCHEDULE\n"
        "from dataclasses import replace\nold = SCHEDULE.plan\n"
        "SCHEDULE = replace(SCHEDULE, plan=lambda *given: print('planned') or old(*given))\n"
    )
    make_plan("chatty.py", load_demand("good.csv"), [Fraction(10**9)] * 4)
    assert capsys.readouterr() == ("", "imported\nplanned\n")


def test_pipes_and_devices_are_no_demands(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe without a writer is not waited for, and a device without an end not read."""
    os.mkfifo("pipe")
    for name in ("pipe", "/dev/zero"):
        assert f"{name} is a pipe or a device" in bad(run(capsys, "rates", name))


def test_a_file_larger_than_memory_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Path("enormous.csv").open("wb") as file:
        file.truncate(1 << 42)
    assert "does not fit into this machine's memory" in bad(run(capsys, "rates", "enormous.csv"))


def test_load_of_more_ranks_than_slots(capsys: pytest.CaptureFixture[str]) -> None:
    matrix = np.zeros((1025, 1025), dtype=np.int64)
    matrix[0, 1] = 1
    np.save("huge.npy", matrix)
    assert "1025" in bad(run(capsys, *with_options(["load", "huge.npy"], LOAD)))


def test_load_on_an_interface_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "none0" in bad(run(capsys, *with_options(["load", "good.csv"], LOAD)))


def test_all_verbs_are_there() -> None:
    assert {point.name for point in importlib.metadata.entry_points(group=ENTRY_POINTS)} == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    result = run(capsys, verb, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"usage: incastfree {verb}")


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "--help")
    assert result.code == 0
    words = result.out.split()
    assert all(verb in words for verb in VERBS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"incastfree {__version__}\n", "")
    assert importlib.metadata.version("incastfree") == __version__


def test_nothing_to_send_has_no_rates(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "rates", "zero.csv")
    assert (result.code, result.err) == (0, "")
    assert "nothing to send" in result.out


@pytest.mark.parametrize(
    "words",
    [["compare", "--demand", "zero.csv", "--out", "out/deep"], ["run", "zero.toml", "--out", "out/deep"]],
    ids=["compare", "run"],
)
def test_nothing_to_send_takes_no_time(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    result = run(capsys, *words)
    assert result == (0, "nothing to send: CCT 0\n", "")
    runs = json.loads(Path("out/deep/result.json").read_text())["runs"]
    assert [(r["schedule"], r["cct_ns"], r["expected_bytes"]) for r in runs] == [("rr", 0, 0), ("rate", 0, 0)]


def test_json_prints_the_results_file_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "compare", "--demand", "zero.csv", "--schedule", "rate", "--out", "out", "--json")
    assert (result.code, result.err) == (0, "")
    assert result.out == Path("out/result.json").read_text()
    (only,) = json.loads(result.out)["runs"]
    assert only["schedule"] == "rate"


def test_results_that_cannot_be_written_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "compare", "--demand", "zero.csv", "--out", "good.csv/out")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert "good.csv/out cannot be written" in result.err


def test_print_schema_is_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "run", "--print-schema")
    assert (result.code, result.err) == (0, "")
    keys = json.loads(result.out)
    assert keys["link_gbps"]["default"] == 800
    assert keys["link_gbps"]["unit"] == "Gb/s"
    assert "demand" in keys
    new = (
        "queue_bytes",
        "trimming",
        "ecn_kmin_bytes",
        "ecn_kmax_bytes",
        "loss_data",
        "loss_ack",
        "loss_recovery",
        "cc",
    )
    assert all(keys[name]["help"] for name in new)
    assert keys["queue_bytes"]["default"] == "auto"
    assert keys["link_failure"]["keys"]["down_ns"]["unit"] == "ns"


def test_runs_of_nothing_bear_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text("")
    words = ["--schedule", "rr,rr+nscc,rate+mine.py", "--queue-bytes", "auto", "--no-trimming"]
    result = run(capsys, "compare", "--demand", "zero.csv", "--out", "out", "--json", *words)
    assert (result.code, result.err) == (0, "")
    runs = json.loads(result.out)["runs"]
    assert [run["run"] for run in runs] == ["rr", "rr+nscc", "rate+mine"]
    assert [run["cc"] for run in runs] == ["none", "nscc", str(Path("mine.py").absolute())]
    assert [bool(run["cc_sha256"]) for run in runs] == [False, False, True]
    # 3 hosts are on one leaf.
    assert {run["queue_bytes"] for run in runs} == {5 * 409_600}
    assert {folder.name for folder in Path("out").iterdir() if folder.is_dir()} == {"rr", "rr+nscc", "rate+mine"}


@pytest.mark.parametrize("missing", [0, 4096])
def test_bytes_that_were_not_delivered_are_said_with_the_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    """Without a machine: of what one measured."""

    def measured(scenario: Scenario, out: Path, _progress: Progress) -> list[dict[str, Any]]:
        out.mkdir(exist_ok=True)
        (out / "result.json").write_text("{}")
        delivered = scenario.expected_bytes - missing
        counted = {"drops": 3, "trims": 5, "lost": 7, "expected_bytes": scenario.expected_bytes}
        figures = {**nothing_to_send(scenario, "rr"), **counted, "delivered_bytes": delivered, "cct_ns": None}
        return [figures, {**figures, "run": "rate", "delivered_bytes": scenario.expected_bytes}]

    monkeypatch.setattr(execute, "run_experiment", measured)
    monkeypatch.setattr(plots, "draw_all", lambda *_: {})
    result = run(capsys, *compare("--loss-recovery", "none"))
    assert result.code == (1 if missing else 0)
    assert result.err == (
        "incastfree: rr: 4096 bytes were not delivered (3 packets dropped and 5 trimmed at full queues, 7 lost on links): "
        "with loss_recovery none nothing is sent again, so give sack or timeout\n"
        if missing
        else ""
    )


def test_help_says_what_is_on_and_what_is_automatic(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(run(capsys, "compare", "--help").out.split())
    assert "the receiver asks for it again; default: on" in text
    assert "five of them without trimming [B]; default: auto" in text


def figures(text: str) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in text.splitlines() if len(line.split()) > 1)


def test_rates_of_the_papers_example(capsys: pytest.CaptureFixture[str]) -> None:
    Path("paper.csv").write_text("0,1000,2000\n800,0,2000\n2000,1000,0\n")
    result = run(capsys, "rates", "paper.csv", "--unit", "wire-bytes", "--link-gbps", "32")
    assert (result.code, result.err) == (0, "")
    shown = figures(result.out)
    assert shown["M"] == "4000 B"
    assert shown["bottleneck"].startswith("receiver 2")
    # 4000 B at 32 Gb/s.
    assert "lower bound       1.000 us" in result.out
    rows = [[float(cell) for cell in line.split()] for line in result.out.splitlines()[-3:]]
    assert rows == [[0, 0.25, 0.5], [0.2, 0, 0.5], [0.5, 0.25, 0]]


def test_local_traffic_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "rates", "diagonal.csv", "--unit", "wire-bytes")
    assert result.code == 0
    assert result.err == "note: diagonal.csv: 16 bytes on the diagonal are local and do not enter the network\n"
    assert "8192 B on the wire, 16 B local" in result.out


def test_rates_of_a_very_slow_link(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "rates", "good.csv", "--link-gbps", "1e-320")
    assert result.code in (0, 2)
    assert result.err.count("\n") == (1 if result.code else 0)


def test_rates_in_files(capsys: pytest.CaptureFixture[str]) -> None:
    demand = load_demand(Path("good.csv"), unit="wire-bytes")
    shares = rate.step_share(rate.plan(demand, [Fraction(800 * 10**9)] * 4).steps)
    for name in ("r.csv", "r.npy"):
        result = run(capsys, "rates", "good.csv", "--unit", "wire-bytes", "--out", name)
        assert (result.code, result.err) == (0, "")
        assert name in result.out
    assert np.array_equal(np.load("r.npy"), shares)
    of_csv = np.loadtxt("r.csv", delimiter=",")
    assert np.abs(of_csv - shares).max() < 1e-9
    assert np.array_equal(of_csv > 0, demand.wire_bytes > 0)


def test_rates_of_many_hosts_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    np.savetxt("many.csv", 1 - np.eye(17), fmt="%d", delimiter=",")
    result = run(capsys, "rates", "many.csv")
    assert result.code == 0
    assert "--out FILE" in result.out
    assert len(result.out.splitlines()) < 12


def test_rates_to_a_name_of_no_format(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "rates", "good.csv", "--out", "r.txt")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert ".csv or .npy" in result.err
    assert not Path("r.txt").exists()


def test_rates_to_a_folder_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("none/r.csv", "none/r.npy"):
        result = run(capsys, "rates", "good.csv", "--out", name)
        assert (result.code, result.err.count("\n")) == (1, 1)
        assert f"{name} cannot be written" in result.err


@pytest.mark.parametrize(("hosts", "skew", "seed"), [(4, 1.0, 0), (16, 0.5, 3), (64, 0.0, 1), (2, 10.0, 0)])
def test_zipf_follows_its_formula(hosts: int, skew: float, seed: int) -> None:
    demand = zipf(hosts, skew, 30_000_000, 4096, seed)
    total = sum(rank**-skew for rank in range(1, hosts + 1))
    expected = [max(1, round(30_000_000 * rank**-skew / total / 4096)) * 4096 for rank in range(1, hosts + 1)]
    # The row that one more host would send: what others send to each receiver.
    columns = [next(int(demand[i, j]) for i in range(hosts) if i != j) for j in range(hosts)]
    assert sorted(columns, reverse=True) == expected
    for i in range(hosts):
        assert demand[i].tolist() == [0 if j == i else columns[j] for j in range(hosts)]


def test_the_order_of_popularity_hangs_on_the_seed() -> None:
    first, again, other = (zipf(16, 1.0, 30_000_000, 4096, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert sorted(first.max(axis=0)) == sorted(other.max(axis=0))


def test_every_flow_has_a_packet() -> None:
    demand = zipf(4, 10.0, 4096, 4096, 0)
    assert demand[~np.eye(4, dtype=bool)].min() == 4096


def test_workload_writes_what_other_verbs_read(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--hosts", "16", "--s", "1", "--bytes", "30e6", "--seed", "5", "--out", "z.csv"]
    result = run(capsys, "workload", "zipf", *words)
    assert (result.code, result.err) == (0, "")
    demand = load_demand(Path("z.csv"), unit="wire-bytes")
    assert np.array_equal(demand.wire_bytes, zipf(16, 1.0, 30_000_000, 4096, 5))
    assert demand.notes == ()
    assert str(demand.total_bytes) in result.out
    assert "--unit wire-bytes" in result.out
    assert run(capsys, "rates", "z.csv", "--unit", "wire-bytes").code == 0


def test_workload_of_another_packet_size(capsys: pytest.CaptureFixture[str]) -> None:
    words = with_options(["workload", "zipf"], {**ZIPF, "--mtu-bytes": "1500"})
    assert run(capsys, *words).code == 0
    demand = np.loadtxt("out.csv", delimiter=",")
    assert not (demand % 1500).any()


def test_workload_into_a_folder_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, *with_options(["workload", "zipf"], {**ZIPF, "--out": "none/z.csv"}))
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)


# Lower bound in us, of the reference runs.
@pytest.mark.parametrize(
    ("name", "hosts", "skew", "bound_us"),
    [
        ("n16-s1.0", 16, "1.0", 1330.8),
        ("n16-s0.5", 16, "0.5", 675.2),
        ("n16-s0.25", 16, "0.25", 445.4),
        ("n64-s0.5", 64, "0.5", 1295.4),
    ],
)
def test_workload_is_like_the_reference_files(
    capsys: pytest.CaptureFixture[str], shared_data: Path, name: str, hosts: int, skew: str, bound_us: float
) -> None:
    reference = np.loadtxt(shared_data / "zipf" / f"{name}.csv", delimiter=",", dtype=np.int64)
    words = {"--hosts": str(hosts), "--s": skew, "--bytes": "30e6", "--out": "z.csv"}
    assert run(capsys, *with_options(["workload", "zipf"], words)).code == 0
    made = np.loadtxt("z.csv", delimiter=",", dtype=np.int64)
    for matrix in (reference, made):
        # Whole packets, and one row for all but for the diagonal.
        assert not (matrix % 4096).any()
        assert not matrix.diagonal().any()
        assert np.array_equal(matrix, np.where(np.eye(hosts, dtype=bool), 0, matrix.max(axis=0)))
    # The order of popularity is drawn; the amounts are the same.
    assert sorted(made.max(axis=0)) == sorted(reference.max(axis=0))
    result = run(capsys, "rates", "z.csv", "--unit", "wire-bytes")
    assert abs(float(figures(result.out)["lower"].split()[1]) - bound_us) < 0.06


def environment(**changes: str) -> dict[str, str]:
    """With an output that is buffered, as a user's is."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | changes


def command(*words: str, **changes: str) -> Result:
    done = subprocess.run(
        [COMMAND, *words], capture_output=True, text=True, env=environment(**changes), timeout=30, check=False
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "words",
    [["rates", "ragged.csv"], ["rates", "huge.csv"], ["run", "unknown.toml", "--out", "out"], ["rate", "good.csv"]],
    ids=["matrix", "huge", "key", "verb"],
)
def test_the_installed_command_refuses_in_one_line(words: list[str]) -> None:
    bad(command(*words))


def test_the_installed_command_prints_rates() -> None:
    result = command("rates", "good.csv", "--unit", "wire-bytes")
    assert (result.code, result.err) == (0, "")
    assert figures(result.out)["hosts"] == "4"


def test_the_module_is_the_command() -> None:
    words: Sequence[str] = [sys.executable, "-m", "controller.cli.main", "rates", "ragged.csv"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=30, check=False)
    assert "row 2 has 1 values" in bad(Result(done.returncode, done.stdout, done.stderr))


@pytest.mark.parametrize("buffering", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "words", [["rates", "good.csv"], ["run", "--print-schema"], ["--help"]], ids=["rates", "schema", "help"]
)
def test_a_reader_that_has_gone_is_no_error_message(words: list[str], buffering: dict[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [COMMAND, *words],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**buffering),
            timeout=30,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.stderr == ""
    assert done.returncode == 1


@pytest.mark.parametrize("buffering", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
def test_output_on_a_full_disk_is_said_in_one_line(buffering: dict[str, str]) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    with full.open("w") as stdout:
        done = subprocess.run(
            [COMMAND, "rates", "good.csv"],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**buffering),
            timeout=30,
            check=False,
        )
    assert done.stderr.startswith("incastfree: ")
    assert done.stderr.count("\n") == 1
    assert done.returncode == 1


def test_a_name_that_is_not_text_is_printed() -> None:
    """Standard output is strict in every locale but C's."""
    name = b"\xff.csv"
    Path(os.fsdecode(name)).write_text("0,0\n0,0\n")
    done = subprocess.run(
        [os.fsencode(COMMAND), b"rates", name],
        capture_output=True,
        env=environment(PYTHONIOENCODING="utf-8:strict"),
        timeout=30,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert done.returncode == 0


def test_a_name_with_a_line_break_stays_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a file or what is in it is called."""
    file = tmp_path / "two\nlines.csv"
    file.write_text("a,b\n")
    assert main(["rates", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "two\\nlines.csv" in line
