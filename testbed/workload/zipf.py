"""Zipf demand: every sender sends most to the same popular receivers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError

__all__ = ["zipf"]


def zipf(hosts: int, skew: float, bytes_per_sender: int, mtu_bytes: int, seed: int) -> NDArray[np.int64]:
    """D_ij = T rank_j^-s / sum(rank^-s) in whole packets, zero diagonal; wire bytes (paper, equation 1).

    ``bytes_per_sender`` is T, the diagonal included; the others are not re-normalised for it. The order of
    popularity is random by ``seed`` and shared by all senders. At least one packet a flow.
    """
    if not 2 <= hosts <= 1000:
        raise InputError(f"--hosts {hosts}: give 2 to 1000")
    if not 0 <= skew <= 10:
        raise InputError(f"--s {skew:g}: give a skew of 0 to 10")
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed {seed}: give 0 to 4294967295")
    if hosts * bytes_per_sender >= 2**62:
        raise InputError(f"--bytes {bytes_per_sender}: {hosts} senders would send more than 2^62 bytes: give less")
    weights = np.arange(1, hosts + 1, dtype=np.float64) ** -skew
    packets = np.maximum(1, np.round(bytes_per_sender * weights / weights.sum() / mtu_bytes)).astype(np.int64)
    rank = np.random.Generator(np.random.PCG64(seed)).permutation(hosts)
    demand = np.tile(packets[rank] * mtu_bytes, (hosts, 1))
    np.fill_diagonal(demand, 0)
    return demand
