"""Perfect matchings on the non-zeros of a matrix whose rows and columns have equal sums (Birkhoff 1946: there is one)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import CannotRunError

__all__ = ["MATCHINGS", "heaviest"]

_NONE: Final = -1e9
"""Weight of a pair that may not be matched: far below the sum of all logarithms."""


def _scipy() -> tuple[Any, Any, Any]:
    try:
        from scipy.optimize import linear_sum_assignment
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import maximum_bipartite_matching
    except ImportError:
        raise CannotRunError(
            "scipy is missing, which schedules of stages find their matchings with: pip install 'incastfree[schedules]'"
        ) from None
    return linear_sum_assignment, csr_array, maximum_bipartite_matching


def _perfect(allowed: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """Column of each row in a perfect matching by Hopcroft and Karp (1973); None if there is none."""
    _, csr_array, maximum_bipartite_matching = _scipy()
    if not (allowed.any(axis=0).all() and allowed.any(axis=1).all()):
        return None
    columns = np.nonzero(allowed)[1].astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(allowed.sum(axis=1))]).astype(np.int32)
    graph = csr_array((np.ones(len(columns), dtype=np.int8), columns, starts), shape=allowed.shape)
    found = maximum_bipartite_matching(graph, perm_type="column")
    return None if (found < 0).any() else found.astype(np.int64)


def _any(matrix: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Whichever comes first."""
    del most
    found = _perfect(matrix > 0)
    assert found is not None
    return found


def _bottleneck(matrix: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """One whose smallest entry is as large as can be, which is at most ``most``: bisection over the entries."""
    rows = np.arange(len(matrix))
    found = _any(matrix, most)
    values = np.unique(matrix[(matrix > 0) & (matrix <= most)])
    low, high = int(np.searchsorted(values, matrix[rows, found].min())), len(values) - 1
    while low < high:
        middle = (low + high + 1) // 2
        better = _perfect(matrix >= values[middle])
        if better is None:
            high = middle - 1
        else:
            found = better
            low = int(np.searchsorted(values, min(matrix[rows, found].min(), values[-1])))
    return found


def _weight(matrix: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """One whose product of entries is the largest."""
    del most
    linear_sum_assignment, _, _ = _scipy()
    weights = np.where(matrix > 0, np.log(np.maximum(matrix, 1)), _NONE)
    found: NDArray[np.int64] = linear_sum_assignment(weights, maximize=True)[1].astype(np.int64)
    return found


MATCHINGS: Final[dict[str, Callable[[NDArray[np.int64], int], NDArray[np.int64]]]] = {
    "bottleneck": _bottleneck,
    "any": _any,
    "weight": _weight,
}
"""(matrix with a perfect matching on its non-zeros, largest entry that its smallest may be) to the column of each row."""


def heaviest(matrix: NDArray[np.int64]) -> NDArray[np.int64]:
    """Column of each row in a matching of the largest sum (Kuhn 1955); pairs of nothing are in it where nothing else is."""
    linear_sum_assignment, _, _ = _scipy()
    found: NDArray[np.int64] = linear_sum_assignment(matrix, maximize=True)[1].astype(np.int64)
    return found
