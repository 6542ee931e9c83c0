"""Birkhoff-von Neumann: the demand, padded to equal sums, as a sum of weighted permutations, one a stage."""

from __future__ import annotations

from controller.demand import Demand
from controller.schedule.decomposition import sliced, stages_of
from controller.schedule.matching import MATCHINGS
from controller.schedule.plan import Plan, Schedule, Setting, staged

__all__ = ["SCHEDULE"]


def _plan(demand: Demand, setting: Setting) -> Plan:
    packets = -(-demand.wire_bytes // setting.mtu_bytes)
    stages = stages_of(packets, setting.options[0])
    return staged(demand.hosts, sliced(stages, demand.wire_bytes, setting.mtu_bytes))


SCHEDULE = Schedule(
    name="bvn",
    source="Birkhoff 1946; von Neumann 1953; for switches Chang, Chen, Huang 2000",
    complexity="N^2 - 2N + 2 matchings at most, O(N^2.5) each: O(N^4.5); bottleneck: log N times that",
    length="1 x the flat bound, in whole packets",
    plan=_plan,
    options=tuple(MATCHINGS),
    exact=True,
)
