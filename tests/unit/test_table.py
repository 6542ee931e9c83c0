"""The comparison that a command prints."""

from __future__ import annotations

from pathlib import Path

from testbed.experiment import from_mapping
from testbed.measure.results import empty_figures
from testbed.report.table import break_even, comparison
from testbed.scenario import prepare


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


def test_long_names_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("0,8192\n4096,0\n")
    scenario = prepare(from_mapping({"demand": [{"file": str(tmp_path / "m.csv"), "unit": "wire-bytes"}]}))
    names = ["rate+fallback", "rate+dcqcn-paper", "rr"]
    lines = comparison(scenario, [{**empty_figures(2), "run": name, "wall_s": 1.0} for name in names]).splitlines()
    assert lines[3].split() == names
    assert len({len(line) for line in lines[3:]}) == 1


def test_break_even_of_a_control_delay(tmp_path: Path) -> None:
    """T* = 1000 packets x 40.96 ns; 1 % against 6 % without the 10 us of delay: 10 us / 0.05 = 200 us, 20 MB at 800 Gb/s."""
    (tmp_path / "m.csv").write_text(f"0,{1000 * 4096}\n4096,0\n")
    demand = [{"file": str(tmp_path / "m.csv"), "unit": "wire-bytes"}]
    scenario = prepare(from_mapping({"demand": demand, "control_delay_ns": 10_000}))
    rate = {**empty_figures(2), "run": "rate", "schedule": "rate", "cct_ns": 40_960 * 1.01 + 10_000}
    control = {**empty_figures(2), "run": "rr+nscc", "schedule": "rr", "cct_ns": 40_960 * 1.06, "inflation": 0.06}
    lines = break_even(scenario, [control, rate])
    assert lines[1:] == [
        "rate breaks even with rr+nscc at M = 20 MB (here 4.1 MB), if inflation is the same at that size"
    ]
    control["inflation"] = 0.01
    assert "gains nothing on rr+nscc" in break_even(scenario, [control, rate])[1]
    assert break_even(prepare(from_mapping({"demand": demand})), [control, rate]) == []


def test_what_paces_is_said_where_it_is_not_the_ebpf_nic(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("0,8192\n4096,0\n")
    demand = [{"file": str(tmp_path / "m.csv"), "unit": "wire-bytes"}]
    run = {**empty_figures(2), "run": "rate", "schedule": "rate", "wall_s": 1.0}
    first = comparison(prepare(from_mapping({"demand": demand, "nic": "doca-model"})), [run]).splitlines()[0]
    assert first.endswith(", seed 0, paced by doca-model (docs/doca.md), control delay 13200 us")
    assert "paced by" not in comparison(prepare(from_mapping({"demand": demand})), [run]).splitlines()[0]
