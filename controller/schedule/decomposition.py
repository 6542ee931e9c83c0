"""Exact decomposition of a matrix of whole packets into weighted permutations (Birkhoff 1946, von Neumann 1953)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from controller.schedule.matching import MATCHINGS

__all__ = ["Transfers", "decompose", "padding", "sliced", "stages_of"]

Transfers = list[tuple[int, int, int]]
"""(row, column, amount) of one stage."""


def padding(matrix: NDArray[np.int64]) -> NDArray[np.int64]:
    """What brings all rows and columns to the largest sum: min(row slack, column slack), row by row (arXiv 2505.09764)."""
    rows, columns = matrix.sum(axis=1), matrix.sum(axis=0)
    most = max(rows.max(initial=0), columns.max(initial=0))
    row_slack, column_slack = most - rows, most - columns
    added = np.zeros_like(matrix)
    for row in np.nonzero(row_slack)[0]:
        # What is left of the row goes to the first columns that have room.
        room = np.cumsum(column_slack)
        taken = np.minimum(room, row_slack[row])
        added[row] = np.diff(taken, prepend=0)
        column_slack = column_slack - added[row]
    return added


def decompose(matrix: NDArray[np.int64], matching: str) -> Iterator[tuple[NDArray[np.int64], int]]:
    """(column of each row, weight) of permutations that add up to ``matrix``, whose row and column sums are all equal.

    At most N^2 - 2N + 2 of them, since each leaves a zero more (Marcus and Ree 1959); their weights add up to the sum.
    ``matching``: which perfect matching is taken each time, one of MATCHINGS.
    """
    find = MATCHINGS[matching]
    left = matrix.copy()
    rows = np.arange(len(left))
    remaining = int(left[0].sum()) if len(left) else 0
    most = remaining
    while remaining:
        columns = find(left, most)
        weight = int(left[rows, columns].min())
        left[rows, columns] -= weight
        remaining -= weight
        # Entries only fall, and so does the best that the smallest of a matching can be.
        most = weight if matching == "bottleneck" else remaining
        yield columns, weight


def stages_of(matrix: NDArray[np.int64], matching: str) -> list[Transfers]:
    """Stages that send ``matrix`` (whole packets), and last as many packets as its largest row or column has.

    Padding is virtual: a pair sends what is real first, and then pauses.
    """
    real = matrix.copy()
    rows = np.arange(len(matrix))
    stages: list[Transfers] = []
    for columns, weight in decompose(matrix + padding(matrix), matching):
        sent = np.minimum(real[rows, columns], weight)
        real[rows, columns] -= sent
        stages.append([(int(i), int(columns[i]), int(sent[i])) for i in np.nonzero(sent)[0]])
    return stages


def sliced(stages: list[Transfers], wire_bytes: NDArray[np.int64], mtu_bytes: int) -> Iterator[Transfers]:
    """Stages in bytes from stages in whole packets: the last packet of a flow is as short as what is left."""
    left = wire_bytes.copy()
    for stage in stages:
        transfers: Transfers = []
        for source, destination, packets in stage:
            size = min(packets * mtu_bytes, int(left[source, destination]))
            left[source, destination] -= size
            transfers.append((source, destination, size))
        yield transfers
