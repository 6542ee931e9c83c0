"""How far a grid is, and how long it will take, on stderr."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from testbed.grid.cells import Cell
from testbed.status import StatusLine

__all__ = ["GridMeter"]

_EVERY_S: Final = 10.0
_BOOT_PACKETS: Final = 10_000
"""What starting a machine costs, in packets' worth of time, roughly."""


class GridMeter:
    """Of all cells together, those that run in part."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        """``cells``: those that are still to be run."""
        self._lock = threading.Lock()
        self._line = StatusLine(_EVERY_S)
        self.close = self._line.close
        self._begin_s = time.monotonic()
        self._count, self._finished = len(cells), 0
        self._work = sum(_work(cell) for cell in cells)
        self._done = 0.0
        self._running: dict[str, float] = {}

    def progress(self, cell: Cell, delivered: int, expected: int) -> None:
        """From the thread of a cell."""
        with self._lock:
            self._running[cell.address] = _work(cell) * delivered / max(1, expected)
            self._show()

    def finish(self, cell: Cell) -> None:
        """Well or not."""
        with self._lock:
            self._running.pop(cell.address, None)
            self._done += _work(cell)
            self._finished += 1
            self._show()

    def _show(self) -> None:
        if not self._line.due():
            return
        share = (self._done + sum(self._running.values())) / self._work
        spent_s = time.monotonic() - self._begin_s
        left = f", about {spent_s * (1 - share) / share:.0f} s left" if share else ""
        self._line.show(f"{self._finished} of {self._count} cells, {100 * share:.0f} %, {spent_s:.0f} s{left}")


def _work(cell: Cell) -> int:
    return cell.packets + _BOOT_PACKETS
