"""Traces as sequences: what rates prints of them, and what compare makes of them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.cli.main import main
from controller.demand import load_demands
from controller.errors import InputError
from controller.formats import Chosen, Reading, read_trace
from testbed.cli import execute
from testbed.cli.experiment_options import experiment_mapping
from testbed.experiment import from_mapping, read_toml, to_toml
from testbed.figures.options import demand_of_file
from testbed.grid.cells import cells_of
from testbed.runner import identity
from testbed.scenario import Scenario, prepare
from testbed.stage.virtual import kernel
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.filterwarnings("error")

SAMPLES = REPOSITORY / "docs" / "samples"


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """Two steps of two layers of four hosts, wire bytes; M moves from receiver 1 to sender 2."""
    array = np.zeros((2, 2, 4, 4), dtype=np.int64)
    array[0, 0, 0, 1], array[0, 0, 2, 1] = 4096, 8192
    array[0, 1, 2, 1], array[0, 1, 2, 3] = 4096, 40960
    array[1, 0] = 4096
    array[1, 1, 3, 0] = 64
    path = tmp_path / "steps.npy"
    np.save(path, array)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else -1
    return (code, *capsys.readouterr())


def test_rates_of_a_sequence(steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "rates", str(steps), "--unit", "wire-bytes", "--link-gbps", "100")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert " ".join(rows[0]) == "step layer total [B] M [B] M over mean bound [us] bottleneck"
    assert rows[1] == ["0", "0", "12288", "12288", "4.000", "0.983", "receiver", "1"]
    assert rows[2] == ["0", "1", "45056", "45056", "4.000", "3.604", "sender", "2"]
    assert rows[3] == ["1", "0", "49152", "12288", "1.000", "0.983", "receiver", "0"]
    assert rows[4] == ["1", "1", "64", "64", "4.000", "0.005", "receiver", "0"]
    assert "M                 64 to 45056 B, in 4 demands" in out
    assert "bottleneck        moves 2 times of 3, over 3 ports" in out
    assert "lower bound       5.576 us at 100 Gb/s, one after the other" in out
    assert "local             16384 B" in out
    _, out, _ = run(capsys, "rates", str(steps), "--unit", "wire-bytes", "--steps", "1")
    assert "bottleneck        moves 0 times of 1, over 1 port (" in out


def test_rates_of_one_of_them(steps: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out_file = tmp_path / "x.cm"
    words = [
        "rates",
        str(steps),
        "--unit",
        "wire-bytes",
        "--steps",
        "0",
        "--layers",
        "0",
        "--demand-out",
        str(out_file),
    ]
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert "M                 12288 B" in out
    assert out_file.read_text().splitlines()[2:] == ["0->1 id 1 start 0 size 4032", "2->1 id 2 start 0 size 8064"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--out", "R.csv"], "--out: steps.npy holds 4 demands"),
        (["--demand-out", "d.cm"], "--demand-out: steps.npy holds 4 demands"),
        (["--demand-out", "d.txt"], "give a name that ends in .csv or .npy or .cm"),
        (["--steps", "x"], "--steps 'x': give numbers and ranges"),
        (["--steps", "7"], "none of the steps and layers"),
        (["--ranks", "4"], "leave --ranks out"),
        (["--combine-token-bytes", "5"], "combine_token_bytes goes with unit tokens"),
    ],
)
def test_rates_that_cannot_be(
    steps: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    monkeypatch.chdir(steps.parent)
    code, out, err = run(capsys, "rates", "steps.npy", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err


def scenario(file: Path, **keys: Any) -> Scenario:
    return prepare(from_mapping(_keys(file, **keys)))


def test_each_demand_is_a_phase(steps: Path) -> None:
    prepared = scenario(steps, steps="0:2", layers="1", name="trace")
    assert [given.name for given in prepared.inputs] == ["trace: step 0 layer 1", "trace: step 1 layer 1"]
    assert [demand.total_bytes for demand in prepared.demands] == [45056, 64]
    assert prepared.bottleneck_names == ["sender h3", "receiver h1"]
    document = identity(prepared, prepared.experiment.runs[0], ran=False)
    assert document["phase_names"] == ["trace: step 0 layer 1", "trace: step 1 layer 1"]
    assert document["unit"] == ["wire-bytes"] * 2
    assert len(set(document["demand_sha256"])) == 1


def test_combines_follow_their_dispatches(steps: Path) -> None:
    prepared = scenario(steps, steps="0", direction="both")
    names = ["1: step 0 layer 0", "1: step 0 layer 0 combine", "1: step 0 layer 1", "1: step 0 layer 1 combine"]
    assert [given.name for given in prepared.inputs] == names
    assert prepared.bottleneck_names == ["receiver h2", "sender h2", "sender h3", "receiver h3"]
    assert prepared.bottleneck_text == "receiver h2 in 1 of 4 phases"
    assert scenario(steps, steps="0").bottleneck_text == "receiver h2, sender h3"
    assert scenario(steps, steps="1").bottleneck_text == "receiver h1"
    for there, back in ((0, 1), (2, 3)):
        assert np.array_equal(prepared.demands[there].wire_bytes.T, prepared.demands[back].wire_bytes)


def test_what_was_assumed_is_in_the_notes_once() -> None:
    prepared = prepare(
        from_mapping(
            {"demand": [{"file": str(SAMPLES / "sglang.pt"), "ranks": 8, "token_bytes": 7168, "steps": "0:2"}]}
        )
    )
    assert len(prepared.demands) == 4
    said = [note for note in prepared.notes if "no source rows" in note]
    assert len(said) == 1
    assert sum("are local" in note for note in prepared.notes) == 1
    assert identity(prepared, prepared.experiment.runs[0], ran=False)["unit"] == ["tokens"] * 4


def test_too_many_phases(tmp_path: Path) -> None:
    np.save(tmp_path / "many.npy", np.ones((600, 2, 2)))
    with pytest.raises(InputError, match="holds 600 demands, each a phase of a run, of which 512 are supported"):
        scenario(tmp_path / "many.npy")
    assert len(scenario(tmp_path / "many.npy", steps=":512").demands) == 512


def test_an_experiment_with_a_trace_is_written_as_it_was_read(tmp_path: Path) -> None:
    given = {
        "file": str(SAMPLES / "megatron"),
        "token_bytes": 7168,
        "format": "megatron",
        "steps": "0:2",
        "layers": "1",
        "ranks": 8,
        "placement": str(tmp_path / "p.json"),
        "source_rows": "",
        "token_copies": "per-rank",
        "direction": "both",
        "combine_token_bytes": 14336,
    }
    experiment = from_mapping({"demand": [given]})
    (tmp_path / "again.toml").write_text(to_toml(experiment))
    assert read_toml(tmp_path / "again.toml") == experiment
    assert experiment.demand[0].reading == Reading(
        "megatron", Chosen.parse("0:2", ""), Chosen.parse("1", ""), 8, 0, tmp_path / "p.json", None, "per-rank"
    )


def test_options_of_compare_are_keys_of_the_demand() -> None:
    import argparse

    from testbed.cli import compare

    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    words = "--demand t --steps 1:3 --layers 2 --experts-per-rank 4 --direction both --token-copies per-rank --out x"
    (phase,) = from_mapping(experiment_mapping(parser.parse_args(words.split()))).demand
    assert (phase.steps, phase.layers, phase.experts_per_rank) == ("1:3", "2", 4)
    assert (phase.direction, phase.token_copies) == ("both", "per-rank")


@pytest.mark.parametrize("key", ["steps", "layers"])
def test_steps_that_name_nothing_are_refused_with_the_experiment(key: str) -> None:
    with pytest.raises(InputError, match=f"demand 1: {key} '5:5' names nothing"):
        from_mapping({"demand": [{"file": "x", key: "5:5"}]})


def test_a_grid_takes_what_was_read_of_a_trace(steps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells carry their demands with them: a matrix as it is, a trace as wire bytes."""
    monkeypatch.setattr(kernel, "find", lambda: kernel.Kernel(Path("linux"), "6.12", "key"))  # which addresses name
    prepared = scenario(steps, steps="0")
    (cell,) = cells_of(from_mapping({**_keys(steps, steps="0"), "schedule": ["rr"]}), tables=(), label="x")
    assert [matrix.unit for matrix in cell.matrices] == ["wire-bytes"] * 2
    assert cell.matrices[1].after == (cell.matrices[0].name,)
    for matrix, demand in zip(cell.matrices, prepared.demands, strict=True):
        file = steps.parent / "of-cell.npy"
        file.write_bytes(matrix.content)
        assert np.array_equal(load_demands(file, unit="wire-bytes")[0].wire_bytes, demand.wire_bytes)


