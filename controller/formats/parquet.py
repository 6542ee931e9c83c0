"""Parquet: a matrix (one numeric column a receiver), or a table with src, dst and an amount, and perhaps step and layer.

Needs pyarrow, which the controller does not otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import CannotRunError, InputError
from controller.formats.files import open_file
from controller.formats.matrices import refuse_options, trace_of
from controller.formats.trace import MAX_RANKS, Place, Reading, Trace, kept_places

__all__ = ["MAGIC", "read"]

MAGIC: Final = b"PAR1"
_AMOUNTS: Final = {"tokens": "tokens", "bytes": "bytes", "wire_bytes": "wire-bytes", "count": ""}
"""Names of the column of amounts, and the unit that they say."""
_BATCH: Final = 1 << 18


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
            table = pyarrow.parquet.ParquetFile(pyarrow.PythonFile(stream, mode="r"))
            fields = {field.name: field.type for field in table.schema_arrow}
            if len(fields) != len(table.schema_arrow):
                raise InputError(f"{file} has two columns of one name: rename one")
            if {"src", "dst"} <= fields.keys():
                _check_types(file, fields)
                refuse = Reading(
                    experts_per_rank=reading.experts_per_rank,
                    placement=reading.placement,
                    source_rows=reading.source_rows,
                )
                refuse_options(file, refuse)
                return _long(file, table, reading, set(fields))
            rows, columns = table.metadata.num_rows, len(fields)
            if rows != columns:
                raise InputError(
                    f"{file} is {rows} x {columns}: give a square matrix, or columns src, dst and one of {', '.join(_AMOUNTS)}"
                )
            if columns > MAX_RANKS:
                raise InputError(f"{file}: {columns} hosts are too many: at most {MAX_RANKS} are supported")
            _check_types(file, fields)
            refuse_options(file, reading)
            whole = table.read()
            arrays = [_numbers(file, name, whole.column(name)) for name in fields]
            return trace_of(file, "parquet", np.stack(arrays, axis=1), reading)
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


def _numbers(file: Path, name: str, column: Any) -> NDArray[Any]:
    if column.null_count:
        raise InputError(f"{file}: column {name[:40]!r} has empty cells: give 0 where nothing is sent")
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
    wanted = ["src", "dst", *amounts, *keys]
    highest = -1
    for batch in table.iter_batches(batch_size=_BATCH, columns=wanted):
        values = {name: _numbers(file, name, batch.column(name)) for name in wanted}
        for name in ("src", "dst", *keys):
            ids = values[name]
            limit = MAX_RANKS if name in ("src", "dst") else 2**31
            if ids.dtype.kind not in "iu" or (len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= limit)):
                raise InputError(f"{file}: column {name} must hold whole numbers of 0 to {limit - 1}")
        if not len(values["src"]):
            continue
        highest = max(highest, int(values["src"].max()), int(values["dst"].max()))
        amount = values[amounts[0]]
        whole = amount.dtype.kind in "iu"
        if whole and (int(amount.min()) < 0 or int(amount.max()) >= 2**63):
            raise InputError(f"{file}: column {amounts[0]} must hold amounts of 0 or more, below 2^63")
        if not whole and not (np.isfinite(amount).all() and (amount >= 0).all()):
            raise InputError(f"{file}: column {amounts[0]} must hold finite amounts of 0 or more")
        stacked = np.stack(
            [values[name].astype(np.int64) for name in keys] or [np.zeros(len(amount), dtype=np.int64)], axis=1
        )
        for key in np.unique(stacked, axis=0):
            if keys and not reading.wants(*_place(keys, key.tolist())[:2]):
                continue
            own = (stacked == key).all(axis=1)
            total = sums.setdefault(
                tuple(key.tolist()), np.zeros((MAX_RANKS, MAX_RANKS), dtype=np.int64 if whole else np.float64)
            )
            if whole and int(total.max()) + int(amount.max()) * len(amount) >= 2**63:
                raise InputError(f"{file}: amounts add up to 2^63 and more: give smaller ones")
            np.add.at(total, (values["src"][own], values["dst"][own]), amount[own])
            if len(sums) * MAX_RANKS * MAX_RANKS * 8 > 2**31:
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
        return sums[order[kept[number]]][:ranks, :ranks].copy()

    return Trace(
        "parquet",
        _AMOUNTS[amounts[0]],
        tuple(_place(keys, list(order[number])) for number in kept),
        matrix,
        tuple(notes),
    )


def _place(keys: list[str], values: list[int]) -> Place:
    given = dict(zip(keys, values, strict=False))
    return Place(given.get("step"), given.get("layer"))
