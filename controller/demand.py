"""The demand matrix: who sends how much to whom, in bytes on the wire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from controller.errors import InputError
from controller.formats import AUTO, Place, Reading, Trace, read_trace
from controller.formats.trace import counted
from controller.loads import PortLoads, exact_total, port_loads

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "DIRECTIONS",
    "HEADER_BYTES",
    "MAX_HOSTS",
    "MTU_BYTES",
    "UNITS",
    "Bottleneck",
    "Demand",
    "DemandSequence",
    "bottleneck_of",
    "load_demand",
    "load_demands",
    "payload_bytes",
]

MTU_BYTES: Final = 4096
HEADER_BYTES: Final = 64
"""Headers of one packet, inside its MTU (DESIGN: 4096 B on the wire, 64 B of it headers)."""
MAX_HOSTS: Final = 1000
UNITS: Final = ("tokens", "bytes", "wire-bytes")
DIRECTIONS: Final = ("dispatch", "combine", "both")
"""As it is read; transposed; or each demand and then its transpose."""
_MAX_TOTAL: Final = 2**63 - 1
_MAX_TOKEN_BYTES: Final = 2**31
_BLOCK_ROWS: Final = 64


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


class _Changes(NamedTuple):
    """What became of a demand as it was read, and is said of it."""

    local_bytes: int
    filled: int
    """Flows whose last packet was filled up to a header."""
    rounded: int
    """Entries that were no whole bytes."""


@dataclass(frozen=True)
class DemandSequence:
    """The demands of a file in their order in time. Each is made when it is asked for: traces hold thousands."""

    path: Path
    trace: Trace
    unit: str
    """What the entries count: tokens, bytes or wire-bytes."""
    token_bytes: int
    combine_token_bytes: int
    mtu_bytes: int
    hosts_per_server: int
    direction: str

    def __len__(self) -> int:
        return len(self.trace) * (2 if self.direction == "both" else 1)

    def place(self, index: int) -> Place:
        """Step and layer of demand ``index``, and whether it is a combine."""
        place, combine = self._which(index)
        found = self.trace.places[place]
        return found._replace(part=f"{found.part} combine".strip()) if combine else found

    def _which(self, index: int) -> tuple[int, bool]:
        if self.direction == "both":
            return index // 2, bool(index % 2)
        return index, self.direction == "combine"

    def _where(self, index: int) -> str:
        place = str(self.place(index)) if len(self) > 1 else ""
        return f"{self.path}: {place}" if place else str(self.path)

    def _made(self, index: int) -> tuple[Demand, _Changes]:
        place, combine = self._which(index)
        counts = self.trace.matrix(place)
        where = self._where(index)
        _check_shape(where, counts)
        factor = (self.combine_token_bytes if combine else self.token_bytes) if self.unit == "tokens" else 1
        payload, rounded = _scaled(where, counts.T if combine else counts, factor)
        if rounded and self.unit != "tokens" and float(counts.max()) <= 1:
            raise InputError(f"{where} holds shares, none above 1, and no bytes: multiply them by what is sent")
        demand, filled = _demand(where, payload, self.unit, self.mtu_bytes, self.hosts_per_server)
        return demand, _Changes(demand.local_bytes, filled, rounded)

    def __getitem__(self, index: int) -> Demand:
        """Raises InputError, which names the file and the place in it."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        demand, changes = self._made(index)
        return replace(demand, notes=self._notes_of(self._where(index), changes))

    def __iter__(self) -> Iterator[Demand]:
        return (self[index] for index in range(len(self)))

    def _notes_of(self, where: str, changes: _Changes) -> tuple[str, ...]:
        notes = []
        if changes.rounded:
            are, were = ("is", "was") if changes.rounded == 1 else ("are", "were")
            notes.append(f"{where}: {counted(changes.rounded, 'amount')} {are} no whole bytes, and {were} rounded up")
        if changes.local_bytes:
            at = "on the diagonal" if self.hosts_per_server == 1 else "inside servers"
            notes.append(f"{where}: {changes.local_bytes} bytes {at} are local and do not enter the network")
        if changes.filled:
            notes.append(
                f"{where}: the last packet of {counted(changes.filled, 'flow')} was filled up to its {HEADER_BYTES} B header"
            )
        return tuple(notes)

    def read(self) -> tuple[Demand, ...]:
        """All of them. What was assumed stands in the notes of the first, once for all."""
        made = [self._made(index) for index in range(len(self))]
        hosts = {demand.hosts for demand, _ in made}
        if len(hosts) > 1:
            raise InputError(
                f"{self.path} has demands of {min(hosts)} to {max(hosts)} hosts: choose with --steps and --layers"
            )
        changes = _Changes(*(sum(counts) for counts in zip(*(each for _, each in made), strict=True)))
        notes = self._notes_of(str(self.path), changes)
        first, *others = (demand for demand, _ in made)
        return (replace(first, notes=(*self.trace.notes, *notes)), *others)


