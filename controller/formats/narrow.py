"""Whole numbers in as few bytes as hold them: the counts of a trace are small, and files store them so."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["narrowed"]

_KINDS: Final = (np.uint8, np.uint16, np.uint32)


def narrowed(array: NDArray[Any], least: Any = np.uint8) -> NDArray[Any]:
    """The same numbers, as the first of uint8, uint16, uint32 and int64 that holds them and is no narrower than ``least``.

    The array itself where that is its type and where it holds fractions; uint64 where int64 does not hold them.
    """
    if array.dtype.kind not in "iu":
        return array
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    if high >= 2**63 or np.dtype(least) == np.uint64:
        return array.astype(np.uint64, copy=False)
    fits = (
        kind for kind in _KINDS if np.dtype(kind).itemsize >= np.dtype(least).itemsize and high <= np.iinfo(kind).max
    )
    return array.astype(np.int64 if low < 0 else next(fits, np.int64), copy=False)
