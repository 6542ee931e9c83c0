"""Holds runs against the reference simulator's figures (uet-htsim; docs/reference.md has them).

    .venv/bin/python benchmarks/reference.py --hosts 16 --s 0.25 --run rr+nscc --lb reps --seeds 12

A popularity order, path hashes and marks a seed; 30 MB a sender, Zipf over the receivers, N=16 on 4 leaves, more hosts on
leaves of 8. Prints a line a seed and the mean with its standard error: CCT over the bound at the last ACK, share of data
packets NACKed; and the reference's mean beside it, where it was measured.
"""

from __future__ import annotations

import argparse
import os
import queue
import statistics
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from testbed.experiment import from_mapping
from testbed.runner import run_schedule
from testbed.scenario import prepare
from testbed.workload.zipf import zipf

MTU = 4096
REFERENCE = {
    (16, 1.0, "ops"): (1.33, 1.00, 1.51),
    (16, 1.0, "reps"): (1.27, 0.93, 1.54),
    (16, 1.0, "ar"): (1.15, 0.95, 1.31),
    (16, 0.5, "ops"): (2.51, 1.80, 2.82),
    (16, 0.5, "reps"): (3.46, 2.95, 4.46),
    (16, 0.5, "ar"): (2.48, 1.95, 2.95),
    (16, 0.25, "ops"): (3.60, 2.33, 4.47),
    (16, 0.25, "reps"): (3.86, 2.72, 4.60),
    (16, 0.25, "ar"): (3.65, 3.11, 4.78),
}
"""Of rr+nscc, by hosts, s and load balancing: mean, least and most of five seeds, in % over the bound."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--s", type=float, default=0.25)
    parser.add_argument("--run", default="rr+nscc", help="SCHEDULE or SCHEDULE+CC")
    parser.add_argument("--lb", default="ops", help="load balancing")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--demand", type=Path, help="this matrix (wire bytes) for all seeds")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any key of an experiment")
    arguments = parser.parse_args()
    keys = {name: _value(text) for name, _, text in (item.partition("=") for item in arguments.set)}
    if keys.get("loss_recovery") == "none":
        parser.error("loss_recovery none has no last ACK to compare")
    processors: queue.SimpleQueue[int] = queue.SimpleQueue()
    for cpu in sorted(os.sched_getaffinity(0)):
        processors.put(cpu)

    def run(seed: int) -> dict[str, Any]:
        cpu = processors.get()
        try:
            with tempfile.TemporaryDirectory() as folder:
                file = arguments.demand or Path(folder) / "demand.csv"
                if not arguments.demand:
                    np.savetxt(file, zipf(arguments.hosts, arguments.s, 30_000_000, MTU, seed), fmt="%d", delimiter=",")
                table = {"file": str(file.resolve()), "unit": "wire-bytes"}
                scenario = prepare(from_mapping({"demand": [table], "seed": seed, "lb": arguments.lb, **keys}))
                return run_schedule(scenario, arguments.run, cpu, lambda *_: None, threading.Event()).figures
        finally:
            processors.put(cpu)

    seeds = range(arguments.first, arguments.first + arguments.seeds)
    with ThreadPoolExecutor(processors.qsize()) as pool:
        runs = list(pool.map(run, seeds))
    print(
        f"{'seed':>4} {'LB us':>9} {'last ACK us':>12} {'over %':>7} {'NACKed %':>9} {'hot pkts':>9} {'drops':>6} {'RTO':>5} {'s':>6}"
    )
    for seed, figures in zip(seeds, runs, strict=True):
        print(
            f"{seed:4} {figures['lower_bound_ns'] / 1000:9.1f} {figures['cct_last_ack_ns'] / 1000:12.2f} "
            f"{100 * figures['inflation_last_ack']:7.2f} {100 * figures['nacked_share']:9.2f} "
            f"{figures['hot_queue_max_bytes'] / MTU:9.1f} {figures['drops']:6} {figures['timeouts']:5} {figures['engine_s']:6.2f}"
        )
    over = [100 * figures["inflation_last_ack"] for figures in runs]
    nacked = [100 * figures["nacked_share"] for figures in runs]
    mean = statistics.mean(over)
    error = statistics.stdev(over) / len(over) ** 0.5 if len(over) > 1 else float("nan")
    print(
        f"N={arguments.hosts} s={arguments.s:g} {arguments.run} {arguments.lb}: mean {mean:.2f} +- {error:.2f} % "
        f"[{min(over):.2f}-{max(over):.2f}], NACKed {statistics.mean(nacked):.2f} %"
    )
    reference = REFERENCE.get((arguments.hosts, arguments.s, arguments.lb)) if arguments.run == "rr+nscc" else None
    if reference and not keys:
        theirs, least, most = reference
        print(f"reference {theirs:.2f} % [{least:.2f}-{most:.2f}]: {mean - theirs:+.2f}")
    return 0


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


if __name__ == "__main__":
    sys.exit(main())
