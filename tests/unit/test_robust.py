"""Robustness: which cells a table has, what it leaves out, its arithmetic, and what the verb refuses. Nothing runs here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.cli.main import main
from controller.errors import CannotRunError, InputError
from testbed.cli import robust
from testbed.figures.options import Options
from testbed.grid.cells import RESULT, Cell
from testbed.grid.store import Store
from testbed.robustness.disturbances import DISTURBANCES
from testbed.robustness.picture import draw
from testbed.robustness.sweep import NOTHING, markdown, sweep, table
from testbed.stage.virtual import kernel


@pytest.fixture(autouse=True)
def some_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses name the kernel; here none need be built."""
    monkeypatch.setattr(kernel, "find", lambda: kernel.Kernel(Path("linux"), "6.12", "key"))


def options(folder: Path, seeds: int = 1, **keys: Any) -> Options:
    return Options((), keys, (), (16,), (0.5,), (400_000,), seeds, False, folder)


def cells_of(folder: Path, schedules: list[str], against: list[str], **keys: Any) -> dict[tuple[str, str, str], Cell]:
    grid = sweep(options(folder, **keys), schedules, against)
    return {(row["against"], row["level"], row["run"]): cell for row, cell in grid.cells}


@pytest.mark.parametrize("topology", ["leaf-spine", "fat-tree"])
@pytest.mark.parametrize("name", list(DISTURBANCES))
def test_each_disturbance_can_be(tmp_path: Path, topology: str, name: str) -> None:
    """Each level is an experiment, unlike the other levels, and unlike the undisturbed one but for a buffer that is as it was."""
    grid = sweep(options(tmp_path, topology=topology, gpus_per_server=4, server_link_gbps=3600), ["rate"], [name])
    assert not grid.left_out
    assert [row["against"] for row, _ in grid.cells] == [NOTHING, *(name for _ in DISTURBANCES[name].levels)]
    undisturbed, *others = [cell.address for _, cell in grid.cells]
    assert len(set(others)) == len(others)
    assert undisturbed not in others or name == "buffers"


def test_the_undisturbed_run_is_one_cell_for_all(tmp_path: Path) -> None:
    grid = sweep(options(tmp_path, seeds=2), ["rr", "rate"], ["jitter", "control"])
    assert [(row["run"], row["seed"]) for row, _ in grid.cells if row["against"] == NOTHING] == [
        *(("rr", 1), ("rate", 1)),
        *(("rr", 2), ("rate", 2)),
    ]
    assert len(sweep(options(tmp_path), ["rr", "rate"], ["jitter", "control"], strongest=True).cells) == 2 + 2 + 1


def test_what_disturbances_do(tmp_path: Path) -> None:
    found = cells_of(tmp_path, ["rate"], list(DISTURBANCES))
    keys = {place[:2]: cell.keys for place, cell in found.items()}
    assert keys["jitter", "30"]["start_jitter_ns"] == 30_000
    ways = keys["delays", "16"]["link_ns_of"]
    assert [ways[f"leaf2-spine{number}"] for number in range(1, 5)] == [1000, 6333, 11_666, 17_000]
    assert keys["delays", "16"]["queue_bytes"] == 200 * 4096
    background = keys["background", "20"]["background"]
    assert [(flow["source"], flow["destination"], flow["rate_gbps"]) for flow in background[:9:8]] == [
        ("h1", "h9", 160),
        ("h9", "h1", 160),
    ]
    assert keys["slow", "one at 1/4"]["link_gbps_of"] == {"h1": 200}
    assert keys["slow", "1 in 4 at 1/2"]["link_gbps_of"] == dict.fromkeys(("h1", "h5", "h9", "h13"), 400)
    assert keys["uplink", "50"]["link_failure"] == [{"link": "leaf1-spine1", "down_ns": 0, "up_ns": 50_000}]
    assert (keys["stale", "5"]["estimate_stale"], keys["wrong", "50"]["estimate_error"]) == (0.05, 0.5)
    assert (keys["steps", "2^20"]["nic"], keys["steps", "2^20"]["control_delay_ns"]) == ("doca-model", 0)
    buffers = [keys["buffers", packets] for packets in ("1000", "10")]
    assert [(each["queue_bytes"], each["ecn_kmin_bytes"], each["ecn_kmax_bytes"]) for each in buffers] == [
        (4_096_000, 40 * 4096, 160 * 4096),
        (40_960, 8192, 32_768),
    ]
    assert keys["control", "100"]["control_delay_ns"] == 100_000


def test_what_a_disturbance_cannot_touch_is_left_out_with_its_reason(tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="needs scipy (extra schedules): bvn finds its matchings with it")
    grid = sweep(options(tmp_path), ["rr", "rate", "bvn"], ["stale", "steps", "control", "jitter"], strongest=True)
    left = {(row["against"], row["run"]) for row, _ in grid.cells if row["against"] != NOTHING}
    assert left == {
        *(("stale", "rate"), ("stale", "bvn"), ("steps", "rate"), ("control", "rate"), ("control", "bvn")),
        *(("jitter", run) for run in ("rr", "rate", "bvn")),
    }
    assert grid.left_out == [
        "rr against stale is left out: it needs no plan",
        "rr against steps is left out: it sets no rates",
        "bvn against steps is left out: it sets no rates",
        "rr against control is left out: it needs no plan",
    ]


