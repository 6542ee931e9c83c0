"""Runs what is not there yet of a grid."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from controller.errors import CannotRunError
from testbed.grid.cells import Cell
from testbed.grid.dask import run_on
from testbed.grid.meter import GridMeter
from testbed.grid.pool import run_here
from testbed.grid.store import Store

__all__ = ["run_grid"]


def run_grid(cells: Sequence[Cell], store: Store, *, jobs: int = 0, dask: str = "") -> None:
    """Runs the cells that the store does not have, the largest first; keeps each as soon as it has ended.

    ``jobs``: how many at a time here; 0: one a processor. ``dask``: the address of a scheduler, whose workers decide, instead. After an
    interrupt or a kill the same call goes on where it was. Raises CannotRunError at the end if cells failed, of which each
    has had its line on stderr by then.
    """
    wanted = {cell.address: cell for cell in cells}
    todo = [cell for cell in wanted.values() if not store.has(cell)]
    # The largest first, so that none of them is left alone at the end.
    todo.sort(key=lambda cell: -cell.packets)
    if not todo:
        return
    if len(todo) < len(wanted):
        print(f"note: {len(wanted) - len(todo)} of {len(wanted)} cells are there already", file=sys.stderr)
    meter = GridMeter(todo)
    failures: list[str] = []
    processors = len(os.sched_getaffinity(0))
    outcomes = run_on(dask, todo) if dask else run_here(todo, min(jobs or processors, len(todo)), meter)
    try:
        with contextlib.closing(outcomes):
            for outcome in outcomes:
                if outcome.files is None:
                    failures.append(f"{outcome.cell.label}: {outcome.reason}")
                else:
                    store.keep(outcome.cell, outcome.files)
                meter.finish(outcome.cell)
    finally:
        meter.close()
    for failure in failures:
        print(f"incastfree: {failure}", file=sys.stderr)
    if failures:
        raise CannotRunError(
            f"{len(failures)} of {len(wanted)} cells failed, each named above; the others are kept, and the same command, "
            "with the option added that a line names as the remedy (--memory-mib, --limit-s), runs only what is missing"
        )
