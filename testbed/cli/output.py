"""What verbs that run grids share: lists as options, tables and pictures as files."""

from __future__ import annotations

import argparse
import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from controller.cli.options import whole_number
from controller.errors import CannotRunError
from testbed.measure.store import write_atomically

__all__ = ["check_places", "csv_bytes", "job_count", "list_of", "write"]

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
