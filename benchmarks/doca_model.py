"""The table of docs/doca.md: paced runs by the eBPF NIC, and by the DPU's code without and with its mailbox's delay.

    .venv/bin/python benchmarks/doca_model.py ../shared/data > results/doca.md

The argument is the folder with olmoe/ and zipf/. One run after the other, all of seed 1; 20 minutes on one idle core.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from typing import Any, Final

from testbed.experiment import from_mapping
from testbed.runner import run_schedule
from testbed.scenario import prepare

WIRE: Final = {"unit": "wire-bytes"}
TOKENS: Final = {"unit": "tokens", "token_bytes": 7168}
MATRICES: Final = (
    ("zipf/n16-s0.25.csv", WIRE),
    ("zipf/n16-s0.5.csv", WIRE),
    ("zipf/n16-s1.0.csv", WIRE),
    ("zipf/n64-s0.5.csv", WIRE),
    ("olmoe/c4-L0-L7.csv", TOKENS),
    ("olmoe/c4-L7-L15.csv", TOKENS),
    ("olmoe/github-L7-L15.csv", TOKENS),
    ("olmoe/wikipedia-L0-L7.csv", TOKENS),
)
NICS: Final = (
    {"nic": "ebpf"},
    {"nic": "doca-model", "control_delay_ns": 0},
    {"nic": "doca-model"},
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with olmoe/ and zipf/")
    parser.add_argument("--cpu", type=int, default=0, help="processor to stay on")
    parser.add_argument("--schedule", default="rate", help="SCHEDULE or SCHEDULE+CC")
    arguments = parser.parse_args()
    print(
        "| demand | bound [us] | `ebpf` [us] | 20 bits, no delay [us] | 20 bits, 13.2 ms [us] | hot queue [packets] |"
    )
    print("|---|---|---|---|---|---|")
    for name, table in MATRICES:
        figures = [run(arguments.data / name, table, keys, arguments) for keys in NICS]
        times = " | ".join(f"{each['cct_ns'] / 1e3:.2f} ({100 * each['inflation']:.2f} %)" for each in figures)
        queues = " / ".join(str(-(-each["hot_queue_max_bytes"] // 4096)) for each in figures)
        print(f"| {Path(name).stem} | {figures[0]['lower_bound_ns'] / 1e3:.2f} | {times} | {queues} |", flush=True)
    return 0


def run(file: Path, table: dict[str, Any], keys: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    demand = {"file": str(file.resolve()), **table}
    scenario = prepare(from_mapping({"demand": [demand], "seed": 1, **keys}))
    data = run_schedule(scenario, arguments.schedule, arguments.cpu, lambda *_: None, threading.Event())
    print(f"{file.stem} {keys}: {data.figures['wall_s']} s", file=sys.stderr, flush=True)
    return data.figures


if __name__ == "__main__":
    sys.exit(main())
