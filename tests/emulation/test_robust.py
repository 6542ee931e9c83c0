"""A robustness table from its grid: made, gone on with, and right about an estimate that is wrong."""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import pytest

from testbed.cli import robust
from testbed.experiment import from_mapping
from testbed.scenario import prepare
from testbed.workload.zipf import zipf
from tests.emulation.conftest import run_once, write_matrix


def table(out: Path, *words: str) -> list[dict[str, str]]:
    parser = argparse.ArgumentParser()
    robust.add_arguments(parser)
    assert robust.run(parser.parse_args(["--out", str(out), "--quick", *words])) == 0
    with (out / "robustness.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_quick_table_and_the_same_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy", reason="needs scipy (extra schedules): fast finds its matchings with it")
    words = ("--schedule", "rr+nscc,rate,fast:clock", "--against", "wrong,uplink")
    rows = table(tmp_path, *words)
    printed = capsys.readouterr()
    assert "note: rr+nscc against wrong is left out: it needs no plan\n" in printed.err
    assert [(row["against"], row["run"]) for row in rows] == [
        *(("nothing", run) for run in ("rr+nscc", "rate", "fast:clock")),
        *(("wrong", run) for run in ("rate", "fast:clock")),
        *(("uplink", run) for run in ("rr+nscc", "rate", "fast:clock")),
    ]
    by = {(row["against"], row["run"]): row for row in rows}
    for (against, _), row in by.items():
        assert row["ended"] == "1"
        assert (float(row["lost_mean"]) > 0) == (against == "uplink")
    # A flow that is taken for half as large again as the others is early, one that is taken for half is late.
    assert float(by["wrong", "rate"]["slower_mean_percent"]) > 10
    cells = list(tmp_path.glob("cells/*/result.json"))
    assert len(cells) == len(rows)
    for cell in cells:
        (figures,) = json.loads(cell.read_text())["runs"]
        assert figures["delivered_bytes"] == figures["expected_bytes"] > 0
    assert (tmp_path / "robustness.png").read_bytes().startswith(b"\x89PNG")

    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in cells}
    made = {path.name: path.read_bytes() for path in tmp_path.glob("robustness*")}
    assert table(tmp_path, *words) == rows
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before} == before
    assert {path.name: path.read_bytes() for path in tmp_path.glob("robustness*")} == made


def test_a_wrong_estimate_slows_rates_down_by_as_much_as_its_smallest_share(tmp_path: Path) -> None:
    """Rates of an estimate end when the flow does that got the least of what it needs: D / R, as the estimate has R."""
    demand = write_matrix(tmp_path / "demand.csv", zipf(8, 0.5, 1_500_000, 4096, 3))
    table = {"file": str(demand), "unit": "wire-bytes"}
    keys = {"demand": [table], "schedule": ["rate"], "phase": "zero"}
    exact = prepare(from_mapping(keys))
    wrong = prepare(from_mapping({**keys, "estimate_error": 0.5, "seed": 5}))
    (truth,), (known,) = wrong.demands, wrong.estimates
    sent = truth.wire_bytes > 0
    latest_ns = float(known.bottleneck(wrong.speeds_bps).time_s * 10**9) * float(
        (truth.wire_bytes[sent] / known.wire_bytes[sent]).max()
    )
    figures = run_once(wrong, "rate").figures
    assert figures["delivered_bytes"] == figures["expected_bytes"] == truth.total_bytes
    assert figures["lower_bound_ns"] == run_once(exact, "rate").figures["lower_bound_ns"]
    # The way is 4.1 us; a flow's last packet is sent up to one of its gaps early.
    assert abs(figures["cct_ns"] - latest_ns) < 0.1 * latest_ns
    assert figures["cct_ns"] > 1.4 * figures["lower_bound_ns"]


def test_a_flow_that_no_plan_knows_comes(tmp_path: Path) -> None:
    demand = write_matrix(tmp_path / "demand.csv", zipf(8, 0.5, 400_000, 4096, 3))
    runs = ["rate", "rr-bytes:demand+nscc", "spreadout:clock"]
    keys = {"demand": [{"file": str(demand), "unit": "wire-bytes"}], "schedule": runs, "estimate_error": 1}
    scenario = prepare(from_mapping(keys))
    assert ((scenario.estimates[0].wire_bytes == 0) & (scenario.demands[0].wire_bytes > 0)).any()
    for run in runs:
        figures = run_once(scenario, run).figures
        assert figures["delivered_bytes"] == figures["expected_bytes"] == scenario.demands[0].total_bytes
