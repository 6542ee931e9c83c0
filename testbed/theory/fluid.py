"""A fluid model of round robin and of rates, for any matrix and any speeds of the hosts' ports.

A sender that has k unfinished flows sends each at 1/k of its line rate (round robin), or each at its own rate. Rates
change only where a flow ends. So what arrives at a receiver is piecewise constant, and its queue, which is drained at
line rate, is piecewise linear: both are computed from one such moment to the next, without a step size. Nothing is lost.
The queues are at the receivers' ports alone, as in the paper, or also at the links into a receiver's leaf (``behind``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["Fluid", "Ingress", "Profile", "fluid_rate", "fluid_rr"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_SAME_NS = 1e-6
Changes = tuple[Floats, Floats]
"""Times (ns), in any order, and by how much what arrives at a receiver changes then (bytes/ns)."""


@dataclass(frozen=True)
class Profile:
    """What one receiver's port sees; B breakpoints, between which nothing bends."""

    times_ns: Floats
    """B, in order, where several changes come at once as often; the first is 0, the last when the receiver has all."""
    arrival: Floats
    """B, bytes/ns: from each breakpoint to the next one."""
    queue_bytes: Floats
    """B, at the breakpoints."""

    @property
    def done_ns(self) -> float:
        """When the receiver has its last byte."""
        return float(self.times_ns[-1])

    @property
    def peak_bytes(self) -> float:
        """The deepest queue."""
        return float(self.queue_bytes.max())

    def queue_at(self, times_ns: Floats) -> Floats:
        """Bytes."""
        return np.asarray(np.interp(times_ns, self.times_ns, self.queue_bytes))

    def arrived_at(self, times_ns: Floats) -> Floats:
        """Bytes that have come by then."""
        steps = self.arrival[:-1] * np.diff(self.times_ns)
        return np.asarray(np.interp(times_ns, self.times_ns, np.concatenate([[0.0], np.cumsum(steps)])))

    def rate_at(self, times_ns: Floats) -> Floats:
        """Bytes/ns that arrive just after each time."""
        place = np.searchsorted(self.times_ns, times_ns, side="right") - 1
        return np.where(place < 0, 0.0, self.arrival[np.maximum(place, 0)])


@dataclass(frozen=True)
class Ingress:
    """The links into the switch of some receivers, over which what comes from other switches is spread evenly."""

    hosts: tuple[int, ...]
    """Of the switch."""
    capacity: float
    """Of the links together, bytes/ns."""
    after_ns: float
    """From having left such a link's port to being whole at the port of the receiver: part of the fluid's delays."""


