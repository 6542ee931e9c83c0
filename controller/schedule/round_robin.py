"""Round robin, the paper's baseline: every sender cycles packet by packet over its unfinished flows."""

from __future__ import annotations

import numpy as np

from controller.demand import Demand
from controller.schedule.plan import Discipline, Plan, Schedule, Setting

__all__ = ["SCHEDULE"]


def _plan(demand: Demand, setting: Setting) -> Plan:
    """No rates: the ports alone set the pace. The first flow is the one after the sender's own index."""
    del setting
    return Plan(Discipline.ROUND_ROBIN, np.zeros(demand.wire_bytes.shape, dtype=np.uint32))


SCHEDULE = Schedule(
    name="rr",
    source="the paper's baseline",
    complexity="none",
    length="no plan",
    plan=_plan,
    staged=False,
)