def test_a_run_that_cannot_be_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    grid = sweep(options(tmp_path), ["bvn+fallback", "rate"], ["jitter"], strongest=True)
    assert grid.left_out == [
        "bvn+fallback is left out: bvn+fallback: fallback sets rates, which stages have none of; give one of windows"
    ]
    assert {row["run"] for row, _ in grid.cells} == {"rate"}
    with pytest.raises(InputError, match="fallback sets rates"):
        sweep(options(tmp_path), ["bvn+fallback"], ["jitter"])


def test_a_run_that_cannot_be_disturbed_is_left_out_for_that(tmp_path: Path) -> None:
    """A DPU has no dcqcn; the paced run beside it has one."""
    grid = sweep(options(tmp_path), ["rate+dcqcn", "rate"], ["steps"])
    assert [row["run"] for row, _ in grid.cells if row["against"] == "steps"] == ["rate"]
    (line,) = grid.left_out
    assert line.startswith("rate+dcqcn against steps 2^20 is left out: nic doca-model: rate+dcqcn sets rates")


def kept(
    folder: Path, figures: dict[tuple[str, int], dict[str, Any]]
) -> tuple[list[tuple[dict[str, Any], Cell]], Store]:
    """Cells of rate against nothing and jitter, with results that are given by what they are against and seed."""
    grid = sweep(options(folder, seeds=2), ["rate"], ["jitter"], strongest=True)
    store = Store(folder / "out")
    for row, cell in grid.cells:
        store.keep(cell, {RESULT: json.dumps({"runs": [figures[row["against"], row["seed"]]]}).encode()})
    return grid.cells, store


def figures(cct_ns: float, trims: int = 0) -> dict[str, Any]:
    return {
        **{
            "cct_ns": cct_ns,
            "inflation": cct_ns / 1000 - 1,
            "hot_queue_max_bytes": 8192,
            "fabric_queue_max_bytes": 4096,
        },
        # Twice as many trims as of the demand: the others are of a background.
        **{
            "packets": 400,
            "trims": 2 * trims,
            "drops": 0,
            "lost": 3,
            "retransmissions": trims + 5,
            "duplicates": 5,
            "timeouts": 0,
        },
    }


def test_means_are_over_seeds_and_each_is_compared_with_itself(tmp_path: Path) -> None:
    own = {
        **{(NOTHING, 1): figures(1000), (NOTHING, 2): figures(1100)},
        **{("jitter", 1): figures(2000, trims=4), ("jitter", 2): figures(1650, trims=8)},
    }
    cells, store = kept(tmp_path, own)
    before, after = table(cells, store)
    assert (before["against"], before["runs"], before["ended"], before["slower_mean_percent"]) == (NOTHING, 2, 2, 0)
    assert after["inflation_mean_percent"] == pytest.approx((100 + 65) / 2)
    assert after["slower_mean_percent"] == pytest.approx((100 + 50) / 2)
    # Student's t of one degree of freedom, by half the difference of two values.
    assert after["slower_ci95_half_width_percent"] == pytest.approx(12.7062 * 25, rel=1e-4)
    assert (after["loss_mean_percent"], after["trims_mean"]) == (1.5, 12)
    assert (after["hot_queue_mean_packets"], after["inner_queue_mean_packets"]) == (2, 1)
    assert draw([before, after], "title").startswith(b"\x89PNG")
    assert draw([before, after], "title") == draw([before, after], "title")
    lines = markdown([before, after]).splitlines()
    assert lines[0] == "| against | level | `rate` |"
    # Student's t again, by half of 10 and of 35.
    assert lines[2:] == ["| `nothing` | none | 5.0 ± 63.5 / 2 / 0.0 |", "| `jitter` | 100 | 82.5 ± 222.4 / 2 / 1.5 |"]


def test_a_run_that_does_not_end_is_counted_and_no_more(tmp_path: Path) -> None:
    gave_up = {"cct_ns": None, "inflation": None, "gave_up": "many times the lower bound"}
    own = {(NOTHING, 1): figures(1000), (NOTHING, 2): gave_up, ("jitter", 1): gave_up, ("jitter", 2): gave_up}
    cells, store = kept(tmp_path, own)
    before, after = table(cells, store)
    assert (before["runs"], before["ended"], before["inflation_mean_percent"]) == (2, 1, 0)
    assert before["inflation_ci95_half_width_percent"] is None
    assert (after["ended"], after["cct_us"], after["loss_mean_percent"]) == (0, None, None)
    assert markdown([before, after]).splitlines()[2:] == [
        "| `nothing` | none | 0.0 / 2 / 0.0 (1 of 2 ended) |",
        "| `jitter` | 100 | 0 of 2 ended |",
    ]
    assert draw([before, after], "title").startswith(b"\x89PNG")


