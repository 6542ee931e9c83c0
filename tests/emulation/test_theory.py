"""The fluid model of round robin beside the testbed, and the verb that shows both."""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import pytest

from controller.errors import InputError
from testbed.cli import theory as verb
from testbed.measure.store import write_table
from testbed.report.saved import read_saved
from testbed.runner import prepare_folder
from testbed.theory.measured import Theory, apart
from testbed.workload.zipf import zipf
from tests.emulation.conftest import OPEN_LOOP, run_once, scenario_of, write_matrix

WITHIN = 0.05


def saved_run(folder: Path, demand: Path, **keys: object) -> Path:
    """A folder of results with one run of rr in an open loop with unlimited queues."""
    scenario = scenario_of(demand, schedule=["rr"], **{**OPEN_LOOP, **keys})
    out = folder / "results"
    prepare_folder(scenario, out)
    data = run_once(scenario, "rr")
    write_table(out / "rr" / "ports.parquet", data.ports)
    (out / "result.json").write_text(json.dumps({"runs": [data.figures]}))
    return out


@pytest.mark.parametrize(
    ("keys", "sent_bytes"),
    [({}, 4_000_000), ({"hosts_per_leaf": 64}, 2_000_000)],
    ids=["leaf-spine", "one switch"],
)
def test_round_robin_of_64_hosts_is_as_the_fluid_says(tmp_path: Path, keys: dict[str, object], sent_bytes: int) -> None:
    """Zipf, s = 1: arrivals at the hot receiver in 2 % of the run, and its queue, within 5 % of their peaks throughout."""
    demand = write_matrix(tmp_path / "demand.csv", zipf(64, 1.0, sent_bytes, 4096, 3))
    theory = Theory.of(read_saved(saved_run(tmp_path, demand, **keys)), 0)
    (run,) = theory.runs
    profile, port = theory.hot_profile("rr"), theory.measured(run)
    found = apart(profile, port)
    assert found.arrival < WITHIN
    assert found.queue < WITHIN
    assert profile.done_ns + theory.last_link_ns == pytest.approx(run["cct_ns"], rel=0.005)
    # The links into the hot leaf hold up what the paper has arrive: without them the model is far off, but for one switch.
    free = theory.fluid("rr").receiver(theory.hot)
    assert (apart(free, port).arrival > 1) == ("hosts_per_leaf" not in keys)


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table, a picture, a CSV file that agrees with them."""
    demand = write_matrix(tmp_path / "demand.csv", zipf(16, 1.0, 4_000_000, 4096, 3))
    out = saved_run(tmp_path, demand)
    assert verb.run(argparse.Namespace(folder=out, phase=1)) == 0
    printed = capsys.readouterr()
    assert not printed.err
    assert (out / "theory.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((out / "theory.csv").open()))
    peak = max(float(row["queue measured [B]"]) for row in rows)
    (line,) = (line for line in printed.out.splitlines() if line.startswith("hot queue [MB]"))
    assert float(line.split()[-1]) == pytest.approx(peak / 1e6, abs=0.006)
    first = (out / "theory.png").read_bytes()
    assert verb.run(argparse.Namespace(folder=out, phase=1)) == 0
    assert (out / "theory.png").read_bytes() == first
    # A demand that has changed is not modelled in place of the one that was run.
    demand.write_text(demand.read_text().replace("\n", "\n\n", 1))
    with pytest.raises(InputError, match="has changed"):
        verb.run(argparse.Namespace(folder=out, phase=1))
