"""Runs cells on the processors of this machine, a thread around each virtual machine."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from controller.errors import CannotRunError, InputError
from testbed.grid.cells import Cell, Files, Halt, Outcome, run_cell
from testbed.grid.meter import GridMeter

__all__ = ["run_here"]


def run_here(cells: Sequence[Cell], jobs: int, meter: GridMeter) -> Generator[Outcome, None, None]:
    """``jobs`` at a time, in the order given; each outcome as soon as it is known. Closing it ends what still runs."""
    halt = Halt()

    def work(cell: Cell) -> Files:
        return run_cell(cell, halt, lambda delivered, expected: meter.progress(cell, delivered, expected), jobs)

    pool = ThreadPoolExecutor(max_workers=jobs)
    tasks = {pool.submit(work, cell): cell for cell in cells}
    try:
        for task in as_completed(tasks):
            try:
                yield Outcome(tasks[task], task.result())
            except (CannotRunError, InputError) as error:
                yield Outcome(tasks[task], None, str(error))
    finally:
        halt.halt()
        pool.shutdown(wait=True, cancel_futures=True)
