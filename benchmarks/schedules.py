"""Every schedule on many demands: the tables of docs/schedules.md.

``.venv/bin/python benchmarks/schedules.py --data FOLDER --out results/schedules`` runs all cells (some 320, on all processors;
it may be interrupted and goes on where it was), writes schedules.csv there, and prints the tables. FOLDER holds the matrices of
OLMoE as CSV, which send 12 GB with 7168 B a token; here a twenty-eighth of that, 256 B.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from controller.demand import load_demand
from controller.schedule import make_plan, parse_schedule
from testbed.experiment import from_mapping
from testbed.grid.cells import Cell, cells_of
from testbed.grid.run import run_grid
from testbed.grid.store import Store
from testbed.workload.zipf import zipf

MTU = 4096
SENDER_BYTES = 8_000_000
TOKEN_BYTES = 256
SERVER_LINK_GBPS = 3600
FLAT = (
    "rr+nscc",
    "rr-bytes+nscc",
    "rr-bytes:demand+nscc",
    "rate",
    "rate:0.98",
    "spreadout",
    "spreadout:clock",
    "spreadout:free+nscc",
    "gmwd",
    "gmwd:clock",
    "chronos",
    "chronos:clock",
    "bvn",
    "bvn:clock",
    "bvn:free+nscc",
    "bvn:any:clock",
    "bvn:weight:clock",
)
"""What meets in queues has a control: without one it may be buried under its own trimmed headers."""
OF_SERVERS = ("rr+nscc", "rate", "fast", "fast:clock", "dfs", "dfs:clock")
MODES = ("barrier", "clock", "free")


@dataclass(frozen=True)
class Matrix:
    """One demand of the tables."""

    group: str
    name: str
    file: str
    unit: str
    token_bytes: int = 0
    gpus: int = 8


def matrices(data: Path, folder: Path, *, small: bool) -> list[Matrix]:
    found = [
        Matrix("OLMoE, 64 hosts", path.stem, str(path), "tokens", TOKEN_BYTES)
        for path in sorted(data.glob("*-L*-L*.csv"))
    ]
    if not found:
        sys.exit(f"{data} holds no matrices such as github-L7-L15.csv: give their folder as --data")
    for hosts in (16, 64, 128):
        for skew in (0, 0.25, 0.5, 1) if hosts == 64 else (0.25, 0.5, 1):
            file = folder / f"{hosts}-{skew:g}.csv"
            np.savetxt(file, zipf(hosts, skew, SENDER_BYTES, MTU, 1), fmt="%d", delimiter=",")
            gpus = 4 if hosts == 16 else 8
            name = f"s = {skew:g}" if skew else "uniform"
            found.append(Matrix(f"Zipf, {hosts} hosts", name, str(file), "wire-bytes", gpus=gpus))
    return [matrix for matrix in found if "16 hosts" in matrix.group or "github" in matrix.name] if small else found


def schedules_of(rows: str, *, of_servers: bool) -> list[str]:
    every = OF_SERVERS if of_servers else FLAT
    return [name for name in every if not rows or name in rows.split(",")]


def cells(matrix: Matrix, rows: str, *, of_servers: bool) -> list[Cell]:
    demand = {"file": matrix.file, "unit": matrix.unit} | (
        {"token_bytes": matrix.token_bytes} if matrix.token_bytes else {}
    )
    keys: dict[str, Any] = {"demand": [demand], "schedule": schedules_of(rows, of_servers=of_servers), "seed": 1}
    if of_servers:
        keys |= {"gpus_per_server": matrix.gpus, "server_link_gbps": SERVER_LINK_GBPS}
    return cells_of(from_mapping(keys), tables=(), label=f"{matrix.group} {matrix.name}")


def plan_ms(matrix: Matrix, schedule: str, known: dict[tuple[str, str, str, int], float], *, of_servers: bool) -> float:
    """Processor time to plan, which does not hang on how stages follow each other."""
    name, options = parse_schedule(schedule.partition("+")[0])
    planned = ":".join((name, *(option for option in options if option not in MODES)))
    gpus = matrix.gpus if of_servers else 1
    key = (matrix.group, matrix.name, planned, gpus)
    if key not in known:
        demand = load_demand(Path(matrix.file), unit=matrix.unit, token_bytes=matrix.token_bytes, hosts_per_server=gpus)
        speeds = [Fraction(800 * 10**9)] * demand.hosts
        begin, count = time.process_time(), 0
        while not count or time.process_time() - begin < 0.2:  # some kernels count in steps of 10 ms
            make_plan(planned, demand, speeds, gpus_per_server=gpus)
            count += 1
        known[key] = 1000 * (time.process_time() - begin) / count
    return known[key]


def row_of(matrix: Matrix, figures: dict[str, Any], schedule: str, plan: float, *, of_servers: bool) -> dict[str, Any]:
    if figures["delivered_bytes"] != figures["expected_bytes"]:
        sys.exit(f"{matrix.group} {matrix.name} {schedule}: bytes were lost")
    return {
        "group": matrix.group,
        "demand": matrix.name,
        "gpus_per_server": matrix.gpus if of_servers else 1,
        "schedule": schedule,
        "inflation_percent": round(100 * figures["inflation"], 2),
        "hot_queue_packets": -(-figures["hot_queue_max_bytes"] // MTU),
        "sent_again_percent": round(100 * figures["retransmissions"] / figures["packets"], 2),
        "plan_ms": round(plan, 1),
        "stages": figures["plan_stages"],
        "inner_us": round(sum(figures["phase_cct_ns"][::2]) / 1000, 1) if len(figures["phase_cct_ns"]) == 3 else 0,
    }


def shown(row: dict[str, Any]) -> str:
    ms = row["plan_ms"]
    plan = f"{ms / 1000:.1f} s" if ms >= 1000 else f"{ms:.0f} ms" if ms >= 1 else "< 1 ms"
    stages = f", {row['stages']} in {plan}" if row["stages"] else f", {plan}" if ms >= 0.05 else ""
    return f"{row['inflation_percent']:.1f} / {row['hot_queue_packets']}{stages}"


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """One a group of demands: over the bound [%] / hot queue [packets]; stages, time to plan."""
    lines: list[str] = []
    for group in dict.fromkeys(row["group"] for row in rows):
        own = [row for row in rows if row["group"] == group]
        names = list(dict.fromkeys(row["demand"] for row in own))
        lines += ["", f"### {group}", "", f"| schedule | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        for gpus in dict.fromkeys(row["gpus_per_server"] for row in own):
            if gpus > 1:
                lines.append(f"| *servers of {gpus}* |" + " |" * len(names))
            for schedule in dict.fromkeys(row["schedule"] for row in own if row["gpus_per_server"] == gpus):
                found = {
                    row["demand"]: shown(row)
                    for row in own
                    if row["schedule"] == schedule and row["gpus_per_server"] == gpus
                }
                lines.append(f"| `{schedule}` | " + " | ".join(found.get(name, "-") for name in names) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--small", action="store_true", help="16 hosts and one of the real matrices")
    parser.add_argument("--so-far", action="store_true", help="run nothing, and print what is there")
    parser.add_argument("--rows", default="", help="of which schedules; default: all")
    parser.add_argument("--jobs", type=int, default=0)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        chosen = matrices(arguments.data, Path(name), small=arguments.small)
        found = {
            (matrix, of): cells(matrix, arguments.rows, of_servers=of)
            for matrix in chosen
            for of in (False, True)
            if schedules_of(arguments.rows, of_servers=of)
        }
        store = Store(arguments.out)
        for group in dict.fromkeys(matrix.group for matrix in chosen) if not arguments.so_far else ():
            wanted = [cell for (matrix, _), some in found.items() if matrix.group == group for cell in some]
            run_grid(wanted, store, jobs=arguments.jobs)
        known: dict[tuple[str, str, str, int], float] = {}
        for (matrix, of), some in found.items():
            for cell, schedule in zip(some, schedules_of(arguments.rows, of_servers=of), strict=True):
                if not store.has(cell):  # with --so-far
                    continue
                plan = plan_ms(matrix, schedule, known, of_servers=of)
                rows.append(row_of(matrix, store.figures(cell), schedule, plan, of_servers=of))
    with open(arguments.out / "schedules.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(tables(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
