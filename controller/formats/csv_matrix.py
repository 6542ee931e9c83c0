"""CSV: one line a row, values separated by commas, an optional header line of names."""

from __future__ import annotations

import codecs
import io
import itertools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError
from controller.formats.files import check_size, open_file
from controller.formats.narrow import narrowed

__all__ = ["parse"]

_PART_BYTES: Final = 1 << 20
_FIRST_ROWS: Final = 16


def parse(path: Path) -> NDArray[np.generic]:
    """Integers stay exact, whatever their size below 2^63, in as few bytes as hold them; one float makes all floats.

    Raises InputError.
    """
    with open_file(path) as file:
        check_size(path, file)  # it may be one line
        _check_text(path, file)
        file.seek(0)
        with io.TextIOWrapper(file, encoding="utf-8-sig") as text:
            return _matrix(path, text)


def _check_text(path: Path, file: BinaryIO) -> None:
    """All of it before the first row is read: of a file that is no CSV no row is worth a word."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        while part := file.read(_PART_BYTES):
            decoder.decode(part)
            if b"\0" in part:
                raise InputError(f"{path} is neither CSV text nor NPY: give a matrix as one of them")
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise InputError(f"{path} is neither CSV text nor NPY: give a matrix as one of them") from None


def _matrix(path: Path, text: Iterable[str]) -> NDArray[np.generic]:
    lines = ((number, line.strip()) for number, line in enumerate(text, 1))
    rows = ((number, line.rstrip(",").split(",")) for number, line in lines if line)
    first = list(itertools.islice(rows, 2))
    if not first:
        raise InputError(f"{path} is empty: give one line a row, values separated by commas")
    if _is_header(first):
        first = first[1:]
    elif len(first) == 1 and _names(first[0][1]):
        raise InputError(
            f"{path}: row 1, column 1 {_short(first[0][1][0].strip())!r} is not a number, and if this is a header, no row "
            "follows it: give one line a row, values separated by commas"
        )
    begin, width = first[0][0], len(first[0][1])
    # A row at a time: a number as an object takes ten times its text.
    matrix: NDArray[np.generic] = np.empty((_FIRST_ROWS, width), dtype=np.uint8)
    count = 0
    for number, cells in itertools.chain(first, rows):
        if len(cells) != width:
            raise InputError(
                f"{path}: row {number} has {len(cells)} values, row {begin} has {width}: rows must be equally long"
            )
        values = [_number(path, number, column, cell) for column, cell in enumerate(cells, 1)]
        real = any(isinstance(value, float) for value in values)
        try:
            row = narrowed(np.array(values, dtype=np.float64 if real else np.int64), matrix.dtype)
        except OverflowError:
            raise InputError(f"{path}: row {number}: a value is above 2^63: give smaller amounts") from None
        if count == len(matrix):
            matrix = np.concatenate([matrix, np.empty_like(matrix)])
        matrix = matrix.astype(np.promote_types(matrix.dtype, row.dtype), copy=False)
        matrix[count] = row
        count += 1
    return matrix[:count]


def _is_header(rows: list[tuple[int, list[str]]]) -> bool:
    """A clear one: nothing in the first line is a number or separated by another mark, and there are lines after it."""
    return len(rows) > 1 and _names(rows[0][1])


def _names(cells: list[str]) -> bool:
    return not any(_looks_numeric(cell) or ";" in cell or "\t" in cell for cell in cells)


def _looks_numeric(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return not cell.strip()
    return True


def _short(cell: str) -> str:
    return cell if len(cell) <= 20 else cell[:20] + "..."


def _number(path: Path, row: int, column: int, cell: str) -> int | float:
    cell = cell.strip()
    try:
        return int(cell)
    except ValueError:
        pass
    try:
        value = float(cell)
    except ValueError:
        what = f"{_short(cell)!r} is not a number" if cell else "is empty"
        remedy = (
            "separate values with commas"
            if any(mark in cell for mark in "; \t")
            else "give a plain number, 0 where nothing is sent"
        )
        raise InputError(f"{path}: row {row}, column {column} {what}: {remedy}") from None
    if not math.isfinite(value):
        raise InputError(
            f"{path}: row {row}, column {column} is {_short(cell)}, not a finite number: give 0 or an amount"
        )
    return value
