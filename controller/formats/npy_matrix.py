"""NPY: NumPy's array file (numpy.lib.format). Arrays of objects are refused unread: they are pickles."""

from __future__ import annotations

import io
import math
import re
import tokenize
import warnings
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError

__all__ = ["MAGIC", "parse", "read_header"]

MAGIC: Final = b"\x93NUMPY"


def parse(path: Path, content: bytes) -> NDArray[np.generic]:
    """The array of an NPY file, if it holds numbers."""
    stream = io.BytesIO(content)
    try:
        shape, columns_first, dtype = read_header(stream)
    except (ValueError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise InputError(f"{path} has a damaged NPY header ({_first_line(error)}): write it anew") from None
    if dtype.hasobject:
        raise InputError(f"{path} holds Python objects, which are not read: save numbers (int64 or float64)")
    if dtype.kind not in "iuf":
        raise InputError(f"{path} holds {dtype}, not numbers: save int64 or float64")
    try:
        if min(shape, default=0) < 0:
            raise ValueError("a negative length")
        if 0 in shape:
            return np.empty(shape, dtype=dtype)
        # The content itself, which np.load would copy.
        array = np.frombuffer(content, dtype=dtype, count=math.prod(shape), offset=stream.tell())
        return array.reshape(shape, order="F" if columns_first else "C")
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        raise InputError(f"{path} is a damaged NPY file ({_first_line(error)}): write it anew") from None


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and type of the array that follows. Raises what NumPy and Python's parser raise."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version[0]}.{version[1]} is not known")
    with warnings.catch_warnings():
        # Of files of Python 2, and of damaged ones: who wrote them does not read this.
        warnings.simplefilter("ignore")
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(stream)
        return np.lib.format.read_array_header_2_0(stream)


def _first_line(error: Exception) -> str:
    """Without the place in memory that Python names objects by."""
    return re.sub(r" at 0x[0-9a-f]+", "", (str(error).splitlines() or ["no reason given"])[0])[:80]
