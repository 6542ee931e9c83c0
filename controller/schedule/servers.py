"""What schedules that move data inside servers share: shares of GPUs, and what the moves are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from controller.demand import HEADER_BYTES, Demand
from controller.errors import InputError
from controller.schedule.plan import Setting, payload_of

__all__ = ["blocks_of", "joined", "moves", "server_count", "wire_of"]


def server_count(name: str, hosts: int, gpus_per_server: int) -> int:
    """Raises InputError where the last server would not be full."""
    if hosts % gpus_per_server:
        raise InputError(
            f"schedule {name}: {hosts} hosts are no whole number of servers of {gpus_per_server}: give another gpus_per_server"
        )
    return hosts // gpus_per_server


def blocks_of(demand: Demand, setting: Setting) -> NDArray[np.int64]:
    """Payload bytes as servers x servers x GPUs x GPUs: [a, b, g, h] is what GPU g of server a has for GPU h of server b."""
    payload = payload_of(demand.wire_bytes, setting.mtu_bytes)
    gpus = setting.gpus_per_server
    servers = len(payload) // gpus
    return payload.reshape(servers, gpus, servers, gpus).transpose(0, 2, 1, 3)


def joined(blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Blocks as one matrix of hosts again."""
    servers, _, gpus, _ = blocks.shape
    return blocks.transpose(0, 2, 1, 3).reshape(servers * gpus, servers * gpus)


def wire_of(payload: NDArray[np.int64], mtu_bytes: int) -> NDArray[np.int64]:
    """With the headers of as many full packets as can be."""
    return payload + HEADER_BYTES * -(-payload // (mtu_bytes - HEADER_BYTES))


def moves(has: NDArray[np.int64], wants: NDArray[np.int64]) -> NDArray[np.int64]:
    """GPUs x GPUs bytes that one server moves inside, so that its GPUs have ``wants`` in place of ``has``.

    Both are kinds x GPUs, with equal sums of each kind: bytes of one kind are alike, and go from those with too many to those
    with too few, in order.
    """
    gpus = has.shape[1]
    moved = np.zeros((gpus, gpus), dtype=np.int64)
    for there, then in zip(has, wants, strict=True):
        excess, lack = np.maximum(there - then, 0), np.maximum(then - there, 0)
        ends = np.minimum.outer(np.cumsum(excess), np.cumsum(lack))
        moved += np.diff(np.diff(ends, axis=0, prepend=0), axis=1, prepend=0)
    return moved
