"""Figures from grids: killed, interrupted, spread over a cluster, they are the same to the byte."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from controller.cli.main import main
from testbed.runner import WALL_FIGURES
from tests.emulation.conftest import write_matrix

COMMAND = (sys.executable, "-m", "controller.cli.main", "figure")
TINY = ("3", "--hosts", "4", "--bytes", "80e3", "--s", "0.5", "--seeds", "3", "--lb", "ops,ecmp")
"""Twelve cells of a second each."""
CELLS = 12


def figure(out: Path, *words: str) -> None:
    assert main(["figure", *words, "--out", str(out)]) == 0


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def start(out: Path, finished: int) -> subprocess.Popen[str]:
    """The tiny grid in a process of its own, when so many of its cells have run."""
    process = subprocess.Popen([*COMMAND, *TINY, "--out", str(out)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while len(list(out.glob("cells/*/result.json"))) < finished:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny grid, run without a break."""
    out = tmp_path_factory.mktemp("grid") / "whole"
    figure(out, *TINY)
    return out


def test_a_grid_that_was_killed_goes_on_and_ends_the_same(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "killed"
    process = start(out, CELLS // 2)
    process.kill()
    process.communicate()
    finished = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/result.json")}
    assert CELLS // 2 <= len(finished) < CELLS
    assert not (out / "figure-3.csv").exists()
    (out / "cells" / next(iter(finished)).parent.name / ".result.json.1").write_text("half of it")

    figure(out, *TINY)
    assert f"note: {len(finished)} of {CELLS} cells are there already" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert tree(out) == tree(whole)


def test_ctrl_c_ends_it_at_once_and_keeps_what_had_finished(tmp_path: Path) -> None:
    process = start(tmp_path, 2)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert time.monotonic() - begin < 2
    assert process.returncode == 130
    assert error.splitlines()[-1] == "incastfree: interrupted; what had finished is kept"
    assert 2 <= len(list(tmp_path.glob("cells/*/result.json"))) < CELLS


def test_a_cluster_gives_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="needs the Python package distributed (extra dask)")
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster:
        figure(tmp_path / "cluster", *TINY, "--dask", cluster.scheduler_address)
    assert tree(tmp_path / "cluster") == tree(whole)


def test_ctrl_c_ends_what_runs_on_a_cluster(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The command ends within 2 s, and the workers, which live on, soon have no machine left."""
    distributed = pytest.importorskip("distributed", reason="needs the Python package distributed (extra dask)")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        words = ["3", "--hosts", "64", "--bytes", "30e6", "--s", "0.5", "--seeds", "1", "--lb", "ops"]
        process = subprocess.Popen([*COMMAND, *words, "--out", str(tmp_path), "--dask", cluster.scheduler_address])
        workers = {worker.pid for worker in cluster.workers.values()}
        wait_until(lambda: len(machines(workers)) >= 2)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert time.monotonic() - begin < 2.5
        wait_until(lambda: not machines(workers))
    assert not list(tmp_path.glob("cells/*/result.json"))
    capfd.readouterr()


def machines(workers: set[int]) -> list[int]:
    """Processes that keep a virtual machine for one of these workers."""
    parents = {}
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if b"supervise.py" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return [pid for pid in found if parents[pid] in workers]


def wait_until(condition: Callable[[], bool], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_every_cell_is_what_it_is_named_by(whole: Path) -> None:
    """No wall time, no path; the table names every cell; the means are those of the cells."""
    cells = table(whole / "figure-3-cells.csv")
    results = {path.parent.name: json.loads(path.read_text())["runs"][0] for path in whole.glob("cells/*/result.json")}
    assert {cell["address"] for cell in cells} == set(results)
    assert len(results) == CELLS
    for result in results.values():
        assert not set(WALL_FIGURES) & set(result)
        assert str(whole) not in json.dumps(result)
        assert "incastfree-" not in json.dumps(result)
        assert result["delivered_bytes"] == result["expected_bytes"]
    for row in table(whole / "figure-3.csv"):
        assert (row["popularity_seeds"], row["run_seeds"], row["runs"]) == ("1-3", "1-3", "3")
        own = [
            100 * result["inflation"]
            for result in results.values()
            if (result["run"], result["lb"]) == (row["run"], row["lb"])
        ]
        assert len(own) == 3
        assert float(row["inflation_mean_percent"]) == pytest.approx(np.mean(own), abs=1e-4)
        # 4.303: Student's t of two degrees of freedom
        expected = 4.3027 * np.std(own, ddof=1) / np.sqrt(3)
        assert float(row["ci95_half_width_percent"]) == pytest.approx(expected, abs=2e-4)


@pytest.fixture(scope="module")
def matrices(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    folder = tmp_path_factory.mktemp("matrices")
    skewed = np.tile(np.array([900, 50, 20, 300, 10, 5, 80, 40]), (8, 1))
    return [
        write_matrix(folder / f"{name}.csv", amounts) for name, amounts in (("skewed", skewed), ("turned", skewed.T))
    ]


def test_quick_figures(tmp_path: Path, matrices: Sequence[Path]) -> None:
    """All four, as --quick makes them, with the load balancers that need no switch of their own."""
    tokens = ("--unit", "tokens", "--token-bytes", "7168")
    given = [word for file in matrices for word in ("--demand", str(file))]
    figure(tmp_path, "1", "--quick", "--lb", "ops,ecmp")
    figure(tmp_path, "2", "--quick", "--lb", "ops,ecmp", *given, *tokens)
    figure(tmp_path, "3", "--quick", "--lb", "ops,ecmp")
    figure(tmp_path, "4", "--quick")
    for number in (1, 2, 3, 4):
        assert (tmp_path / f"figure-{number}.png").read_bytes().startswith(b"\x89PNG")

    queue = table(tmp_path / "figure-1.csv")
    assert {(row["run"], row["lb"]) for row in queue} == {
        (run, lb) for run in ("rr+nscc", "rr", "rr, unlimited queues") for lb in ("ops", "ecmp")
    }
    deepest = {
        run: max(float(row["queue_max_packets"]) for row in queue if (row["run"], row["lb"]) == (run, "ops"))
        for run in ("rr+nscc", "rr", "rr, unlimited queues")
    }
    assert deepest["rr+nscc"] <= 201
    assert deepest["rr, unlimited queues"] > 3 * deepest["rr"]  # what the limit cuts off

    real = table(tmp_path / "figure-2.csv")
    assert [(row["demand"], row["run"], row["lb"]) for row in real] == [
        (name, run, lb) for name in ("skewed", "turned") for lb in ("ops", "ecmp") for run in ("rr+nscc", "rate")
    ]
    bounds = [8 * int(row["wire_bytes"]) / 800e9 * 1e6 / 8 for row in real]  # were all hosts equally loaded
    assert all(float(row["lower_bound_us"]) > bound for row, bound in zip(real, bounds, strict=True))
    assert {row["divided_by"] for row in real} == {"2"}  # 80 MB each

    scale = table(tmp_path / "figure-3.csv")
    assert len(scale) == 2 * 2 * 2 * 2
    assert {row["bytes_per_sender"] for row in scale} == {"6000000"}

    use = table(tmp_path / "figure-4.csv")
    for run in ("rr+nscc", "rate"):
        own = [row for row in use if row["run"] == run]
        bound_us = float(own[0]["lower_bound_us"])
        middle = [row for row in own if 0.3 * bound_us < float(row["begin_us"]) < 0.7 * bound_us]
        # The hottest link is busy all the time, whatever runs; the others only as much as R says, when paced.
        assert np.mean([float(row["hot_percent"]) for row in middle]) > 95
        if run == "rate":
            mean = 100 * int(own[0]["wire_bytes"]) * 8 / (800e3 * 16 * bound_us)
            assert np.mean([float(row["mean_percent"]) for row in middle]) == pytest.approx(mean, rel=0.05)
