"""Chronos: the demand in base 2, a bit plane at a time by a wavefront arbiter."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from controller.demand import Demand
from controller.schedule.decomposition import Transfers, sliced
from controller.schedule.plan import Plan, Schedule, Setting, staged

__all__ = ["SCHEDULE", "wavefront"]


def wavefront(requests: NDArray[np.bool_]) -> NDArray[np.int64]:
    """A maximal matching: column of each row, -1 of one without. Diagonals i + j = 0 to 2N - 2 in turn, each at once.

    No two entries of a diagonal share a row or a column (Tamir and Chi 1993).
    """
    hosts = len(requests)
    columns = np.full(hosts, -1, dtype=np.int64)
    row_free, column_free = np.ones(hosts, dtype=bool), np.ones(hosts, dtype=bool)
    sources, destinations = np.nonzero(requests)
    order = np.argsort(sources + destinations, kind="stable")
    sources, destinations = sources[order], destinations[order]
    ends = np.searchsorted(sources + destinations, np.arange(2 * hosts))
    for first, last in pairwise(ends):
        i, j = sources[first:last], destinations[first:last]
        granted = row_free[i] & column_free[j]
        i, j = i[granted], j[granted]
        columns[i] = j
        row_free[i] = column_free[j] = False
    return columns


def _plan(demand: Demand, setting: Setting) -> Plan:
    packets = -(-demand.wire_bytes // setting.mtu_bytes)
    merged: dict[bytes, int] = {}
    for bit in reversed(range(int(packets.max()).bit_length())):
        plane = (packets >> bit & 1).astype(bool)
        while plane.any():
            columns = wavefront(plane)
            rows = np.nonzero(columns >= 0)[0]
            plane[rows, columns[rows]] = False
            merged[columns.tobytes()] = merged.get(columns.tobytes(), 0) + (1 << bit)
    stages: list[Transfers] = []
    for key, weight in merged.items():
        columns = np.frombuffer(key, dtype=np.int64)
        stages.append([(int(i), int(columns[i]), weight) for i in np.nonzero(columns >= 0)[0]])
    return staged(demand.hosts, sliced(stages, demand.wire_bytes, setting.mtu_bytes))


SCHEDULE = Schedule(
    name="chronos",
    source="Renganathan, McKeown, NAIC 2025, whose text is not public: after a third party's description; equal matchings of two "
    "planes are merged into one stage",
    complexity="log2 M planes, up to 2N - 1 sweeps of 2N - 1 diagonals each; in hardware all planes at once",
    length="some 1.2 x the flat bound on average, in whole packets: planes do not keep equal sums",
    plan=_plan,
)
