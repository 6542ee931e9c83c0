"""Round robin, the paper's baseline: every sender cycles packet by packet over its unfinished flows."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from controller.demand import Demand
from controller.schedule.plan import Discipline, Plan

__all__ = ["plan"]


def plan(demand: Demand, speeds_bps: Sequence[Fraction]) -> Plan:
    """No rates: the ports alone set the pace. The first flow is the one after the sender's own index."""
    del speeds_bps
    return Plan(Discipline.ROUND_ROBIN, np.zeros(demand.wire_bytes.shape, dtype=np.uint32))
