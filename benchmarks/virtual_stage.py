"""Speed, set-up time and memory of the virtual stage. Run it on an otherwise idle machine: ``make bench``.

Prints packet-hops a second of wall time, data and control (30 MB a sender; the engine alone, pinned to one processor), set-up seconds (boot, network,
programs) and the peak of the guest's memory as the host sees it. Each case runs several times; the best and the
median are shown, since what disturbs a run only ever slows it down.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from testbed.experiment import from_mapping
from testbed.runner import run_schedule
from testbed.scenario import prepare
from testbed.workload.zipf import zipf

BYTES = 30_000_000
OPEN_LOOP = {"loss_recovery": "none", "queue_bytes": 0, "ecn_kmax_bytes": 0}
"""No ACKs, unlimited queues, no marks that nobody would hear of: the fabric alone."""
CASES = (
    ("open loop", 0.5, "rr", OPEN_LOOP),
    ("open loop", 0.5, "rate", OPEN_LOOP),
    ("transport", 1.0, "rate", {}),
    ("transport", 1.0, "rr+nscc", {}),
)
SETUP_HOSTS = (16, 64, 128, 256, 512)


@dataclass
class MemoryWatch:
    """Peak of what lies in /dev/shm and is deleted: the memory of our virtual machines."""

    peak_bytes: int = 0
    stop: bool = False

    def watch(self) -> None:
        before = shared_bytes()
        while not self.stop:
            self.peak_bytes = max(self.peak_bytes, shared_bytes() - before)
            time.sleep(0.05)


def shared_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("Shmem:")).split()[1]) * 1024


def measure(demand: Path, schedule: str, cpu: int, **keys: Any) -> dict[str, float]:
    scenario = prepare(from_mapping({"demand": [{"file": str(demand), "unit": "wire-bytes"}], **keys}))
    memory = MemoryWatch()
    thread = threading.Thread(target=memory.watch)
    thread.start()
    try:
        figures = run_schedule(scenario, schedule, cpu, lambda *_: None, threading.Event()).figures
    finally:
        memory.stop = True
        thread.join()
    return {
        "hops": (figures["packet_hops"] + figures["control_hops"]) / figures["engine_s"],
        "engine_s": figures["engine_s"],
        "setup_s": figures["setup_s"],
        "wall_s": figures["wall_s"],
        "memory_mib": memory.peak_bytes / 2**20,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cpu", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "demand.csv"
        print(f"{'case':30} {'hops/s best':>12} {'median':>10} {'engine s':>9} {'setup s':>8} {'MiB':>7}")
        for hosts in (64, 128):
            for kind, skew, run, keys in CASES:
                np.savetxt(file, zipf(hosts, skew, BYTES, 4096, 13), fmt="%d", delimiter=",")
                show(
                    f"N={hosts} s={skew:g} {run}, {kind}",
                    [measure(file, run, arguments.cpu, **keys) for _ in range(arguments.repeat)],
                )
        for hosts in SETUP_HOSTS:
            np.savetxt(file, zipf(hosts, 0.5, 4096 * hosts, 4096, 13), fmt="%d", delimiter=",")
            show(f"N={hosts} set-up", [measure(file, "rate", arguments.cpu) for _ in range(arguments.repeat)])
        np.savetxt(file, zipf(512, 0.5, 4_000_000, 4096, 13), fmt="%d", delimiter=",")
        for run in ("rr+nscc", "rate"):
            show(f"N=512 4 MB {run}", [measure(file, run, arguments.cpu)])
    return 0


def show(case: str, runs: list[dict[str, float]]) -> None:
    hops = [run["hops"] for run in runs]
    best = {name: min(run[name] for run in runs) for name in ("engine_s", "setup_s")}
    memory = max(run["memory_mib"] for run in runs)
    print(
        f"{case:30} {max(hops):12.0f} {statistics.median(hops):10.0f} {best['engine_s']:9.2f} "
        f"{best['setup_s']:8.2f} {memory:7.0f}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
