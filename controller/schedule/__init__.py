"""Schedules: from a demand to who sends what when. One file a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

from controller.demand import Demand
from controller.schedule import rate, round_robin
from controller.schedule.plan import Plan

__all__ = ["SCHEDULES", "Plan", "make_plan"]

SCHEDULES: Final[dict[str, Callable[[Demand, Sequence[Fraction]], Plan]]] = {
    "rr": round_robin.plan,
    "rate": rate.plan,
}


def make_plan(schedule: str, demand: Demand, speeds_bps: Sequence[Fraction]) -> Plan:
    """The plan of a schedule for a demand on ports of the given speeds, one a host."""
    return SCHEDULES[schedule](demand, speeds_bps)
