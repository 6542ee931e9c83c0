"""SpreadOut: in stage k host i sends all that it has for host i + k."""

from __future__ import annotations

from controller.demand import Demand
from controller.schedule.plan import Plan, Schedule, Setting, staged

__all__ = ["SCHEDULE"]


def _plan(demand: Demand, setting: Setting) -> Plan:
    del setting
    hosts = demand.hosts
    return staged(
        hosts,
        (
            [(i, (i + shift) % hosts, int(demand.wire_bytes[i, (i + shift) % hosts])) for i in range(hosts)]
            for shift in range(1, hosts)
        ),
    )


SCHEDULE = Schedule(
    name="spreadout",
    source="a baseline of FAST (arXiv 2505.09764), known from MPI's pairwise exchange",
    complexity="O(N^2), without a look at the demand",
    length="1 x the flat bound if the demand is uniform, else up to N - 1 times: a stage lasts as long as its largest entry",
    plan=_plan,
)
