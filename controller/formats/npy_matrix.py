"""NPY: NumPy's array file (numpy.lib.format). Arrays of objects are refused unread: they are pickles."""

from __future__ import annotations

import io
import math
import tokenize
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError

__all__ = ["MAGIC", "parse"]

MAGIC: Final = b"\x93NUMPY"


def parse(path: Path, content: bytes) -> NDArray[np.generic]:
    """The array of an NPY file, if it holds numbers."""
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, columns_first, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, columns_first, dtype = np.lib.format.read_array_header_2_0(stream)
    except (ValueError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise InputError(f"{path} has a damaged NPY header ({_first_line(error)}): write it anew") from None
    if dtype.hasobject:
        raise InputError(f"{path} holds Python objects, which are not read: save numbers (int64 or float64)")
    if dtype.kind not in "iuf":
        raise InputError(f"{path} holds {dtype}, not numbers: save int64 or float64")
    if 0 in shape:
        return np.empty(shape, dtype=dtype)
    try:
        if min(shape, default=0) < 0:
            raise ValueError("a negative length")
        # The content itself, which np.load would copy.
        array = np.frombuffer(content, dtype=dtype, count=math.prod(shape), offset=stream.tell())
        return array.reshape(shape, order="F" if columns_first else "C")
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        raise InputError(f"{path} is a damaged NPY file ({_first_line(error)}): write it anew") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no reason given"])[0][:80]
