"""Parquet: a matrix (one numeric column a receiver), or a table with src, dst and an amount, and perhaps step and layer.

Needs pyarrow, which the controller does not otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import CannotRunError, InputError
from controller.formats.files import open_file
from controller.formats.matrices import refuse_options, trace_of
from controller.formats.narrow import narrowed
from controller.formats.trace import MAX_RANKS, Place, Reading, Trace, kept_places

__all__ = ["MAGIC", "read"]

MAGIC: Final = b"PAR1"
_AMOUNTS: Final = {"tokens": "tokens", "bytes": "bytes", "wire_bytes": "wire-bytes", "count": ""}
"""Names of the column of amounts, and the unit that they say."""
_BATCH: Final = 1 << 15
_BUFFER_BYTES: Final = 1 << 20
_MOST_BYTES: Final = 2**31


def read(path: Path, files: Sequence[Path], reading: Reading) -> Trace:
    """Raises InputError for a table that is neither, and CannotRunError without pyarrow."""
    if len(files) != 1:
        raise InputError(f"{path} is {len(files)} files, but a matrix is one: name it")
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise CannotRunError(
            f"{path} is Parquet, which needs pyarrow: pip install pyarrow, or give CSV or NPY"
        ) from None
    file = files[0]
    with open_file(file) as stream:
        try:
            table = pyarrow.parquet.ParquetFile(pyarrow.PythonFile(stream, mode="r"), buffer_size=_BUFFER_BYTES)
            fields = {field.name: field.type for field in table.schema_arrow}
            if len(fields) != len(table.schema_arrow):
                raise InputError(f"{file} has two columns of one name: rename one")
            rows, columns = table.metadata.num_rows, len(fields)
            if columns and not rows:
                raise InputError(
                    f"{file} has columns but no rows: write a row a sender, or one for each sender and receiver"
                )
            if {"src", "dst"} <= fields.keys():
                _check_types(file, fields)
                refuse_options(file, replace(reading, ranks=0))
                return _long(file, table, reading, set(fields))
            if rows != columns:
                raise InputError(
                    f"{file} is {rows} x {columns}: give a square matrix, or columns src, dst and one of {', '.join(_AMOUNTS)}"
                )
            if columns > MAX_RANKS:
                raise InputError(f"{file}: {columns} hosts are too many: at most {MAX_RANKS} are supported")
            _check_types(file, fields)
            refuse_options(file, reading)
            parts = [
                narrowed(np.stack([_numbers(file, first, name, batch.column(name)) for name in fields], axis=1))
                for first, batch in _batches(table, batch_size=max(1, _BATCH // max(1, columns)))
            ]
            return trace_of(file, "parquet", np.concatenate(parts), reading)
        except (pyarrow.ArrowException, OSError, ValueError, KeyError, MemoryError, OverflowError, TypeError) as error:
            raise InputError(f"{file} is a damaged Parquet file ({_first_line(error)}): write it anew") from None


def _first_line(error: BaseException) -> str:
    return " ".join((str(error).splitlines() or ["no reason given"])[0].split())[:80]


def _check_types(file: Path, fields: dict[str, Any]) -> None:
    import pyarrow.types

    for name, kind in fields.items():
        wanted = name in ("src", "dst", "step", "layer", *_AMOUNTS) or "src" not in fields
        if wanted and not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)):
            raise InputError(f"{file}: column {name[:40]!r} is {str(kind)[:40]}, not numbers: write int64 or float64")


def _batches(table: Any, **options: Any) -> Iterator[tuple[int, Any]]:
    """(rows before it, batch) of each."""
    first = 0
    for batch in table.iter_batches(**options):
        yield first, batch
        first += batch.num_rows


def _row(first: int, wrong: Any) -> str:
    return f"row {first + int(np.flatnonzero(wrong)[0]) + 1}"


def _numbers(file: Path, first: int, name: str, column: Any) -> NDArray[Any]:
    if column.null_count:
        row = _row(first, column.is_null().to_numpy(zero_copy_only=False))
        raise InputError(f"{file}: {row}: column {name[:40]!r} has empty cells: give 0 where nothing is sent")
    return np.asarray(column.to_numpy())


def _long(file: Path, table: Any, reading: Reading, names: set[str]) -> Trace:
    """Rows of one sender and receiver; those that repeat add up."""
    amounts = [name for name in _AMOUNTS if name in names]
    if len(amounts) != 1:
        raise InputError(f"{file} has {' and '.join(amounts) or 'no amount'}: give one column of {', '.join(_AMOUNTS)}")
    keys = [name for name in ("step", "layer") if name in names]
    for name in ("step", "layer"):
        if getattr(reading, f"{name}s") and name not in names:
            raise InputError(f"{file} has no column {name}: leave --{name}s out")
    sums: dict[tuple[int, ...], NDArray[Any]] = {}
    taken = 0
    wanted = ["src", "dst", *amounts, *keys]
    highest = -1
    for first, batch in _batches(table, batch_size=_BATCH, columns=wanted):
        values = {name: _numbers(file, first, name, batch.column(name)) for name in wanted}
        _check_ids(file, first, {name: values[name] for name in ("src", "dst", *keys)})
        amount = values[amounts[0]]
        if not len(amount):
            continue
        _check_amounts(file, first, amounts[0], amount)
        highest = max(highest, int(values["src"].max()), int(values["dst"].max()))
        for key, rows in _groups([values[name] for name in keys], len(amount)):
            if keys and not reading.wants(*_place(keys, list(key))[:2]):
                continue
            before = sums.get(key)
            if before is not None:
                taken -= before.nbytes
            sums[key] = _added(file, before, values["src"][rows], values["dst"][rows], amount[rows])
            taken += sums[key].nbytes
            if taken > _MOST_BYTES:
                raise InputError(f"{file} holds more demands than fit into memory: choose with --steps and --layers")
    ranks = reading.ranks or highest + 1
    if highest >= ranks:
        raise InputError(f"{file}: rank {highest} is not one of {ranks}: see --ranks")
    order = sorted(sums)
    kept, notes = kept_places(
        file, [_place(keys, list(key)) for key in order], [int(np.count_nonzero(sums[key])) for key in order]
    )
    if not reading.ranks:
        notes.append(f"{file}: {ranks} ranks, as the highest number says; --ranks gives more")

    def matrix(number: int) -> NDArray[np.generic]:
        shown = sums[order[kept[number]]]
        whole = np.zeros((ranks, ranks), dtype=shown.dtype)
        whole[: len(shown), : len(shown)] = shown
        return whole

    return Trace(
        "parquet",
        _AMOUNTS[amounts[0]],
        tuple(_place(keys, list(order[number])) for number in kept),
        matrix,
        tuple(notes),
    )


def _check_ids(file: Path, first: int, ids: dict[str, NDArray[Any]]) -> None:
    for name, column in ids.items():
        limit = MAX_RANKS if name in ("src", "dst") else 2**31
        if column.dtype.kind not in "iu":
            raise InputError(f"{file}: column {name} must hold whole numbers of 0 to {limit - 1}")
        if len(column) and (int(column.min()) < 0 or int(column.max()) >= limit):
            row = _row(first, (column < 0) | (column >= limit))
            raise InputError(f"{file}: {row}: column {name} must hold whole numbers of 0 to {limit - 1}")


def _check_amounts(file: Path, first: int, name: str, amount: NDArray[Any]) -> None:
    if amount.dtype.kind in "iu":
        if int(amount.min()) < 0 or int(amount.max()) >= 2**63:
            row = _row(first, (amount < 0) | (amount.astype(np.uint64) >= 2**63))
            raise InputError(f"{file}: {row}: column {name} must hold amounts of 0 or more, below 2^63")
    elif not (np.isfinite(amount).all() and (amount >= 0).all()):
        row = _row(first, ~(np.isfinite(amount) & (amount >= 0)))
        raise InputError(f"{file}: {row}: column {name} must hold finite amounts of 0 or more")


def _groups(keys: Sequence[NDArray[Any]], rows: int) -> Iterator[tuple[tuple[int, ...], NDArray[np.intp] | slice]]:
    """The rows of each step and layer of a batch; all of them where there are no such columns."""
    if not keys:
        yield (), slice(None)
        return
    order = np.lexsort(keys[::-1])
    ordered = [key[order] for key in keys]
    starts = np.flatnonzero(np.any([key[1:] != key[:-1] for key in ordered], axis=0)) + 1
    for first, end in zip([0, *starts.tolist()], [*starts.tolist(), rows], strict=True):
        yield tuple(int(key[first]) for key in ordered), order[first:end]


def _added(
    file: Path, before: NDArray[Any] | None, source: NDArray[Any], destination: NDArray[Any], amount: NDArray[Any]
) -> NDArray[Any]:
    """The sums of a step and layer with these rows in them, as large as its highest rank asks for."""
    shown = 0 if before is None else len(before)
    ranks = max(shown, int(source.max()) + 1, int(destination.max()) + 1)
    whole = amount.dtype.kind in "iu"
    largest = int(before.max()) if whole and before is not None else 0
    if whole and largest + int(amount.max()) * len(amount) >= 2**63:
        raise InputError(f"{file}: amounts add up to 2^63 and more: give smaller ones")
    total = np.zeros((ranks, ranks), dtype=np.int64 if whole else np.float64)
    if before is not None:
        total[:shown, :shown] = before
    np.add.at(total, (source, destination), amount.astype(total.dtype, copy=False))
    return narrowed(total)


def _place(keys: list[str], values: list[int]) -> Place:
    given = dict(zip(keys, values, strict=False))
    return Place(given.get("step"), given.get("layer"))
