"""Rates for NICs: of all ranks from the whole demand, or of one from its row and the sums of all others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from controller import native
from controller.demand import Demand, bottleneck_of
from controller.errors import InputError
from controller.loads import PortLoads, exact_total, port_loads
from controller.nic.rate_table import RATE_ONE
from controller.schedule.rate import rate_steps, slack
from controller.steps import ceil_into

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["compute_rates", "rank_rates"]


def compute_rates(
    demand: Demand | NDArray[Any],
    *,
    steps: int = RATE_ONE,
    line_rates_bps: Sequence[Fraction | int | float] | None = None,
    rank: int | None = None,
) -> NDArray[np.uint32]:
    """R of all ranks (N x N, row = sender), or of one (N), from the whole demand.

    ``demand``: bytes on the wire; of an array the diagonal is left out. In steps of the sender's line rate, for
    Nic.write_rates: ``steps`` is Capabilities.steps of the NICs. ``line_rates_bps``: one a rank; all equal by
    default. Rates are rounded so that no demand gets rate 0, no port is oversubscribed, and the slowest flow ends
    within T* / lambda (slack). Raises InputError where the steps are too coarse for that, and for what is no demand.
    """
    wire_bytes = demand.wire_bytes if isinstance(demand, Demand) else np.asarray(demand)
    loads = port_loads(wire_bytes)
    hosts = len(wire_bytes)
    _check_steps(steps)
    if rank is not None and not 0 <= rank < hosts:
        raise InputError(f"rank {rank}: the demand has ranks 0 to {hosts - 1}")
    speeds = [Fraction(1)] * hosts if line_rates_bps is None else _speeds(line_rates_bps, hosts)
    ranks = range(hosts) if rank is None else range(rank, rank + 1)
    amounts = np.array(wire_bytes[ranks.start : ranks.stop], dtype=np.int64)
    amounts[np.arange(len(ranks)), ranks] = 0
    rates = np.zeros(amounts.shape, dtype=np.uint32)
    time_s = bottleneck_of(loads, speeds).time_s
    if time_s:
        stretched_s = time_s / slack(hosts, speeds if line_rates_bps is not None else [Fraction(1)], steps)
        rates = rate_steps(amounts, stretched_s, [speeds[sender] for sender in ranks], steps)
    return rates if rank is None else rates[0]


def rank_rates(
    row: NDArray[Any],
    received: NDArray[Any],
    sent: NDArray[Any] | int,
    *,
    steps: int = RATE_ONE,
    line_rates_bps: Sequence[Fraction | int | float] | None = None,
    rank: int | None = None,
) -> NDArray[np.uint32]:
    """R of one rank that knows its own row, and of all others the sums alone, as after an all-reduce.

    ``row``: bytes on the wire to each rank, 0 to itself. ``received``: what each rank gets in all, the column sums.
    ``sent``: what each rank sends in all, or, with equal line rates, the largest of these numbers. In none of them is
    what stays on a host. ``steps``, ``line_rates_bps`` and the result as for compute_rates, which returns the same;
    with line rates ``rank`` says whose row it is. Raises InputError for sums that are not those of this row.
    """
    hosts = len(row)
    _check_steps(steps)
    row, received = _whole(row, "row"), _whole(received, "received")
    if rank is not None and not (0 <= rank < hosts and row[rank] == 0):
        raise InputError(f"row {rank} of {hosts} ranks: give one that there is, and 0 for what stays on its host")
    if len(received) != hosts:
        raise InputError(f"{len(received)} column sums for a row of {hosts}: give one a rank")
    if line_rates_bps is not None:
        return _rank_rates_of(row, received, sent, steps, _speeds(line_rates_bps, hosts), rank)
    largest_row = int(sent) if isinstance(sent, (int, np.integer)) else int(_whole(sent, "sent").max(initial=0))
    usable = steps - hosts - 1  # lambda Q: the speeds cancel
    rates = np.empty(hosts, dtype=np.uint32)
    sound = usable > 0 and 0 <= largest_row < 2**63
    if native.part is not None and sound and native.part.rank_steps(row, received, largest_row, usable, rates):
        return rates
    _check_sums(row, received, largest_row)
    largest = max(largest_row, int(received.max(initial=0)))
    if not largest:
        return np.zeros(hosts, dtype=np.uint32)
    slack(hosts, [Fraction(1)], steps)
    ceil_into(rates, row, usable, largest)
    return rates


def _rank_rates_of(
    row: NDArray[np.int64],
    received: NDArray[np.int64],
    sent: NDArray[Any] | int,
    steps: int,
    line_rates_bps: Sequence[Fraction],
    rank: int | None,
) -> NDArray[np.uint32]:
    """With line rates that may differ: then the longest row is not the largest."""
    hosts = len(row)
    if isinstance(sent, (int, np.integer)) or len(sent) != hosts:
        raise InputError("with line rates the sums of all rows are needed: give one a rank")
    if rank is None:
        raise InputError(f"with line rates the rank is needed: say whose row it is, 0 to {hosts - 1}")
    sums = _whole(sent, "sent")
    _check_sums(row, received, int(sums[rank]))
    if sums.min() < 0:
        raise InputError(f"sent[{int(sums.argmin())}] is negative: an amount to send is 0 or more")
    time_s = bottleneck_of(PortLoads(sums, received), line_rates_bps).time_s
    if not time_s:
        return np.zeros(hosts, dtype=np.uint32)
    stretched_s = time_s / slack(hosts, line_rates_bps, steps)
    rates: NDArray[np.uint32] = rate_steps(row[None, :], stretched_s, [line_rates_bps[rank]], steps)[0]
    return rates


def _speeds(line_rates_bps: Sequence[Fraction | int | float], hosts: int) -> list[Fraction]:
    """Exactly; in bit/s."""
    if len(line_rates_bps) != hosts:
        raise InputError(f"{len(line_rates_bps)} line rates for {hosts} ranks: give one a rank")
    for rank, rate in enumerate(line_rates_bps):
        if not 0 < rate < math.inf:
            raise InputError(f"line_rates_bps[{rank}] is {rate}: give the speed of rank {rank}'s port, above 0 bit/s")
    return [Fraction(rate) for rate in line_rates_bps]


def _check_steps(steps: int) -> None:
    if not 0 < steps <= RATE_ONE:
        raise InputError(f"{steps} steps of the line rate: a NIC has 1 to 2^32")


def _whole(amounts: NDArray[Any], name: str) -> NDArray[np.int64]:
    """As contiguous int64."""
    if amounts.dtype == np.int64 and amounts.ndim == 1 and amounts.flags.c_contiguous:
        return amounts
    if amounts.ndim != 1 or amounts.dtype.kind not in "iu":
        raise InputError(f"{name} is {amounts.ndim}-dimensional {amounts.dtype}: give a line of whole bytes")
    if amounts.dtype == np.uint64 and int(amounts.max(initial=0)) >= 2**63:
        raise InputError(f"{name}: an amount is above 2^63 bytes: give smaller amounts")
    return np.ascontiguousarray(amounts, dtype=np.int64)


def _check_sums(row: NDArray[np.int64], received: NDArray[np.int64], row_sum: int) -> None:
    """Sums that are too small would oversubscribe a port."""
    if row.min(initial=0) < 0 or received.min(initial=0) < 0:
        name, amounts = ("row", row) if row.min() < 0 else ("received", received)
        raise InputError(f"{name}[{int(amounts.argmin())}] is negative: an amount to send is 0 or more")
    if exact_total(row) > row_sum or row_sum >= 2**63:
        raise InputError(f"the row has {exact_total(row)} bytes, but the largest row is said to have {row_sum}")
    over = row > received
    if over.any():
        rank = int(over.argmax())
        raise InputError(f"row[{rank}] is {int(row[rank])} bytes, but rank {rank} is said to get {int(received[rank])}")