def _keys(file: Path, **keys: Any) -> dict[str, Any]:
    return {"demand": [{"file": str(file), "unit": "wire-bytes", **keys}]}


def test_a_figure_takes_one_demand_of_a_trace(steps: Path, tmp_path: Path) -> None:
    from types import SimpleNamespace

    options: Any = SimpleNamespace(mtu_bytes=4096, keys={}, scratch=tmp_path)
    table = {"file": str(steps), "unit": "wire-bytes"}
    with pytest.raises(InputError, match="holds 4 demands, and a figure shows one"):
        demand_of_file(options, table)
    one = {**table, "steps": "0", "layers": "1"}
    assert demand_of_file(options, one).table == one
    divided = demand_of_file(options, one, most_bytes=20_000)
    assert divided.divided_by == 3
    assert np.load(divided.table["file"]).sum() == -(-40960 // 3) + -(-4096 // 3)


# --- the documentation ---


def commands() -> list[list[str]]:
    """Those of docs/controller.md and docs/formats.md, with lines that go on joined."""
    text = "".join((REPOSITORY / "docs" / f"{name}.md").read_text() for name in ("controller", "formats"))
    text = text.replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"^    incastfree (.*)$", text, re.MULTILINE)]


@pytest.mark.parametrize(
    "words", [words for words in commands() if words[0] == "rates" and "docs/samples" in words[1]], ids=" ".join
)
def test_the_commands_of_the_documentation(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").symlink_to(REPOSITORY / "docs")
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *words)
    assert code == 0, err
    assert "M  " in out
    assert all(line.startswith("note: ") for line in err.splitlines())
    if "--out" in words:
        assert np.loadtxt("R.csv", delimiter=",").shape == (8, 8)
    else:
        assert "in 8 demands" in out