@dataclass(frozen=True)
class Fluid:
    """A collective of N hosts. Times are from the common start, speeds in bytes/ns."""

    sent_ns: Floats
    """N x N: when the sender (row) has sent the last of its flow to the receiver; 0 where it has none."""
    speeds: Floats
    """N: of each host's port, in both directions."""
    changes: Callable[[int, Bools], Changes]
    """Of what arrives at a receiver from those of the senders (N) that are chosen."""

    def receiver(self, host: int) -> Profile:
        """What its port sees."""
        return _profile(*self.changes(host, np.ones(len(self.speeds), dtype=bool)), float(self.speeds[host]))

    def behind(self, host: int, ingress: Ingress) -> Profile:
        """What its port sees where all from afar has come through the links into its switch, which may hold it up.

        They are one FIFO that all receivers of the switch share: what came in at time t leaves at t + Q(t) / C, with Q
        the queue and C the capacity, which is linear in t wherever Q is.
        """
        near = np.zeros(len(self.speeds), dtype=bool)
        near[list(ingress.hosts)] = True
        inputs = [self.changes(other, ~near) for other in ingress.hosts]
        together = [np.concatenate(part) for part in zip(*inputs, strict=True)]
        link = _profile(together[0] - ingress.after_ns, together[1], ingress.capacity)
        own = _profile(*self.changes(host, ~near), np.inf).arrived_at(link.times_ns + ingress.after_ns)
        leaves = np.maximum.accumulate(link.times_ns + link.queue_bytes / ingress.capacity) + ingress.after_ns
        # Of breakpoints that leave at once the last one counts.
        kept = np.append(np.diff(leaves) > _SAME_NS, True)
        times, arrived = leaves[kept], own[kept]
        rates = np.diff(arrived) / np.diff(times)
        local = self.changes(host, near)
        return _profile(
            np.concatenate([times, local[0]]),
            np.concatenate([np.diff(rates, prepend=0.0, append=0.0), local[1]]),
            float(self.speeds[host]),
        )

    @property
    def last_sent_ns(self) -> float:
        """When the senders are done."""
        return float(self.sent_ns.max())

    @cached_property
    def done_ns(self) -> Floats:
        """N: when each receiver has all; 0 where nothing is sent to it. Some ten seconds at N = 512."""
        return np.array([self.receiver(host).done_ns for host in range(len(self.speeds))])

    @property
    def end_ns(self) -> float:
        """The CCT."""
        return float(self.done_ns.max())

    def total_queue_bytes(self, time_ns: float) -> float:
        """In all queues together at one time. As long as ``done_ns``."""
        at = np.array([time_ns])
        return float(sum(self.receiver(host).queue_at(at)[0] for host in range(len(self.speeds))))

    @cached_property
    def most_queued_bytes(self) -> float:
        """In all queues together, at the time when that is most. As long as ``done_ns``."""
        profiles = [self.receiver(host) for host in range(len(self.speeds))]
        times = np.unique(np.concatenate([profile.times_ns for profile in profiles]))
        return float(np.sum([profile.queue_at(times) for profile in profiles], axis=0).max())


def _bound_ns(demand: Floats, speeds: Floats) -> float:
    """T*: the largest load over speed of any port."""
    return float(max((demand.sum(axis=1) / speeds).max(), (demand.sum(axis=0) / speeds).max()))


def _checked(
    demand_bytes: NDArray[np.int64] | Floats, speeds: Floats, delay_ns: Floats | None
) -> tuple[Floats, Floats, Floats]:
    demand = np.asarray(demand_bytes, dtype=np.float64)
    given = np.asarray(speeds, dtype=np.float64)
    delays = np.zeros(demand.shape) if delay_ns is None else np.asarray(delay_ns, dtype=np.float64)
    if demand.ndim != 2 or demand.shape != (len(given), len(given)) or delays.shape != demand.shape:
        raise ValueError(
            f"shapes do not go together: demand {demand.shape}, speeds {given.shape}, delays {delays.shape}"
        )
    if (demand < 0).any() or (given <= 0).any() or (delays < 0).any():
        raise ValueError("demand and delays must not be negative, and speeds must be above 0")
    return demand, given, delays


def fluid_rr(demand_bytes: NDArray[np.int64] | Floats, speeds: Floats, *, delay_ns: Floats | None = None) -> Fluid:
    """Round robin: a sender splits its line rate evenly over its unfinished flows.

    ``demand_bytes``: N x N, row = sender. ``speeds``: N, bytes/ns. ``delay_ns``: N x N, from leaving the sender to the
    port that faces the receiver; default 0. A sender of line rate s whose sorted flows are d_1 <= ... <= d_K ends the
    m-th at t_m = t_(m-1) + (d_m - d_(m-1)) (K - m + 1) / s. Raises ValueError for shapes that do not go together.
    """
    demand, speeds, delays = _checked(demand_bytes, speeds, delay_ns)
    hosts = len(speeds)
    absent = demand == 0
    count = hosts - absent.sum(axis=1)
    order = np.argsort(np.where(absent, np.inf, demand), axis=1, kind="stable")
    ranked = np.take_along_axis(demand, order, axis=1)
    place = np.arange(hosts)[None, :]
    left = count[:, None] - place  # unfinished flows before the one of this place ends
    gap = np.diff(ranked, axis=1, prepend=0.0)
    used = left > 0
    ends = np.cumsum(np.where(used, gap * left, 0.0), axis=1) / speeds[:, None]
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(place, order.shape), axis=1)
    sent_ns = np.zeros(demand.shape)
    np.put_along_axis(sent_ns, order, np.where(used, ends, 0.0), axis=1)

    share = np.where(used, speeds[:, None] / np.maximum(1, left), 0.0)
    following = np.append(share[:, 1:], np.zeros((hosts, 1)), axis=1) - share
    in_time = np.argsort(np.where(used, ends, np.inf), axis=None, kind="stable")[: int(count.sum())]
    time_ns, sender = ends.ravel()[in_time], in_time // hosts

    def changes(receiver: int, senders: Bools) -> Changes:
        own, last = ~absent[:, receiver] & senders, rank[:, receiver, None]
        change = np.where(place < last, following, 0.0)
        np.put_along_axis(change, last, -np.take_along_axis(share, last, axis=1), axis=1)
        change[~own] = 0.0
        ordered = change.ravel()[in_time]
        mine = ordered != 0
        times = time_ns[mine] + delays[sender[mine], receiver]
        return (
            np.concatenate([delays[own, receiver], times]),
            np.concatenate([share[own, 0], ordered[mine]]),
        )

    return Fluid(sent_ns, speeds, changes)


