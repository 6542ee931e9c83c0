"""The framework hook's cost per dispatch: ``python benchmarks/hook.py``. No torch: a process group of NumPy arrays.

Beside each other, call by call, on one processor, for 64 and 256 ranks: a read pass over the split sizes; a copy of all rows
into one matrix, which is what is left of an all-gather without its network; the rates; and a whole dispatch around an
all-to-all that does nothing: rates, their write, the call, and the write that ends the pacing.

In the figure: all that the hook does itself. Not in it: the gathering of split sizes, which a mixture-of-experts layer does
anyway; the copy of a GPU's tensor to the host, where they lie there; torch's own call. The table is shared memory, as the
kernel's map is.
"""

from __future__ import annotations

import gc
import mmap
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from controller import native
from controller.hook import Pacer
from controller.nic import Capabilities, Nic, Steps
from controller.nic.rate_table import RATE_ONE, RATE_SLOTS, TABLE_BYTES, RateTable

RANKS = (64, 256)
SAMPLES = 2000
ROW_BYTES = 7168
"""Of a token: DeepSeek-V3's, in one byte an element."""


class MemoryNic(Nic):
    """A rate table in memory."""

    def __init__(self) -> None:
        self._table = RateTable(memoryview(mmap.mmap(-1, -(-TABLE_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE)))

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(RATE_ONE, RATE_SLOTS, 0, "measured", "here")

    def write_rates(self, steps: Steps) -> None:
        self._table.write(steps)

    def read_rates(self) -> tuple[int, bytes]:
        return self._table.read()

    def close(self) -> None:
        pass


def sample(cases: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Microseconds of each call; the cases take turns, so that what disturbs one disturbs all."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for call in cases.values():
        call()
    gc.disable()
    for _ in range(SAMPLES):
        for name, call in cases.items():
            begin = time.perf_counter_ns()
            call()
            taken[name].append((time.perf_counter_ns() - begin) / 1e3)
    gc.enable()
    return taken


def main() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    part = "with the controller's C part" if native.part else f"NumPy alone ({native.MISSING})"
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}, {part}"
    )
    for ranks in RANKS:
        counts = np.random.default_rng(0).integers(0, 64, (ranks, ranks))
        rows = [np.array(row) for row in counts]
        pacer = Pacer(MemoryNic(), ranks // 2, ranks)

        def dispatch(pacer: Pacer = pacer, counts: Any = counts) -> None:
            with pacer.dispatch(counts, ROW_BYTES):
                pass

        taken = sample(
            {
                "read pass": counts.max,
                "copy of all rows": lambda rows=rows: np.stack(rows),
                "rates": lambda pacer=pacer, counts=counts: pacer.rates(counts, ROW_BYTES),
                "dispatch": dispatch,
            }
        )
        base = statistics.median(taken["read pass"])
        print(f"{ranks} ranks               median [us]   99 % [us]   of a read pass")
        for name, times in taken.items():
            median, tail = statistics.median(times), statistics.quantiles(times, n=100)[98]
            print(f"  {name:20} {median:11.1f} {tail:11.1f} {median / base:16.1f}")


if __name__ == "__main__":
    main()
