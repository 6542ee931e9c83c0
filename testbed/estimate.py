"""What plans know of a demand: an estimate that is out of date, or wrong, where the experiment says so. What is sent is the demand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from controller.demand import HEADER_BYTES, MTU_BYTES, Demand
from controller.schedule.plan import Discipline, Plan

__all__ = ["ESTIMATE", "estimate_of", "for_traffic"]

ESTIMATE: Final = 7
"""Purpose of the random stream (testbed/job.py has the others)."""


def estimate_of(
    demand: Demand,
    *,
    stale: Fraction,
    error: Fraction,
    seed: int,
    phase: int = 0,
    gpus_per_server: int = 1,
    mtu_bytes: int = MTU_BYTES,
) -> Demand:
    """The demand as plans know it, wire bytes; the demand itself where both shares are 0.

    ``stale``, 0 to 1: this share of it is still that of an older demand, in which each server, GPU by GPU, had the place of another: as
    skewed, but with other favourites. ``error``, 0 to 1: after that each flow is at random taken to be so much
    larger or smaller. Both are drawn from ``seed``, for each ``phase`` anew. A flow that comes to nothing is unknown to plans.
    """
    if not stale and not error:
        return demand
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, ESTIMATE, phase])))
    now = demand.wire_bytes.astype(np.float64)
    older = _places(demand.hosts, gpus_per_server, random)
    known = (1 - float(stale)) * now + float(stale) * now[np.ix_(older, older)]
    known *= 1 + float(error) * np.where(random.random(known.shape) < 0.5, -1.0, 1.0)
    wire_bytes = np.rint(known).astype(np.int64)
    # No packet is shorter than its header.
    last = wire_bytes % mtu_bytes
    wire_bytes += np.where((last > 0) & (last < HEADER_BYTES), HEADER_BYTES - last, 0)
    return Demand(wire_bytes)


def _places(hosts: int, gpus_per_server: int, random: np.random.Generator) -> NDArray[np.int64]:
    """For each host the one whose place it had: all servers in one random circle. Hosts of a last server that is not full keep theirs."""
    servers = hosts // gpus_per_server
    circle = random.permutation(servers)
    older = np.empty(servers, dtype=np.int64)
    older[circle] = np.roll(circle, 1)
    places = np.arange(hosts)
    full = servers * gpus_per_server
    places[:full] = older[places[:full] // gpus_per_server] * gpus_per_server + places[:full] % gpus_per_server
    return places


def for_traffic(plan: Plan, demand: Demand, exact: Plan | None = None) -> Plan:
    """A plan of an estimate, for the ``demand`` that is sent: flows that it does not know get what is needed to be sent at all.

    A rate, or a turn, as small as the smallest of their sender's, or of all senders', or an equal part of the line rate where there is
    none. With stages nothing is needed: what no stage names goes after them. ``exact`` is the plan of the demand itself: what
    servers move inside follows that, since a server sees its own data.
    """
    sent = demand.wire_bytes > 0
    if plan.discipline is Discipline.PACED:
        return replace(plan, steps=_filled(plan.steps, sent, 2**32 // demand.hosts))
    if plan.quanta_bytes is not None:
        return replace(plan, quanta_bytes=_filled(plan.quanta_bytes, sent, MTU_BYTES))
    if exact is not None and exact.carries is not None:
        return replace(plan, carries=exact.carries, inner=exact.inner)
    return plan


def _filled(given: NDArray[np.uint32], sent: NDArray[np.bool_], otherwise: int) -> NDArray[np.uint32]:
    """``given`` with something for every flow that is ``sent``."""
    none = np.uint32(2**32 - 1)
    least = np.where(given > 0, given, none).min(axis=1, keepdims=True)
    smallest = np.uint32(least.min() if (given > 0).any() else otherwise)
    share = np.where((given > 0).any(axis=1, keepdims=True), least, smallest)
    return np.where(sent & (given == 0), share, given).astype(np.uint32)