def test_a_cell_without_all_figures_is_damaged(tmp_path: Path) -> None:
    lacking = figures(1000)
    del lacking["trims"]
    cells, store = kept(tmp_path, dict.fromkeys(((NOTHING, 1), (NOTHING, 2), ("jitter", 1), ("jitter", 2)), lacking))
    with pytest.raises(CannotRunError, match=r"result\.json is damaged: delete the folder"):
        table(cells, store)


def test_a_cell_whose_bytes_are_lost_for_good_is_not_damaged(tmp_path: Path) -> None:
    lost = {**figures(1000), "cct_ns": None, "inflation": None, "delivered_bytes": 1, "expected_bytes": 2}
    cells, store = kept(tmp_path, dict.fromkeys(((NOTHING, 1), (NOTHING, 2), ("jitter", 1), ("jitter", 2)), lost))
    assert store.has(cells[0][1])
    with pytest.raises(
        CannotRunError, match="lost packets for good and has no CCT: give loss_recovery sack or timeout"
    ):
        table(cells, store)


def test_what_a_network_lacks_is_left_out_with_its_reason(tmp_path: Path) -> None:
    """Four hosts on one leaf, in one server of them all but two."""
    small = Options((), {"hosts_per_leaf": 4, "gpus_per_server": 3}, (), (4,), (0.5,), (400_000,), 1, False, tmp_path)
    grid = sweep(small, ["rate"], ["delays", "uplink", "stale", "jitter"], strongest=True)
    assert [row["against"] for row, _ in grid.cells] == [NOTHING, "jitter"]
    assert grid.left_out == [
        "delays is left out: no switch of this network has two ways up",
        "uplink is left out: no switch of this network has a way up",
        "stale is left out: with one server there are no other favourites",
    ]


def test_a_slow_host_is_slower_than_it_was(tmp_path: Path) -> None:
    found = cells_of(tmp_path, ["rate"], ["slow"], link_gbps_of={"h1": 100})
    assert found["slow", "1 in 4 at 1/4", "rate"].keys["link_gbps_of"] == {"h1": 25, "h5": 200, "h9": 200, "h13": 200}


def test_a_schedule_of_ones_own_that_fails_under_a_disturbance_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "equal.py"
    file.write_text(
        """
from dataclasses import replace
from controller.errors import InputError
from controller.schedule import spreadout

def plan(demand, setting):
    if len(set(setting.speeds_bps)) > 1:
        raise InputError("speeds differ")
    return spreadout.SCHEDULE.plan(demand, setting)

SCHEDULE = replace(spreadout.SCHEDULE, name="equal", plan=plan)
"""
    )
    grid = sweep(options(tmp_path), [str(file), "rate"], ["slow"], strongest=True)
    assert [(row["against"], row["run"] == "rate") for row, _ in grid.cells] == [
        *((NOTHING, False), (NOTHING, True)),
        ("slow", True),
    ]
    assert any("against slow 1 in 4 at 1/4 is left out" in line and "speeds differ" in line for line in grid.left_out)


WRONG = {
    "disturbance": (["--against", "jitter,rain"], "--against: 'rain' is not known: give a list of jitter, delays,"),
    "untouched": (
        ["--schedule", "rr", "--against", "stale"],
        "no disturbance of these touches any of these runs: rr against stale is left out: it needs no plan",
    ),
    "twice": (["--against", "jitter,jitter"], "names something twice"),
    "no schedule": (["--schedule", "soon"], "schedule 'soon' is not known"),
    "every run": (["--queue-bytes", "3"], "queue_bytes is 3: no packet of 4096 B fits"),
    "two matrices": (["--demand", "a.csv", "--demand", "b.csv"], "a robustness table is of one matrix"),
    "hosts twice": (["--demand", "a.csv", "--hosts", "8"], "--hosts: --demand says it; leave it out"),
    "unit of nothing": (["--unit", "tokens"], "--unit says how the file of --demand is read, give one"),
    "no seeds": (["--seeds", "0"], "--seeds 0: give 1 to 1000"),
    "no packet": (["--bytes", "0"], "--bytes 0: give at least one packet"),
    "part of a packet": (["--bytes", "4095"], "--bytes 4095: give at least one packet"),
    "open loop": (["--loss-recovery", "none"], "--loss-recovery none: what a disturbance takes would never come"),
    "half an option": (["--seed", "2"], "unrecognized arguments: --seed 2"),
    "too many hosts": (["--hosts", "5000"], "--hosts 5000: give 2 to 1000"),
    "no file": (["--demand", "nowhere.csv"], "nowhere.csv"),
    "jobs": (["--jobs", "2", "--dask", "tcp://x:1"], "--jobs is for this machine"),
    "here": (["--out", "."], "--out names no folder of its own"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_bad_input_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, message = WRONG[name]
    try:
        status: object = main(["robust", "--out", str(tmp_path / "out"), *words])
    except SystemExit as end:  # argparse's
        status = end.code
    assert status == 2
    error = capsys.readouterr().err
    assert error.startswith("incastfree")
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "out").exists()


def test_the_default_is_what_the_documentation_says() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "robustness.md").read_text()
    for name in (*robust.SCHEDULES, *DISTURBANCES):
        assert f"`{name}`" in text
