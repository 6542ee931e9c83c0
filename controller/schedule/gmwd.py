"""GMWD: greedy maximum-weight matchings of the demand itself, each entry sent whole in the stage that takes it."""

from __future__ import annotations

import numpy as np

from controller.demand import Demand
from controller.schedule.decomposition import Transfers
from controller.schedule.matching import heaviest
from controller.schedule.plan import Plan, Schedule, Setting, staged

__all__ = ["SCHEDULE"]


def _plan(demand: Demand, setting: Setting) -> Plan:
    del setting
    left = demand.wire_bytes.copy()
    rows = np.arange(demand.hosts)
    stages: list[Transfers] = []
    while left.any():
        columns = heaviest(left)
        sent = left[rows, columns]
        left[rows, columns] = 0
        stages.append([(int(i), int(columns[i]), int(sent[i])) for i in np.nonzero(sent)[0]])
    return staged(demand.hosts, stages)


SCHEDULE = Schedule(
    name="gmwd",
    source="arXiv 2605.26845",
    complexity="some N matchings of O(N^3): O(N^4)",
    length="more than 1 x the flat bound: a stage lasts as long as its largest entry",
    plan=_plan,
)
