"""Means with 95 % confidence intervals, by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["half_width", "t_quantile"]

_LEVEL = 0.975
"""Both tails together hold 5 %."""


def half_width(values: Sequence[float]) -> float | None:
    """Of the 95 % confidence interval of the mean; None where a single value says nothing of it."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return t_quantile(count - 1) * math.sqrt(variance / count)


def t_quantile(degrees: int) -> float:
    """The 97.5 % point of Student's t. ``degrees`` of freedom: 1 or more."""
    low, high = 0.0, 16.0  # of one degree it is 12.7
    while (middle := (low + high) / 2) not in (low, high):
        if _t_distribution(middle, degrees) < _LEVEL:
            low = middle
        else:
            high = middle
    return high


def _t_distribution(t: float, degrees: int) -> float:
    """P(T <= t) for t >= 0, exactly (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    theta = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(theta), math.sin(theta)
    if degrees == 1:
        within = 2 * theta / math.pi
    elif degrees % 2:
        term = total = cosine
        for k in range(3, degrees - 1, 2):
            term *= (k - 1) / k * cosine**2
            total += term
        within = 2 / math.pi * (theta + sine * total)
    else:
        term = total = 1.0
        for k in range(2, degrees - 1, 2):
            term *= (k - 1) / k * cosine**2
            total += term
        within = sine * total
    return (1 + within) / 2