def load_demands(
    path: Path | str,
    *,
    unit: str = AUTO,
    token_bytes: int = 0,
    mtu_bytes: int = MTU_BYTES,
    hosts_per_server: int = 1,
    reading: Reading | None = None,
    direction: str = "dispatch",
    combine_token_bytes: int = 0,
) -> DemandSequence:
    """The demands of a matrix file or a trace, as bytes on the wire.

    ``unit`` says what an entry counts: ``tokens`` of ``token_bytes`` payload each, payload ``bytes``, or ``wire-bytes``
    with the headers already in; ``auto`` is what the format says, else payload bytes. Payload is cut into packets of
    ``mtu_bytes``, of which ``HEADER_BYTES`` are headers; the last packet of a flow is as short as what is left. ``reading`` says what
    the file does not. A combine goes the other way, with ``combine_token_bytes`` a token (0: the same).

    Raises InputError, which names the file and what to do.
    """
    if unit not in (AUTO, *UNITS):
        raise InputError(f"unit {unit!r} is not known: use one of {', '.join(UNITS)}")
    if direction not in DIRECTIONS:
        raise InputError(f"direction {direction!r} is not known: use one of {', '.join(DIRECTIONS)}")
    path = Path(path)
    trace = read_trace(path, reading)
    told = trace.unit or "bytes"
    if unit == AUTO:
        unit = told
    elif trace.unit and unit != told and (told, unit) != ("bytes", "wire-bytes"):
        raise InputError(f"{path} counts {told}, but the unit is {unit}: leave the unit out")
    for name, size in (("token_bytes", token_bytes), ("combine_token_bytes", combine_token_bytes)):
        if unit != "tokens" and size:
            remedy = "" if trace.unit else "give --unit tokens, or "
            raise InputError(
                f"{path}: {name} goes with unit tokens, but the unit is {unit}: {remedy}leave --{name.replace('_', '-')} out"
            )
        if size > _MAX_TOKEN_BYTES:
            raise InputError(f"{path}: {name} is {size}: give at most 2^31")
    if unit == "tokens" and not token_bytes > 0:
        raise InputError(
            f"{path}: unit tokens needs the size of a token: give token_bytes (--token-bytes), such as 7168, at most 2^31"
        )
    if combine_token_bytes and direction == "dispatch":
        raise InputError(
            f"{path}: combine_token_bytes goes with direction combine or both: give --direction, or leave it out"
        )
    return DemandSequence(
        path, trace, unit, token_bytes, combine_token_bytes or token_bytes, mtu_bytes, hosts_per_server, direction
    )


def load_demand(
    path: Path | str,
    *,
    unit: str = AUTO,
    token_bytes: int = 0,
    mtu_bytes: int = MTU_BYTES,
    hosts_per_server: int = 1,
    reading: Reading | None = None,
) -> Demand:
    """The one demand of a file: see load_demands. Raises InputError, also where the file holds several."""
    sequence = load_demands(
        path,
        unit=unit,
        token_bytes=token_bytes,
        mtu_bytes=mtu_bytes,
        hosts_per_server=hosts_per_server,
        reading=reading,
    )
    if len(sequence) != 1:
        raise InputError(
            f"{path} holds {len(sequence)} demands, {sequence.place(0)} to {sequence.place(len(sequence) - 1)}: choose one with "
            "--steps and --layers"
        )
    return sequence.read()[0]


