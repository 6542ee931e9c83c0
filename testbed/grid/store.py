"""Results of cells on disk: a folder a cell, named by its address. What is there is finished."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import CannotRunError
from testbed.grid.cells import RESULT, Cell, Files
from testbed.measure.store import hold, write_atomically

__all__ = ["Store"]

_READ_BY_ALL: Final = "inflation"
"""Every figure needs it of every cell; null where the run was given up, which is then said."""


class Store:
    """OUT/cells. For one command at a time: a second one is refused, since both would run the same cells."""

    def __init__(self, out: Path) -> None:
        """Makes the folder, and removes what a command that was killed had begun to write. See hold."""
        self._folder = out / "cells"
        self._lock = hold(out, self._folder)
        try:
            for partial in self._folder.glob("*/.*"):
                partial.unlink()
        except OSError as error:
            raise _unwritable(error, self._folder) from None

    def close(self) -> None:
        """Lets others in."""
        os.close(self._lock)

    def has(self, cell: Cell) -> bool:
        """Whether it has run, and all tables that are wanted of it are there. One that is damaged is said on stderr, and has not run."""
        if not (self._folder / cell.address / RESULT).is_file():
            return False
        try:
            wanted = () if self._read(cell).get("gave_up") else cell.tables
            if not all(self.table(cell, name).is_file() for name in wanted):
                return False
            for name in wanted:
                self.columns(cell, name)
        except _DamagedError as error:
            print(f"note: {error.path} is damaged: {cell.label} runs again", file=sys.stderr)
            return False
        return True

    def figures(self, cell: Cell) -> dict[str, Any]:
        """Of a cell that has run. Raises CannotRunError where the file is damaged, and where packets were lost for good."""
        figures = self._read(cell)
        if figures[_READ_BY_ALL] is None and "gave_up" not in figures:
            raise CannotRunError(
                f"{cell.label} lost packets for good and has no CCT: give loss_recovery sack or timeout"
            )
        return figures

    def _read(self, cell: Cell) -> dict[str, Any]:
        path = self._folder / cell.address / RESULT
        try:
            figures: dict[str, Any] = json.loads(path.read_bytes())["runs"][0]
            if figures[_READ_BY_ALL] is not None:
                float(figures[_READ_BY_ALL])
            elif "gave_up" not in figures and not figures["delivered_bytes"] < figures["expected_bytes"]:
                raise ValueError
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            raise _DamagedError(path) from None
        return figures

    def damaged(self, cell: Cell) -> CannotRunError:
        """To be raised for a cell whose figures are not all there."""
        return _DamagedError(self._folder / cell.address / RESULT)

    def columns(self, cell: Cell, name: str) -> dict[str, NDArray[Any]]:
        """Of one of its tables, by name. Raises CannotRunError where the file is damaged."""
        try:
            import pyarrow.parquet
        except ImportError:
            raise CannotRunError("pyarrow is missing: run make setup") from None
        path = self.table(cell, name)
        try:
            # Of the bytes: the name of a folder above that has "=" in it would become a column.
            table = pyarrow.parquet.read_table(pyarrow.BufferReader(path.read_bytes())).to_pydict()
        except (OSError, pyarrow.ArrowException):
            raise _DamagedError(path) from None
        return {name: np.array(values) for name, values in table.items()}

    def table(self, cell: Cell, name: str) -> Path:
        """Where its Parquet file lies."""
        return self._folder / cell.address / f"{name}.parquet"

    def keep(self, cell: Cell, files: Files) -> None:
        """The result comes last: where it is, all is."""
        folder = self._folder / cell.address
        try:
            folder.mkdir(exist_ok=True)
            for name in sorted(files, key=lambda name: name == RESULT):
                write_atomically(folder / name, files[name])
        except OSError as error:
            raise _unwritable(error, folder) from None


class _DamagedError(CannotRunError):
    """A file of a finished cell that cannot be read."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is damaged: delete the folder {path.parent} and give the command again")
        self.path = path


def _unwritable(error: OSError, folder: Path) -> CannotRunError:
    return CannotRunError(f"{error.filename or folder} cannot be written: {error.strerror}; choose another --out")