def test_there_is_a_command_for_each_framework() -> None:
    shown = [words[1] for words in commands() if words[0] == "rates"]
    assert {f"docs/samples/{name}" for name in ("sglang.pt", "vllm.jsonl", "megatron")} <= set(shown)


def test_the_command_that_compares(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As far as what it would run: eight phases, dispatch and combine of two steps and layers."""
    (words,) = (words for words in commands() if words[0] == "compare")
    seen: list[Scenario] = []

    def stop(given: Scenario, *_: Any) -> Any:
        seen.append(given)
        raise InputError("stopped")

    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(execute, "run_experiment", stop)
    assert run(capsys, *words)[0] == 2
    assert len(seen[0].demands) == 8
    assert seen[0].demands[1].total_bytes > 1.9 * seen[0].demands[0].total_bytes


def test_the_samples_are_what_the_script_makes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, REPOSITORY / "scripts" / "make-samples.py", tmp_path], check=True)
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert made == sorted(path.relative_to(SAMPLES) for path in SAMPLES.rglob("*") if path.is_file())
    for path in made:
        assert (tmp_path / path).read_bytes() == (SAMPLES / path).read_bytes(), path


def test_the_samples_agree_with_each_other() -> None:
    """The same routing in three formats: what each rank receives is the same, of vLLM but for its replicas."""
    megatron = read_trace(SAMPLES / "megatron", Reading(experts_per_rank=4))
    sglang = read_trace(SAMPLES / "sglang.pt", Reading(ranks=8))
    folded = read_trace(SAMPLES / "vllm.jsonl", Reading(experts_per_rank=4))
    assert len(megatron) == len(sglang) == len(folded) == 8
    for index in range(8):
        columns = megatron.matrix(index).sum(axis=0).tolist()
        assert columns == sglang.matrix(index).sum(axis=0).tolist() == folded.matrix(index).sum(axis=0).tolist()
