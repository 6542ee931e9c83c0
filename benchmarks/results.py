"""Where pacing wins, and by how much: the tables of docs/results.md.

``.venv/bin/python benchmarks/results.py --out results/findings`` runs all cells (some hundreds, on all processors; it may be
interrupted and goes on where it was) and prints the tables. Mean over the seeds, with the 95 % interval of Student's t.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from testbed.experiment import from_mapping
from testbed.grid.cells import Cell, cells_of
from testbed.grid.run import run_grid
from testbed.grid.store import Store
from testbed.workload.zipf import zipf

MTU = 4096
MB = 1_000_000
T_95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57}
"""Student's t, two-sided 95 %, by degrees of freedom."""


@dataclass(frozen=True)
class Row:
    """One line of a table: what is varied, and the experiment."""

    label: str
    hosts: int = 16
    skew: float = 0.5
    sender_bytes: int = 30 * MB
    keys: tuple[tuple[str, Any], ...] = ()
    runs: tuple[str, str] = ("rr+nscc", "rate")


def with_keys(**keys: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(keys.items())


TABLES: dict[str, list[Row]] = {
    "Skew": [Row(f"s = {s:g}", skew=s) for s in (0, 0.25, 0.5, 1, 1.5)],
    "Message size (s = 0.5)": [Row(f"{mb:g} MB a sender", sender_bytes=int(mb * MB)) for mb in (0.5, 1, 3, 6, 12, 30)],
    "Hosts (s = 0.5, 12 MB a sender)": [
        Row(f"N = {hosts}", hosts=hosts, sender_bytes=12 * MB) for hosts in (8, 16, 32, 64, 128)
    ],
    "Buffer, trimming (s = 0.5)": [
        Row(f"{packets} packets", keys=with_keys(queue_bytes=packets * MTU)) for packets in (25, 50, 100, 200, 1000)
    ],
    "Buffer, drops found by SACK (s = 0.5)": [
        Row(f"{packets} packets", keys=with_keys(queue_bytes=packets * MTU, trimming=False))
        for packets in (25, 50, 100, 200, 1000)
    ],
    "Loss recovery without trimming (queue of five BDP, s = 0.5)": [
        Row(name, keys=with_keys(trimming=False, loss_recovery=name)) for name in ("sack", "timeout")
    ],
    "Random loss on the first link (s = 0.5)": [
        Row(f"{100 * p:g} %", keys=with_keys(loss_data=p)) for p in (0.0001, 0.001, 0.01)
    ],
}


def cells(row: Row, seed: int, folder: Path) -> list[Cell]:
    file = folder / f"{row.hosts}-{row.skew}-{row.sender_bytes}-{seed}.csv"
    if not file.exists():
        np.savetxt(file, zipf(row.hosts, row.skew, row.sender_bytes, MTU, seed), fmt="%d", delimiter=",")
    demand = [{"file": str(file), "unit": "wire-bytes"}]
    experiment = from_mapping({"demand": demand, "schedule": list(row.runs), "seed": seed, **dict(row.keys)})
    return cells_of(experiment, tables=(), label=f"{row.label} seed {seed}")


def interval(values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.2f}"
    half = T_95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.2f} ± {half:.2f}"


def line(row: Row, pairs: Iterable[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """Inflation in percent, the difference of both in points, hot queue, mean receiver done over the bound, resent share."""
    found = list(pairs)
    control = [100 * ours["inflation"] for ours, _ in found]
    paced = [100 * theirs["inflation"] for _, theirs in found]
    gain = [a - b for a, b in zip(control, paced, strict=True)]
    queues = [statistics.fmean(each[side]["hot_queue_max_bytes"] / MTU for each in found) for side in (0, 1)]
    done = [
        statistics.fmean(100 * each[side]["receiver_done_ns_mean"] / each[side]["lower_bound_ns"] for each in found)
        for side in (0, 1)
    ]
    again = [
        statistics.fmean(100 * each[side]["retransmissions"] / each[side]["packets"] for each in found)
        for side in (0, 1)
    ]
    return (
        f"| {row.label} | {interval(control)} | {interval(paced)} | {interval(gain)} | {queues[0]:.0f} / {queues[1]:.0f} | "
        f"{done[0]:.0f} / {done[1]:.0f} | {again[0]:.2f} / {again[1]:.2f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    if not 1 <= arguments.seeds <= len(T_95) + 1:
        parser.error(f"--seeds: give 1 to {len(T_95) + 1}")
    with tempfile.TemporaryDirectory() as name:
        all_cells = {
            (title, row, seed): cells(row, seed, Path(name))
            for title, rows in TABLES.items()
            for row in rows
            for seed in range(arguments.seeds)
        }
        store = Store(arguments.out)
        run_grid([cell for both in all_cells.values() for cell in both], store)
    for title, rows in TABLES.items():
        print(f"\n### {title}\n")
        print(
            "| | rr+nscc [%] | rate [%] | gain [points] | hot queue [packets] | receivers done [% of bound] | sent again [%] |"
        )
        print("|---|---|---|---|---|---|---|")
        for row in rows:
            pairs = []
            for seed in range(arguments.seeds):
                ours, theirs = (store.figures(cell) for cell in all_cells[title, row, seed])
                pairs.append((ours, theirs))
            print(line(row, pairs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
