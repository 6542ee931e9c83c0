"""The comparison that a command prints."""

from __future__ import annotations

from pathlib import Path

from testbed.experiment import from_mapping
from testbed.job import prepare
from testbed.measure.results import empty_figures
from testbed.report.table import comparison


def test_units_and_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("0,8192\n4096,0\n")
    scenario = prepare(from_mapping({"demand": [{"file": str(tmp_path / "m.csv"), "unit": "wire-bytes"}]}))
    run = {
        **empty_figures(2),
        "run": "rr",
        "cct_ns": None,
        "inflation": 0.0125,
        "hot_queue_max_bytes": 3 * 4096 + 1,
        "fabric_queue_max_bytes": 4096,
        "total_queue_max_bytes": 2_500_000,
        "wall_s": 1.26,
    }
    rows = {line[:26].strip(): line[26:].strip() for line in comparison(scenario, [run]).splitlines()[4:]}
    assert rows["CCT [us]"] == "-"
    assert rows["CCT over bound [%]"] == "1.25"
    assert rows["hot queue [packets]"] == "4"
    assert rows["hot queue [MB]"] == "0.012"
    assert rows["hot queue at"] == "-"
    assert rows["deepest inner [packets]"] == "1"
    assert rows["all queues [MB]"] == "2.500"
    assert rows["wall time [s]"] == "1.3"
