"""What rate-based pacing leaves in the queues, over seeds: ``hot_queue.py FOLDER [--seeds 5] [--open-loop]``.

FOLDER holds olmoe/*.csv (tokens of 7,168 B) and zipf/*.csv (wire bytes). One line a matrix and phase: the hot queue in
packets for each seed, how much later than the lower bound the collective ended, how busy its bottleneck was, and that
every byte arrived. One run a processor at a time. ACKs share the ports with data, and R leaves them no room: with
``--open-loop`` there are none, and what is left is the pacing's own.
"""

from __future__ import annotations

import argparse
import os
import queue
import statistics
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from testbed.experiment import from_mapping
from testbed.runner import run_schedule
from testbed.scenario import prepare

MTU = 4096
OPEN_LOOP = {"loss_recovery": "none", "queue_bytes": 0, "ecn_kmax_bytes": 0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--schedule", default="rate")
    parser.add_argument("--open-loop", action="store_true", help="no ACKs, no limit of queues, no marks")
    arguments = parser.parse_args()
    keys: dict[str, Any] = OPEN_LOOP if arguments.open_loop else {}
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (file, {"unit": "wire-bytes"}, phase)
        for file in sorted(arguments.folder.glob("zipf/*.csv"))
        for phase in ("random", "golden")
    ]
    cases += [
        (file, {"unit": "tokens", "token_bytes": 7168}, "random")
        for file in sorted(arguments.folder.glob("olmoe/*.csv"))
    ]
    processors: queue.SimpleQueue[int] = queue.SimpleQueue()
    for cpu in os.sched_getaffinity(0):
        processors.put(cpu)

    def run(case: tuple[Path, dict[str, Any], str], seed: int) -> dict[str, Any]:
        file, unit, phase = case
        cpu = processors.get()
        try:
            scenario = prepare(
                from_mapping({"demand": [{"file": str(file), **unit}], "phase": phase, "seed": seed, **keys})
            )
            return run_schedule(scenario, arguments.schedule, cpu, lambda *_: None, threading.Event()).figures
        finally:
            processors.put(cpu)

    print(
        f"{'matrix':20} {'phase':7} {'hot queue [packets]':28} {'mean':>6} {'CCT - LB [ns]':>16} {'busy %':>8}  bytes"
    )
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for case in cases:
            runs = list(pool.map(run, [case] * arguments.seeds, range(arguments.seeds)))
            hot = [-(-figures["hot_queue_max_bytes"] // MTU) for figures in runs]
            late = max(figures["cct_ns"] - figures["lower_bound_ns"] for figures in runs)
            busy = min(figures["bottleneck_busy"] for figures in runs)
            whole = all(figures["delivered_bytes"] == figures["expected_bytes"] for figures in runs)
            print(
                f"{case[0].stem:20} {case[2]:7} {' '.join(map(str, hot)):28} {statistics.mean(hot):6.1f} "
                f"{late:16.0f} {100 * busy:8.2f}  {'all' if whole else 'LOST'}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