def payload_bytes(demand: Demand, mtu_bytes: int = MTU_BYTES) -> NDArray[np.int64]:
    """What is left of the wire bytes without headers, N x N: what load_demands was given, if it was payload."""
    return demand.wire_bytes - HEADER_BYTES * -(-demand.wire_bytes // mtu_bytes)


def _demand(
    where: str, payload: NDArray[np.int64], unit: str, mtu_bytes: int, hosts_per_server: int
) -> tuple[Demand, int]:
    """The demand, which is made of ``payload`` in place, and of how many flows the last packet was filled up to a header."""
    servers = np.arange(len(payload)) // hosts_per_server
    local_bytes = filled = total = 0
    for rows in _blocks(len(payload)):
        part = payload[rows]
        local = servers[rows, None] == servers[None, :]
        local_bytes += int(part[local].sum())
        part[local] = 0
        if unit != "wire-bytes":
            added = HEADER_BYTES * -(-part // (mtu_bytes - HEADER_BYTES))
        else:
            last = part % mtu_bytes
            short = (last > 0) & (last < HEADER_BYTES)
            added = np.where(short, HEADER_BYTES - last, 0)
            filled += int(short.sum())
        # What is added is small against the payload, so that each of the two sums is exact.
        total += exact_total(part) + exact_total(added)
        if total > _MAX_TOTAL:
            raise InputError(f"{where}: the total on the wire is above 2^63 bytes: give smaller amounts")
        part += added
    return Demand(payload, local_bytes), filled


def _blocks(rows: int) -> Iterator[slice]:
    """So many rows at a time: what is computed of them stays in the processor's cache, and takes no memory of a whole matrix."""
    return (slice(first, min(first + _BLOCK_ROWS, rows)) for first in range(0, rows, _BLOCK_ROWS))


def _check_shape(path: str, counts: NDArray[np.generic]) -> None:
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1]:
        shape = " x ".join(str(n) for n in counts.shape)
        raise InputError(f"{path}: the matrix is {shape}, but must be square: one row and one column a host")
    if counts.shape[0] == 0:
        raise InputError(f"{path} holds an empty matrix: give at least 2 x 2")
    if counts.shape[0] < 2:
        raise InputError(f"{path}: a single host has nobody to send to: give at least 2 x 2")
    if counts.shape[0] > MAX_HOSTS:
        raise InputError(f"{path}: {counts.shape[0]} hosts are too many: at most {MAX_HOSTS} are supported")


def _place(path: str, first_row: int, wrong: NDArray[np.bool_]) -> str:
    row, column = (int(n) for n in np.argwhere(wrong)[0])
    return f"{path}: row {first_row + row + 1}, column {column + 1}"


def _scaled(path: str, counts: NDArray[np.generic], factor: int) -> tuple[NDArray[np.int64], int]:
    """Whole bytes from counts, an array of its own; part of a byte counts as a byte, and of how many entries it did."""
    payload = np.empty(counts.shape, dtype=np.int64)
    total = rounded = 0
    for rows in _blocks(len(counts)):
        payload[rows], parts = _scaled_rows(path, counts[rows], factor, rows.start)
        rounded += parts
        total += exact_total(payload[rows])
    if total > _MAX_TOTAL:
        raise _too_large(path)
    return payload, rounded


def _scaled_rows(path: str, counts: NDArray[np.generic], factor: int, first_row: int) -> tuple[NDArray[np.int64], int]:
    real = counts.dtype.kind == "f"
    if real:
        with np.errstate(over="ignore"):
            wrong = ~np.isfinite(counts.astype(np.float64))
        if wrong.any():
            raise InputError(f"{_place(path, first_row, wrong)} is not a finite number: give 0 where nothing is sent")
    negative = np.less(counts, 0)
    if negative.any():
        raise InputError(f"{_place(path, first_row, negative)} is negative: an amount to send is 0 or more")
    with np.errstate(over="ignore"):
        exact = counts.astype(np.float64) * factor
        large = np.ceil(exact)
    if large.max(initial=0) >= 2.0**63 or (not real and int(counts.max()) * factor > _MAX_TOTAL):
        raise _too_large(path)
    if real:
        return large.astype(np.int64), int(np.count_nonzero(large != exact))
    return counts.astype(np.int64) * factor, 0


def _too_large(path: str) -> InputError:
    return InputError(f"{path}: the total is above 2^63 bytes: give smaller amounts, or a smaller token_bytes")
