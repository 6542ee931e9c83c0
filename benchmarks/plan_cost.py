"""What a plan costs against the collective that it is for: the table of docs/schedules.md.

``.venv/bin/python benchmarks/plan_cost.py`` plans Zipf demands of 16 to 512 hosts, 16 MB a sender at 800 Gb/s, each in a process
of its own, and prints the processor's time, its multiple of the lower bound, and the stages. What takes over a minute is given up,
and not tried with more hosts. It is this Python that is measured: others plan in C++ or hardware, and docs/schedules.md names what they report.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import signal
import sys
import time
from fractions import Fraction
from multiprocessing.connection import Connection

from controller.demand import Demand
from controller.schedule import make_plan
from testbed.workload.zipf import zipf

MTU = 4096
SPEED_BPS = Fraction(800 * 10**9)
HOSTS = (16, 32, 64, 128, 256, 512)
SCHEDULES = (
    "rate",
    "spreadout",
    "gmwd",
    "chronos",
    "bvn:bottleneck",
    "bvn:any",
    "bvn:weight",
    "fast:bottleneck",
    "fast:any",
    "dfs:bottleneck",
)
GPUS = {"fast": 8, "dfs": 8}
LIMIT_S = 60
ENOUGH_S = 0.5
"""Of the processor's time, which some kernels count in steps of 10 ms."""


def demand_of(hosts: int, sender_bytes: int) -> Demand:
    return Demand(zipf(hosts, 0.5, sender_bytes, MTU, 1))


def measure(schedule: str, hosts: int, sender_bytes: int, answer: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    demand = demand_of(hosts, sender_bytes)
    gpus = GPUS.get(schedule.partition(":")[0], 1)
    if gpus > 1:
        for server in range(0, hosts, gpus):
            demand.wire_bytes[server : server + gpus, server : server + gpus] = 0
    speeds = [SPEED_BPS] * hosts
    # What is loaded lazily is no part of a plan.
    make_plan(schedule, Demand(demand.wire_bytes[: 2 * gpus, : 2 * gpus]), speeds[: 2 * gpus], gpus_per_server=gpus)
    begin, count = time.process_time(), 0
    while not count or time.process_time() - begin < ENOUGH_S:
        plan = make_plan(schedule, demand, speeds, gpus_per_server=gpus)
        count += 1
    answer.send(((time.process_time() - begin) / count, plan.stage_count))


def plan_s(schedule: str, hosts: int, sender_bytes: int) -> tuple[float, int] | None:
    """Seconds, the mean of as many as take half a second, and stages; None after LIMIT_S."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=measure, args=(schedule, hosts, sender_bytes, there))
    process.start()
    there.close()
    try:
        found: tuple[float, int] | None = here.recv()
    except EOFError:
        found = None
    process.join()
    if found is None and process.exitcode not in (-signal.SIGXCPU, -signal.SIGKILL):
        sys.exit(f"{schedule} with {hosts} hosts failed")
    return found


def shown(seconds: float) -> str:
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=16_000_000, help="wire bytes of a sender")
    parser.add_argument("--schedules", default=",".join(SCHEDULES), help="of which the rows are")
    parser.add_argument("--most", type=int, default=512, help="hosts")
    arguments = parser.parse_args()
    sizes = [hosts for hosts in HOSTS if hosts <= arguments.most]
    bounds = {hosts: float(demand_of(hosts, arguments.bytes).bottleneck([SPEED_BPS] * hosts).time_s) for hosts in sizes}
    print("| schedule | " + " | ".join(f"N = {hosts}" for hosts in sizes) + " |\n" + "|---" * (len(sizes) + 1) + "|")
    print("| lower bound T* | " + " | ".join(shown(bounds[hosts]) for hosts in sizes) + " |")
    for schedule in arguments.schedules.split(","):
        cells: list[str] = []
        for hosts in sizes:
            if cells and cells[-1].startswith(("over", "not")):
                cells.append("not tried")
                continue
            found = plan_s(schedule, hosts, arguments.bytes)
            if found is None:
                cells.append("over a minute")
                continue
            seconds, stages = found
            multiple = seconds / bounds[hosts]
            times = f"{multiple:,.0f}" if multiple >= 10 else f"{multiple:.2g}"
            cells.append(f"{shown(seconds)}, {times} T*" + (f", {stages}" if stages else ""))
        print(f"| `{schedule}` | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
