"""The paper's closed forms of the exponential incast (section 3), and what becomes of them when they are put right.

Its symbols, as its text defines them: N senders, which are the receivers as well; T, the volume that each sender sends,
its own share included, in units in which a line rate is 1, so that T is a time too; D_ij = T / (j alpha), what any sender
has for the receiver of popularity j (equation 1, Zipf with s = 1), with alpha the harmonic number H_N, for which the paper
puts ln N. k(t) is the number of flows that a sender has not finished; each gets 1/k of its line rate. lambda_1 = N / k is
what arrives at the hottest receiver, in line rates. Q_total(T) is what lies in all queues when the senders are done.

Two things are to be put right. The paper's k(t) = N exp(-alpha t / T) begins to fall at t = 0. But the smallest flow,
T / (N alpha), gets 1/N of the line rate and so ends at T / alpha, and none ends before: the paper's own equation, the
service of a flow that is about to end = its volume, holds from then on only, and what was served until then, T / (N alpha),
is the constant that its derivation by differentiating has lost. Its solution is

    k(t) = N until T / alpha, then N exp(1 - alpha t / T).

And alpha is not ln N: H_N is larger by 0.577 (Euler's constant), which at N = 64 is a seventh.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Paper", "Corrected", "flow_ends_ns", "harmonic", "stranded_bytes", "stranded_sum_bytes"]

Floats = NDArray[np.float64]


def harmonic(count: int) -> float:
    """H_N, the sum of 1/m for m from 1 to N."""
    return math.fsum(1 / m for m in range(1, count + 1))


@dataclass(frozen=True)
class Paper:
    """k(t) = N exp(-alpha t / T), until one flow is left."""

    hosts: int
    """N."""
    sent_ns: float
    """T, as a time."""
    alpha: float

    @property
    def first_end_ns(self) -> float:
        """When the first flow ends."""
        return 0.0

    @property
    def last_ns(self) -> float:
        """When k = 1: with alpha = ln N this is T."""
        return self.first_end_ns + self.sent_ns * math.log(self.hosts) / self.alpha

    def active(self, times_ns: Floats) -> Floats:
        """k(t); 1 at the end."""
        since = np.clip(np.asarray(times_ns) - self.first_end_ns, 0.0, self.last_ns - self.first_end_ns)
        return self.hosts * np.exp(-self.alpha * since / self.sent_ns)

    def arrival(self, times_ns: Floats) -> Floats:
        """lambda_1(t) = N / k(t) in line rates; 0 from the end on, when nothing is left to send."""
        return np.where(np.asarray(times_ns) < self.last_ns, self.hosts / self.active(times_ns), 0.0)

    def queue(self, times_ns: Floats) -> Floats:
        """At the hottest receiver, in line rate times ns: the integral of lambda_1 - 1, and then drained."""
        times = np.asarray(times_ns, dtype=np.float64)
        since = np.clip(times - self.first_end_ns, 0.0, self.last_ns - self.first_end_ns)
        scale = self.sent_ns / self.alpha
        grown = scale * np.expm1(since / scale) - since
        return np.maximum(0.0, grown - np.maximum(0.0, times - self.last_ns))


class Corrected(Paper):
    """k(t) = N until T / alpha, then N exp(1 - alpha t / T)."""

    @property
    def first_end_ns(self) -> float:
        """The smallest flow's."""
        return self.sent_ns / self.alpha


def flow_ends_ns(hosts: int, sent_ns: float) -> Floats:
    """When the flow to the receiver of popularity r = 1 ... N ends, exactly: T / alpha (1 + H_N - H_r), alpha = H_N.

    Until then the flows that are larger have had as much as it, T / (alpha r) each, and the smaller ones, m > r, their own
    T / (alpha m). The last ends at T, as it must: nothing is lost between discrete flows, where the continuous k(t) ends at
    T (1 + ln N) / H_N.
    """
    inverse = 1 / np.arange(1, hosts + 1)
    return np.asarray(sent_ns * (1 + inverse.sum() - np.cumsum(inverse)) / inverse.sum())


def stranded_bytes(hosts: int, sent_bytes: float) -> float:
    """Q_total(T) as the paper has it: N T (1 - (ln ln N + 1) / ln N)."""
    log = math.log(hosts)
    return hosts * sent_bytes * (1 - (math.log(log) + 1) / log)


def stranded_sum_bytes(hosts: int, sent_bytes: float) -> float:
    """The sum that the paper's integral stands for, with alpha = H_N: of N T / (alpha j) - T where that is above 0."""
    loads = hosts * sent_bytes / harmonic(hosts) / np.arange(1, hosts + 1)
    return float(np.maximum(0.0, loads - sent_bytes).sum())
