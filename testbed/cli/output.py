"""What verbs that run grids share: lists as options, tables and pictures as files."""

from __future__ import annotations

import argparse
import csv
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from controller.cli.options import whole_number
from controller.errors import CannotRunError
from testbed.grid.cells import Cell
from testbed.grid.run import run_grid
from testbed.grid.store import Store
from testbed.measure.store import write_atomically

__all__ = ["csv_bytes", "job_count", "list_of", "run_and_write", "write"]

_DIGITS: Final = 4

T = TypeVar("T")


def job_count(text: str) -> int:
    """The value of --jobs."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number, 1 or more")
    return number


def list_of(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """The parser of an option whose values are separated by commas."""

    def parse(text: str) -> tuple[T, ...]:
        try:
            items = tuple(kind(item.strip()) for item in text.split(",") if item.strip())
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None
        if not items:
            raise argparse.ArgumentTypeError("the list is empty")
        if kind is not whole_number and len(set(items)) < len(items):
            raise argparse.ArgumentTypeError(f"{text!r} names something twice")
        return items

    return parse


def csv_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """One line a row, which all have the columns of the first."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {name: round(value, _DIGITS) if isinstance(value, float) else value for name, value in row.items()}
        )
    return text.getvalue().encode()


def run_and_write(
    arguments: argparse.Namespace,
    cells: Sequence[tuple[Mapping[str, Any], Cell]],
    files: Mapping[str, Path],
    make: Callable[[Store], dict[str, bytes]],
) -> None:
    """Runs what is missing of a grid, then writes ``files``, by what they hold: of "cells" this makes the content, of all others ``make``.

    ``arguments``: out, jobs, dask. What an earlier command wrote stays until all of it can be replaced. Raises CannotRunError.
    """
    store = Store(arguments.out)
    try:
        check_places(list(files.values()))  # before hours of runs
        try:
            run_grid([cell for _, cell in cells], store, jobs=arguments.jobs or 0, dask=arguments.dask)
            made = make(store)
        except CannotRunError:
            if files["table"].exists():
                print(f"note: {files['table']} and its picture are still those of an earlier command", file=sys.stderr)
            raise
        made["cells"] = csv_bytes([{**row, "cell": cell.label, "address": cell.address} for row, cell in cells])
        for what, file in files.items():
            write(file, made[what])
    finally:
        store.close()
    for what, file in files.items():
        print(f"{what:8} {file}")


def check_places(paths: Sequence[Path]) -> None:
    """Raises CannotRunError where results could not be written at the end."""
    for path in paths:
        if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
            why = "it is a folder" if path.is_dir() else "its folder is not writable"
            raise CannotRunError(f"{path} cannot be written: {why}; choose another --out")


def write(path: Path, content: bytes) -> None:
    """Whole or not at all. Raises CannotRunError where that cannot be done."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise CannotRunError(f"{path} cannot be written: {error.strerror}; choose another --out") from None
