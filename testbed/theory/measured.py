"""A saved comparison beside its fluid model: what arrives at the hottest receiver's port, and the queue there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.demand import Demand
from controller.errors import InputError
from testbed.report.rerun import saved_scenario
from testbed.report.saved import MissingTableError, Saved
from testbed.scenario import Scenario
from testbed.theory.fluid import Fluid, Ingress, Profile, fluid_rate, fluid_rr

__all__ = ["BIN_SHARE", "Apart", "HotPort", "Theory", "apart", "hot_port", "ingress_of", "way_ns"]

Floats = NDArray[np.float64]
BIN_SHARE: Final = 0.02
"""Of the run: over so long arrivals are averaged where model and run are compared."""
_COLUMNS: Final = ("phase", "toward", "begin_ns", "bucket_ns", "queue_max_bytes", "sent_bytes")
_FLUIDS: Final[dict[str, Callable[..., Fluid]]] = {"rr": fluid_rr, "rate": fluid_rate}


@dataclass(frozen=True)
class HotPort:
    """A port over time, B intervals of one length."""

    edges_ns: Floats
    """B + 1, from the phase's start."""
    queue_bytes: Floats
    """B + 1, at the edges."""
    arrived_bytes: Floats
    """B."""


@dataclass(frozen=True)
class Apart:
    """How far a model is from a run at most, as shares of the run's peaks."""

    arrival: float
    """Of the rates at which it arrives, over intervals of BIN_SHARE of the run."""
    queue: float
    """Of the queues at their edges."""


def hot_port(columns: Mapping[str, NDArray[Any]], toward: str, phase: int) -> HotPort:
    """From the columns of ports.parquet: the port that faces the host ``toward``. Raises KeyError where nothing was sent to it.

    The table knows the deepest queue of each interval and what was sent in it. A queue that rises, or falls, all the time
    has at the edge of two intervals the smaller of both their maxima; what has arrived is what was sent and what it grew by.
    """
    own = (columns["toward"] == toward) & (columns["phase"] == phase)
    if not own.any():
        raise KeyError(toward)
    begin, deepest = columns["begin_ns"][own], columns["queue_max_bytes"][own].astype(np.float64)
    edges = np.append(begin, begin[-1] + columns["bucket_ns"][own][-1]) - begin[0]
    queue = np.concatenate([[0.0], np.minimum(deepest[:-1], deepest[1:]), [0.0]])
    return HotPort(edges, queue, columns["sent_bytes"][own] + np.diff(queue))


def way_ns(scenario: Scenario) -> Floats:
    """N x N: from a packet's having left its sender to its being whole at the port that faces its receiver."""
    hosts = len(scenario.wiring.hosts)
    times = np.zeros((hosts, hosts))
    for source in range(hosts):
        for destination in range(hosts):
            if source != destination:
                nic, *inner, _ = scenario.wiring.path(source, destination)
                packet = sum(8 * scenario.experiment.mtu_bytes / port.gbps for port in inner)
                times[source, destination] = float(nic.ns + packet + sum(port.ns for port in inner))
    return times


def ingress_of(scenario: Scenario, host: int) -> Ingress | None:
    """The links into the switch of a host; None where there is but one switch.

    Of a fat tree these are the links from the aggregation switches; what those from the cores hold up before is not modelled.
    """
    wiring = scenario.wiring
    switch = wiring.ports[host].peer_node
    hosts = len(wiring.hosts)
    into = [port for port in wiring.ports[2 * hosts :] if port.peer_node == switch]
    if not into:
        return None
    slowest = min(into, key=lambda port: port.gbps)
    packet = 8 * scenario.experiment.mtu_bytes / slowest.gbps
    return Ingress(
        tuple(other for other in range(hosts) if wiring.ports[other].peer_node == switch),
        float(sum(port.gbps for port in into)) / 8,
        float(packet + slowest.ns),
    )


