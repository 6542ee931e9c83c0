"""What a port did over time, from the tables of cells."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from testbed.grid.cells import Cell
from testbed.grid.store import Store

__all__ = ["PORTS", "hot_queue", "utilisation"]

_TABLE: Final = "ports"
PORTS: Final = (_TABLE,)
_BITS: Final = 8
_INTERVALS: Final = 100
_LEAST_PACKETS: Final = 25


def hot_queue(store: Store, cell: Cell) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(begin of each interval in us, deepest queue in it in packets of the MTU) at the port of the receiver most is sent to."""
    columns = store.columns(cell, _TABLE)
    own = columns["toward"] == cell.network.hot_host
    return columns["begin_ns"][own] / 1000, columns["queue_max_bytes"][own] / cell.network.mtu_bytes


def utilisation(store: Store, cell: Cell) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(begin of each interval in us, share of all links into hosts that is used, share of the hottest one), from 0 to 1.

    Intervals are a hundredth of the lower bound, or so long that a packet more or less does not show.
    """
    columns = store.columns(cell, _TABLE)
    network = cell.network
    # All buckets of one demand are equally long.
    bucket_ns = float(columns["bucket_ns"][0])
    packet_ns = _BITS * network.mtu_bytes / network.hot_gbps
    least_ns = max(network.lower_bound_ns / _INTERVALS, _LEAST_PACKETS * packet_ns)
    together = math.ceil(least_ns / bucket_ns)
    interval_ns = together * bucket_ns
    where = np.round(columns["begin_ns"] / bucket_ns).astype(np.int64) // together
    facing = np.isin(columns["toward"], network.hosts)
    hot = columns["toward"] == network.hot_host
    count = int(where.max()) + 1
    shares = [
        _BITS * np.bincount(where[own], weights=columns["sent_bytes"][own], minlength=count) / (interval_ns * gbps)
        for own, gbps in ((facing, network.total_gbps), (hot, network.hot_gbps))
    ]
    return np.arange(count) * interval_ns / 1000, shares[0], shares[1]
