"""Matrices as such, in CSV, NPY, NPZ and torch files: one of ranks x ranks, or one a step, or one a step and layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError
from controller.formats import csv_matrix, npy_matrix
from controller.formats.files import read_content
from controller.formats.named_arrays import npz_arrays
from controller.formats.torch_file import Tensor, read_torch
from controller.formats.trace import Place, Reading, Trace, kept_places, refuse_given

__all__ = ["read_csv", "read_npy", "read_npz", "read_torch_matrix", "refuse_options", "trace_of"]


def refuse_options(path: Path, reading: Reading) -> None:
    """What a matrix that has senders and receivers leaves no room for. Raises InputError."""
    names = ("ranks", "experts_per_rank", "placement", "source_rows", "token_copies")
    refuse_given(path, reading, "is a matrix of senders and receivers", *names)


def _single(path: Path, files: Sequence[Path], reading: Reading) -> Path:
    if len(files) != 1:
        raise InputError(f"{path} is {len(files)} files, but a matrix is one: name it")
    refuse_options(path, reading)
    return files[0]


def trace_of(path: Path, kind: str, array: NDArray[np.generic], reading: Reading, unit: str = "") -> Trace:
    """A matrix, or [steps] or [steps, layers] of them. Shapes of one matrix are checked in controller/demand.py."""
    array.setflags(write=False)
    if array.ndim not in (3, 4) or not array.size or array.shape[-1] != array.shape[-2]:
        if reading.steps or reading.layers:
            raise InputError(f"{path} is one matrix: leave --steps and --layers out")
        return Trace(kind, unit, (Place(),), lambda _: array)
    if array.ndim == 3 and reading.layers:
        raise InputError(f"{path} has steps alone: leave --layers out")
    indices = [
        index
        for index in np.ndindex(*array.shape[:-2])
        if reading.wants(index[0], index[1] if len(index) > 1 else None)
    ]
    places = [Place(index[0], index[1] if len(index) > 1 else None) for index in indices]
    kept, notes = kept_places(path, places, [int(np.count_nonzero(array[index])) for index in indices])

    def matrix(number: int) -> NDArray[np.generic]:
        return array[indices[kept[number]]]

    return Trace(kind, unit, tuple(places[number] for number in kept), matrix, tuple(notes))


def read_csv(path: Path, files: Sequence[Path], reading: Reading) -> Trace:
    """See csv_matrix."""
    file = _single(path, files, reading)
    return trace_of(file, "csv", csv_matrix.parse(file), reading)


def read_npy(path: Path, files: Sequence[Path], reading: Reading) -> Trace:
    """See npy_matrix."""
    file = _single(path, files, reading)
    return trace_of(file, "npy", npy_matrix.parse(file, read_content(file)), reading)


def _only(path: Path, arrays: dict[str, NDArray[np.generic]], described: Callable[[str], str]) -> NDArray[np.generic]:
    if len(arrays) != 1:
        raise InputError(
            f"{path} holds {described(', '.join(sorted(arrays))[:80] or 'nothing')}: save one matrix alone"
        )
    array = next(iter(arrays.values()))
    if array.dtype.kind not in "iuf":
        raise InputError(f"{path} holds {array.dtype}, not numbers: save int64 or float64")
    return array


def read_npz(path: Path, files: Sequence[Path], reading: Reading) -> Trace:
    """One array, whatever its name."""
    file = _single(path, files, reading)
    array = _only(file, npz_arrays(file, narrow=True), lambda names: f"arrays {names}")
    return trace_of(file, "npz", array, reading)


def read_torch_matrix(path: Path, files: Sequence[Path], reading: Reading) -> Trace:
    """A tensor by itself."""
    file = _single(path, files, reading)
    value = read_torch(file)
    if not isinstance(value, Tensor):
        raise InputError(f"{file} holds neither a matrix nor a dump that is known: see docs/formats.md")
    return trace_of(file, "torch", _only(file, {"": value.array()}, str), reading)