@dataclass(frozen=True)
class Theory:
    """One phase of a saved comparison."""

    saved: Saved
    scenario: Scenario
    phase: int

    @staticmethod
    def of(saved: Saved, phase: int) -> Theory:
        """``phase`` counts from 0. Raises InputError where the folder holds no run of rr without control, or no such phase."""
        plain = [run for run in saved.runs if run.get("schedule") == "rr" and run.get("cc") == "none"]
        if not plain:
            raise InputError(
                f"{saved.folder} holds no run of rr without a control, of which the theory speaks: compare with "
                "--schedule rr,rate --loss-recovery none --queue-bytes 0"
            )
        scenario = saved_scenario(saved, plain[0])
        if not 0 <= phase < len(scenario.demands):
            raise InputError(f"--phase {phase + 1}: {saved.folder} has phases 1 to {len(scenario.demands)}")
        if not scenario.demands[phase].total_bytes:
            raise InputError(f"--phase {phase + 1}: nothing is sent in it")
        return Theory(saved, scenario, phase)

    @property
    def demand(self) -> Demand:
        """Of the phase."""
        return self.scenario.demands[self.phase]

    @cached_property
    def speeds(self) -> Floats:
        """N, bytes/ns."""
        return np.array([float(speed) / 8e9 for speed in self.scenario.speeds_bps])

    @cached_property
    def hot(self) -> int:
        """The receiver that needs longest for all that is sent to it."""
        return int(np.argmax(self.demand.wire_bytes.sum(axis=0) / self.speeds))

    @property
    def hot_host(self) -> str:
        """Its name."""
        return self.scenario.wiring.hosts[self.hot]

    @cached_property
    def last_link_ns(self) -> float:
        """From the hot port to its host."""
        return float(self.scenario.wiring.ports[self.scenario.wiring.host_port(self.hot)].ns)

    @property
    def runs(self) -> list[Mapping[str, Any]]:
        """Of schedules that the model knows, without a control."""
        return [run for run in self.saved.runs if run.get("schedule") in _FLUIDS and run.get("cc") == "none"]

    def fluid(self, schedule: str) -> Fluid:
        """The model of rr or rate for this demand, with the ways of this network."""
        return _FLUIDS[schedule](self.demand.wire_bytes, self.speeds, delay_ns=self._way_ns)

    def hot_profile(self, schedule: str) -> Profile:
        """What the hot receiver's port sees in the model, behind the links into its switch."""
        ingress = ingress_of(self.scenario, self.hot)
        fluid = self.fluid(schedule)
        return fluid.behind(self.hot, ingress) if ingress else fluid.receiver(self.hot)

    @cached_property
    def _way_ns(self) -> Floats:
        return way_ns(self.scenario)

    def measured(self, run: Mapping[str, Any]) -> HotPort:
        """The hot port in a run. Raises InputError where its table is missing."""
        try:
            return hot_port(self.saved.table(run["run"], "ports", _COLUMNS), self.hot_host, self.phase)
        except MissingTableError as error:
            raise InputError(f"{self.saved.folder}: {str(error).rstrip('.')}: run the experiment again") from None
        except KeyError:
            raise InputError(
                f"{self.saved.folder}: {run['run']}/ports.parquet has nothing of the port that faces {self.hot_host}: run the "
                "experiment again"
            ) from None


def apart(profile: Profile, port: HotPort) -> Apart:
    """How far a model's port is from a run's."""
    until = float(port.edges_ns[-1])
    bucket = float(port.edges_ns[1] - port.edges_ns[0])
    every = max(1, round(BIN_SHARE * until / bucket))
    edges, queue = port.edges_ns[::every], port.queue_bytes[::every]
    arrived = np.diff(np.concatenate([[0.0], np.cumsum(port.arrived_bytes)])[::every])
    expected = np.diff(profile.arrived_at(edges))
    return Apart(
        float(np.abs(expected - arrived).max() / max(1.0, arrived.max())),
        float(np.abs(profile.queue_at(edges) - queue).max() / max(1.0, port.queue_bytes.max())),
    )
