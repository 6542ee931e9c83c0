"""The demand matrix: who sends how much to whom, in bytes on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from controller.errors import InputError
from controller.formats import read_matrix
from controller.loads import PortLoads, exact_total, port_loads

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HEADER_BYTES", "MAX_HOSTS", "MTU_BYTES", "UNITS", "Bottleneck", "Demand", "bottleneck_of", "load_demand"]

MTU_BYTES: Final = 4096
HEADER_BYTES: Final = 64
"""Headers of one packet, inside its MTU (DESIGN: 4096 B on the wire, 64 B of it headers)."""
MAX_HOSTS: Final = 1000
UNITS: Final = ("tokens", "bytes", "wire-bytes")
_MAX_TOTAL: Final = 2**63 - 1
_MAX_TOKEN_BYTES: Final = 2**31


@dataclass(frozen=True)
class Bottleneck:
    """The port that decides when the collective can end."""

    side: str
    """"sender" (a row of the matrix) or "receiver" (a column)."""
    host: int
    load_bytes: int
    time_s: Fraction
    """Load over the port's speed: the lower bound T* of the completion time, exactly."""

    def __str__(self) -> str:
        return f"{self.side} {self.host}"


@dataclass(frozen=True)
class Demand:
    """An all-to-all of N hosts.

    ``wire_bytes`` is N x N, int64: entry (i, j) is what host i sends to host j over the network, headers
    included. Its diagonal is zero: local traffic never enters the network, and stands in ``local_bytes``.
    """

    wire_bytes: NDArray[np.int64]
    local_bytes: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def hosts(self) -> int:
        """N."""
        return int(self.wire_bytes.shape[0])

    @property
    def total_bytes(self) -> int:
        """On the wire, all flows."""
        return int(self.wire_bytes.sum())

    @property
    def max_port_bytes(self) -> int:
        """M, the largest row or column sum (paper, equation 3)."""
        return port_loads(self.wire_bytes).largest

    def bottleneck(self, speeds_bps: Sequence[Fraction]) -> Bottleneck:
        """The port with the largest load over speed; ``speeds_bps`` has one entry a host.

        With equal speeds its load is M. Of ports that tie, a receiver comes first, then the lower index.
        """
        return bottleneck_of(port_loads(self.wire_bytes), speeds_bps)


def bottleneck_of(loads: PortLoads, speeds_bps: Sequence[Fraction]) -> Bottleneck:
    """See Demand.bottleneck."""
    best: Bottleneck | None = None
    first = speeds_bps[0]
    equal = all(speed is first or speed == first for speed in speeds_bps)
    for side, sums in (("receiver", loads.received), ("sender", loads.sent)):
        # Of equal speeds the first of the largest loads, and no other, may be it.
        for host in [int(sums.argmax())] if equal else range(len(sums)):
            load = int(sums[host])
            time_s = Fraction(8 * load) / speeds_bps[host]
            if best is None or time_s > best.time_s:
                best = Bottleneck(side, host, load, time_s)
    assert best is not None
    return best


def load_demand(
    path: Path,
    *,
    unit: str = "bytes",
    token_bytes: int = 0,
    mtu_bytes: int = MTU_BYTES,
    hosts_per_server: int = 1,
) -> Demand:
    """Reads a matrix file and turns it into bytes on the wire.

    ``unit`` says what an entry counts: ``tokens`` of ``token_bytes`` payload each, payload ``bytes``, or
    ``wire-bytes`` with the headers already in. Payload is cut into packets of ``mtu_bytes``, of which
    ``HEADER_BYTES`` are headers; the last packet of a flow is as short as what is left.

    Raises InputError, which names the file and what to do.
    """
    if unit not in UNITS:
        raise InputError(f"unit {unit!r} is not known: use one of {', '.join(UNITS)}")
    if unit == "tokens" and not 0 < token_bytes <= _MAX_TOKEN_BYTES:
        raise InputError("unit tokens needs the size of a token: give token_bytes, such as 7168, at most 2^31")
    if unit != "tokens" and token_bytes:
        raise InputError(f"token_bytes goes with unit tokens, but the unit is {unit}")
    counts = read_matrix(path)
    _check_shape(path, counts)
    payload = _scaled(path, counts, token_bytes if unit == "tokens" else 1)

    notes: list[str] = []
    servers = np.arange(len(payload)) // hosts_per_server
    local = servers[:, None] == servers[None, :]
    local_bytes = int(payload[local].sum())
    payload[local] = 0
    if local_bytes:
        where = "on the diagonal" if hosts_per_server == 1 else "inside servers"
        notes.append(f"{path}: {local_bytes} bytes {where} are local and do not enter the network")
    if unit != "wire-bytes":
        added = HEADER_BYTES * -(-payload // (mtu_bytes - HEADER_BYTES))
    else:
        last = payload % mtu_bytes
        short = (last > 0) & (last < HEADER_BYTES)
        added = np.where(short, HEADER_BYTES - last, 0)
        if short.any():
            notes.append(
                f"{path}: the last packet of {int(short.sum())} flows was filled up to its {HEADER_BYTES} B header"
            )
    _check_total(path, payload, added)
    return Demand(payload + added, local_bytes, tuple(notes))


def _check_shape(path: Path, counts: NDArray[np.generic]) -> None:
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1]:
        shape = " x ".join(str(n) for n in counts.shape)
        raise InputError(f"{path}: the matrix is {shape}, but must be square: one row and one column a host")
    if counts.shape[0] == 0:
        raise InputError(f"{path} holds an empty matrix: give at least 2 x 2")
    if counts.shape[0] < 2:
        raise InputError(f"{path}: a single host has nobody to send to: give at least 2 x 2")
    if counts.shape[0] > MAX_HOSTS:
        raise InputError(f"{path}: {counts.shape[0]} hosts are too many: at most {MAX_HOSTS} are supported")


def _place(path: Path, wrong: NDArray[np.bool_]) -> str:
    row, column = (int(n) for n in np.argwhere(wrong)[0])
    return f"{path}: row {row + 1}, column {column + 1}"


def _scaled(path: Path, counts: NDArray[np.generic], factor: int) -> NDArray[np.int64]:
    """Whole bytes from counts; part of a byte counts as a byte."""
    if counts.dtype.kind == "f":
        with np.errstate(over="ignore"):
            wrong = ~np.isfinite(counts.astype(np.float64))
        if wrong.any():
            raise InputError(f"{_place(path, wrong)} is not a finite number: give 0 where nothing is sent")
    negative = np.less(counts, 0)
    if negative.any():
        raise InputError(f"{_place(path, negative)} is negative: an amount to send is 0 or more")
    with np.errstate(over="ignore"):
        large = np.ceil(counts.astype(np.float64) * factor)
    whole = large if counts.dtype.kind == "f" else counts
    if large.max(initial=0) < 2.0**63 and (counts.dtype.kind == "f" or int(counts.max()) * factor <= _MAX_TOTAL):
        payload = whole.astype(np.int64) * (1 if counts.dtype.kind == "f" else factor)
        if exact_total(payload) <= _MAX_TOTAL:
            return payload
    raise InputError(f"{path}: the total is above 2^63 bytes: give smaller amounts, or a smaller token_bytes")


def _check_total(path: Path, payload: NDArray[np.int64], added: NDArray[np.int64]) -> None:
    """What was added to the payload is small against it, so that each of the two sums is exact."""
    if exact_total(payload) + exact_total(added) > _MAX_TOTAL:
        raise InputError(f"{path}: the total on the wire is above 2^63 bytes: give smaller amounts")
