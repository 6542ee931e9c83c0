"""Arrays with names, one set a rank: from NPZ, from torch.save, or from JSON (an object, a list of them, or one a line)."""

from __future__ import annotations

import math
import tokenize
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError
from controller.formats.files import open_file, read_head
from controller.formats.json_values import json_lines, parse_json, record_of, whole_array
from controller.formats.narrow import narrowed
from controller.formats.npy_matrix import read_header
from controller.formats.torch_file import DAMAGE, ZIP_MAGIC, Tensor, member_names, plain_list, read_torch

__all__ = ["array_of", "named_sets", "npz_arrays", "npz_names"]

_MOST_RATIO: Final = 100
_FREE_BYTES: Final = 1 << 26
_PART_NUMBERS: Final = 1 << 17


def npz_names(path: Path) -> list[str]:
    """Names of the arrays in a zip file of numpy's; none where it is of torch. Raises InputError."""
    return [name.removesuffix(".npy") for name in member_names(path) if name.endswith(".npy")]


def npz_arrays(path: Path, names: Sequence[str] = (), *, narrow: bool = False) -> dict[str, NDArray[Any]]:
    """The arrays of an NPZ file with these names, or all; ``narrow``: whole numbers in as few bytes as hold them.

    Raises InputError; arrays of objects, which are pickles, are refused unread.
    """
    arrays: dict[str, NDArray[Any]] = {}
    with open_file(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                for info in archive.infolist():
                    name = info.filename.removesuffix(".npy")
                    if name == info.filename or (names and name not in names):
                        continue
                    if info.file_size > max(_FREE_BYTES, _MOST_RATIO * info.compress_size):
                        raise InputError(
                            f"{path}: {name} unpacks to {info.file_size} bytes, over {_MOST_RATIO} times as much as it takes: save it with numpy.savez"
                        )
                    with archive.open(info) as stream:
                        arrays[name] = _member(path, name, stream, info.file_size, narrow)
        except (*DAMAGE, TypeError, SyntaxError, tokenize.TokenError, RecursionError):
            raise InputError(f"{path} is a damaged NPZ file: write it anew") from None
    return arrays


def _member(path: Path, name: str, stream: IO[bytes], size: int, narrow: bool) -> NDArray[Any]:
    shape, columns_first, dtype = read_header(stream)
    if dtype.hasobject or dtype.kind not in "iufb":
        raise InputError(f"{path}: {name} holds {dtype}, not numbers: save int64 or float64")
    numbers = math.prod(shape)
    if any(length < 0 for length in shape) or numbers * dtype.itemsize > size:
        raise ValueError
    array = np.empty(numbers, dtype=np.uint8 if narrow and dtype.kind in "iu" else dtype)
    filled = 0
    while filled < numbers:
        part = np.frombuffer(_whole(stream, dtype.itemsize * min(_PART_NUMBERS, numbers - filled)), dtype=dtype)
        if narrow:
            part = narrowed(part, array.dtype)
            array = array.astype(part.dtype, copy=False)
        array[filled : filled + len(part)] = part
        filled += len(part)
    return array.reshape(shape, order="F" if columns_first else "C")


def _whole(stream: IO[bytes], size: int) -> bytes:
    """So many bytes, which a stream of a zip file may give in pieces. Raises ValueError where it ends before."""
    pieces = []
    while size:
        piece = stream.read(size)
        if not piece:
            raise ValueError
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def named_sets(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, values by name) of each set of a file, in order. Raises InputError."""
    head = read_head(path)
    if head.startswith(ZIP_MAGIC):
        if npz_names(path):
            yield str(path), dict(npz_arrays(path))
            return
        value = read_torch(path)
        for number, each in enumerate(plain_list(value) if isinstance(value, list) else [value], 1):
            where = f"{path}: entry {number}" if isinstance(value, list) else str(path)
            if not isinstance(each, dict):
                raise InputError(f"{where} is not a dictionary of names and tensors")
            yield where, each
        return
    if _is_lines(head):
        for number, line in json_lines(path):
            yield f"{path}: line {number}", record_of(f"{path}: line {number}", line)
        return
    with open_file(path) as file:
        value = parse_json(str(path), file.read())
    for number, each in enumerate(value if isinstance(value, list) else [value], 1):
        where = f"{path}: entry {number}" if isinstance(value, list) else str(path)
        if not isinstance(each, dict):
            raise InputError(f"{where} is not an object with names: give one JSON object a rank or a call")
        yield where, each


def _is_lines(head: bytes) -> bool:
    """One object a line: its first line is whole."""
    first = head.lstrip().partition(b"\n")[0].rstrip()
    return first.startswith(b"{") and first.endswith(b"}")


def array_of(where: str, value: Any, dimensions: int, least: int = 0, *, booleans: bool = False) -> NDArray[Any]:
    """A named value as an array of whole numbers, none below ``least``; lists of ``booleans`` too. Raises InputError."""
    if isinstance(value, Tensor):
        value = value.array()
    if isinstance(value, list):
        return whole_array(where, plain_list(value), dimensions, least, booleans=booleans)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iub":
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"{where} is {kind}: whole numbers are read")
    if value.ndim != dimensions:
        raise InputError(f"{where} has {value.ndim} dimensions, but must have {dimensions}")
    if value.size and value.dtype.kind != "b":
        low, high = int(value.min()), int(value.max())
        if low < least or high >= 2**63:
            raise InputError(
                f"{where} holds {low if low < least else high}: give whole numbers of {least} or more, below 2^63"
            )
    return value
