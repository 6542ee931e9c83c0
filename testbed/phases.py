"""What a run sends one after the other: a demand as its plan has it, with what servers move inside before and after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from controller.demand import Demand
from controller.schedule import Plan, make_plan, rate
from testbed import dpu_model
from testbed.estimate import for_traffic
from testbed.experiment import Run
from testbed.scenario import Scenario

__all__ = ["Phase", "phases_of"]


@dataclass(frozen=True)
class Phase:
    """One that the engine runs, after the one before it has ended everywhere."""

    name: str
    """Of the demand, as the experiment has it."""
    demand: Demand
    """What the network carries."""
    plan: Plan
    first: bool
    """Of a demand: it waits for the plan."""
    inner: bool
    """Inside the servers."""


def phases_of(scenario: Scenario, run: Run) -> Iterator[Phase]:
    """For each demand what its servers move before (if they do), what the network carries, and what they move after.

    Moves inside servers are paced by R of their own, so that none meets another.
    """
    experiment = scenario.experiment
    for given, demand, estimate in zip(scenario.inputs, scenario.demands, scenario.estimates, strict=True):
        plan = _plan(scenario, run, estimate)
        if estimate is not demand:
            exact = _plan(scenario, run, demand) if plan.carries else None
            plan = for_traffic(plan, demand, exact)
        phases = [Phase(given.name, plan.carries or demand, plan, first=False, inner=False)]
        if plan.inner and experiment.server_link_gbps:
            before, after = (_inside(scenario, given.name, moved) for moved in plan.inner)
            phases = [before, *phases, after]
        sent = [phase for phase in phases if phase.demand.total_bytes]
        for number, phase in enumerate(sent or phases[:1]):
            yield replace(phase, first=not number)


def _plan(scenario: Scenario, run: Run, demand: Demand) -> Plan:
    if dpu_model.of_dpus(scenario, run):
        return dpu_model.plan(demand, scenario, rate.margin_of(run.options))
    experiment = scenario.experiment
    return make_plan(
        run.plan,
        demand,
        scenario.speeds_bps[: scenario.hosts],
        mtu_bytes=experiment.mtu_bytes,
        gpus_per_server=experiment.gpus_per_server,
        stages=experiment.stages,
    )


def _inside(scenario: Scenario, name: str, moved: NDArray[np.int64]) -> Phase:
    """Between the ports that hosts have inside their servers."""
    hosts = scenario.hosts
    wire_bytes = np.zeros((2 * hosts, 2 * hosts), dtype=np.int64)
    wire_bytes[hosts:, hosts:] = moved
    demand = Demand(wire_bytes)
    return Phase(f"{name}, inside servers", demand, rate.plan(demand, scenario.speeds_bps), first=False, inner=True)
