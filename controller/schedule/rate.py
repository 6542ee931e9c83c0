"""Rate-based scheduling: sender i paces its flow to j at R_ij = D_ij / M of the line rate (paper, eq. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from controller.demand import Demand
from controller.errors import InputError
from controller.nic.rate_table import RATE_ONE
from controller.schedule.plan import Discipline, Plan, Schedule, Setting
from controller.steps import ceil_into

__all__ = ["SCHEDULE", "margin_of", "plan", "rate_steps", "slack", "step_share"]


def slack(hosts: int, speeds_bps: Sequence[Fraction], one: int = RATE_ONE) -> Fraction:
    """lambda: what R is scaled by, so that rounding every rate up still oversubscribes no port.

    N flows at a port are each rounded up by less than one step of their sender's speed, so that they can
    exceed their share by N s_max / Q of a port whose speed is at least s_min; one flow more covers the
    rounding of the arithmetic. Raises InputError where the steps are too coarse for the speeds.
    """
    share = 1 - Fraction(hosts + 1) * max(speeds_bps) / (one * min(speeds_bps))
    if share <= 0:
        raise InputError(
            f"{hosts} hosts at {float(min(speeds_bps)):g} to {float(max(speeds_bps)):g} bit/s need more than "
            f"{one} steps of the line rate: use fewer hosts, or speeds closer to each other"
        )
    return share


def rate_steps(
    wire_bytes: NDArray[np.int64], time_s: Fraction, speeds_bps: Sequence[Fraction], one: int = RATE_ONE
) -> NDArray[np.uint32]:
    """R of one or more senders, in steps: ``one`` steps are the sender's whole line rate.

    ``wire_bytes`` has one row a sender, ``speeds_bps`` the speed of each of these; ``time_s`` is T*, already
    divided by lambda. R_ij = D_ij / (T* s_i) is rounded up, exactly: no demand gets rate 0, none ends late.
    Raises ValueError where a rate is 2^32 steps or more.
    """
    steps = np.empty(wire_bytes.shape, dtype=np.uint32)
    amounts = np.ascontiguousarray(wire_bytes, dtype=np.int64)
    row = 0
    while row < len(speeds_bps):  # senders of one speed at once
        end = row + 1
        while end < len(speeds_bps) and speeds_bps[end] == speeds_bps[row]:
            end += 1
        per_byte = Fraction(8 * one) / (time_s * speeds_bps[row])
        ceil_into(steps[row:end], amounts[row:end], per_byte.numerator, per_byte.denominator)
        row = end
    return steps


def plan(
    demand: Demand, speeds_bps: Sequence[Fraction], *, margin: Fraction = Fraction(1), one: int = RATE_ONE
) -> Plan:
    """The rates of all senders: the slowest flow ends within T* / lambda, and no port exceeds its speed.

    ``margin``: the share of that which is used, above 0 and at most 1; the rest is left for ACKs and what else comes.
    ``one``: steps of the whole line rate, as the NICs have them.
    """
    time_s = demand.bottleneck(speeds_bps).time_s
    if not time_s:
        return Plan(Discipline.PACED, np.zeros(demand.wire_bytes.shape, dtype=np.uint32))
    stretched_s = time_s / slack(demand.hosts, speeds_bps, one) / margin
    return Plan(Discipline.PACED, rate_steps(demand.wire_bytes, stretched_s, speeds_bps, one))


def step_share(steps: NDArray[np.uint32], one: int = RATE_ONE) -> NDArray[np.float64]:
    """Rates as fractions of the line rate, for people to read."""
    return steps / np.float64(one)


def margin_of(options: Sequence[str]) -> Fraction:
    """Of "rate:0.98" 98 %. Raises InputError for a share that is none."""
    try:
        margin = Fraction(options[0]) if options else Fraction(1)
    except (ValueError, ZeroDivisionError):
        margin = Fraction(0)
    if not Fraction(1, 100) <= margin <= 1:
        raise InputError(f"rate:{options[0]}: give the share of R that is used, 0.01 to 1, such as 0.98")
    return margin


def _plan(demand: Demand, setting: Setting) -> Plan:
    return plan(demand, setting.speeds_bps, margin=margin_of(setting.options))


SCHEDULE = Schedule(
    name="rate",
    source="the paper, equation 4",
    complexity="O(N^2)",
    length="1 x the flat bound over the margin",
    plan=_plan,
    options=("1", "0.98"),
    numeric="share of R that is used",
    staged=False,
)