def fluid_rate(
    demand_bytes: NDArray[np.int64] | Floats,
    speeds: Floats,
    *,
    rates: Floats | None = None,
    delay_ns: Floats | None = None,
) -> Fluid:
    """Rates: flow (i, j) is sent at a constant rate until it is done; by default D_ij / T* (paper, equation 4).

    ``rates``: N x N, bytes/ns, above 0 where there is demand; the others as in ``fluid_rr``.
    """
    demand, speeds, delays = _checked(demand_bytes, speeds, delay_ns)
    bound_ns = _bound_ns(demand, speeds)
    some = demand > 0
    if rates is None:
        rates = demand / bound_ns if bound_ns else np.zeros(demand.shape)
    if rates.shape != demand.shape or (rates[some] <= 0).any():
        raise ValueError("rates must be N x N, and above 0 where there is demand")
    sent_ns = np.where(some, demand / np.where(some, rates, 1.0), 0.0)

    def changes(receiver: int, senders: Bools) -> Changes:
        own = some[:, receiver] & senders
        rate, begin = rates[own, receiver], delays[own, receiver]
        return np.concatenate([begin, begin + sent_ns[own, receiver]]), np.concatenate([rate, -rate])

    return Fluid(sent_ns, speeds, changes)


def _profile(times_ns: Floats, changes: Floats, drain: float) -> Profile:
    """The queue behind arrivals that change so, drained at ``drain`` bytes/ns.

    With X(t) what has arrived less what could have been drained, the queue is X(t) less the least X so far (Lindley,
    1952); X is linear between two changes, so that its least value lies at one of them.
    """
    if not len(times_ns):
        return Profile(np.zeros(1), np.zeros(1), np.zeros(1))
    times, steps = np.concatenate([[0.0], times_ns]), np.concatenate([[0.0], changes])
    if (np.diff(times) < 0).any():
        order = np.argsort(times, kind="stable")
        times, steps = times[order], steps[order]
    arrival = np.cumsum(steps)
    # What is left of sums that are 0 but for rounding.
    arrival[np.abs(arrival) < 1e-12 * np.abs(changes).max() * len(changes)] = 0.0
    arrival[-1] = 0.0
    if drain == np.inf:
        return Profile(times, arrival, np.zeros(len(times)))
    excess = np.concatenate([[0.0], np.cumsum((arrival[:-1] - drain) * np.diff(times))])
    queue = excess - np.minimum.accumulate(np.minimum(excess, 0.0)) + 0.0
    # Where a queue runs empty between two changes, and after the last one, there is one more breakpoint.
    falling = (queue > 0) & (arrival < drain)
    empty = times + np.where(falling, queue / np.where(falling, drain - arrival, 1.0), 0.0)
    until = np.append(times[1:], np.inf)
    runs_out = falling & (empty < until) & (np.append(queue[1:], 0.0) == 0)
    after = np.flatnonzero(runs_out) + 1
    return Profile(
        np.insert(times, after, empty[runs_out]),
        np.insert(arrival, after, arrival[runs_out]),
        np.insert(queue, after, 0.0),
    )
