"""An experiment that was checked against its inputs: demands read, network laid out, times and parameters chosen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.demand import MAX_HOSTS, Bottleneck, Demand, load_demands
from controller.errors import CannotRunError, InputError
from controller.schedule import has_barrier, moves_inside
from testbed.engine import (
    RECEIVED_WORDS,
)
from testbed.estimate import estimate_of
from testbed.experiment import DemandPhase, Experiment
from testbed.fabric.bmv2 import installation
from testbed.fabric.bmv2.rates import MOST_PACKETS_PER_S, MOST_SWITCHES, bmv2_dilation, rounding
from testbed.parameters import Parameters, derive
from testbed.port_load import even_shares
from testbed.stage.host.budget import real_time_dilation
from testbed.topology import TOPOLOGIES, Wiring, add_server_links, named_links, smallest_fat_tree, wire

__all__ = [
    "PACKETS_A_WORD",
    "PERIOD_FABRIC_NS",
    "SHORTEST_LINK",
    "Input",
    "Scenario",
    "choose_dilation",
    "ports_of_link",
    "prepare",
]

_NS: Final = 10**9
PERIOD_FABRIC_NS: Final = 1000
SHORTEST_LINK: Final = 5
SHORTEST_BARRIER_NS: Final = 1200
"""A period of the engine and its lead, rounded up: a shorter barrier is over before the engine knows of it."""
_LARGEST_CHOSEN_DILATION: Final = 2000
_FALLBACK_BYTE_NS: Final = 4
_NOTED_ROUNDING: Final = 1e-3
_MOST_ROUNDING: Final = 1e-2
_NOTED_SHORT: Final = 2e-2
_MAX_PACKETS: Final = 2**31
_MAX_PHASES: Final = 512
_FEW_PHASES: Final = 3
_MAX_BACKGROUND: Final = 2**15
"""Flows: see BACKGROUND_SPREAD in testbed/engine/background.h."""
PACKETS_A_WORD: Final = 64


def choose_dilation(speeds_gbps: list[Fraction]) -> Fraction:
    """The smallest dilation, of 1 or more, at which one byte takes whole nanoseconds on every link.

    At 800 Gb/s it is 100. Speeds that have no such dilation below 2,000 get one at which a byte takes 4 ns on
    the fastest: a packet's time is then cut to whole nanoseconds.
    """
    per_byte = [speed / 8 for speed in speeds_gbps]  # of this any multiple makes 8 D / speed whole

    def lcm(a: Fraction, b: Fraction) -> Fraction:
        return Fraction(math.lcm(a.numerator, b.numerator), math.gcd(a.denominator, b.denominator))

    whole = reduce(lcm, per_byte)
    whole *= max(1, math.ceil(1 / whole))
    return whole if whole <= _LARGEST_CHOSEN_DILATION else max(per_byte) * _FALLBACK_BYTE_NS


@dataclass(frozen=True)
class Input:
    """One demand of a file."""

    phase: DemandPhase
    name: str
    """As results call it: the phase's, and step and layer where the file has several."""
    unit: str
    """tokens, bytes or wire-bytes, as it was read."""


@dataclass(frozen=True)
class Scenario:
    """All that the runs of one experiment share."""

    experiment: Experiment
    inputs: tuple[Input, ...]
    """Where each demand came from."""
    demands: tuple[Demand, ...]
    """One a phase: all of one file, then those of the next."""
    wiring: Wiring
    speeds_bps: tuple[Fraction, ...]
    """Line rate of each port of a host, as the wiring counts them."""
    dilation: Fraction
    shape: Mapping[str, int]
    """The key that decides the topology's size, as it was run: hosts_per_leaf, or fat_tree_k."""
    parameters: Parameters
    bmv2: installation.Installation | None = None
    """What the switches are, unless they are the kernel's."""
    bmv2_version: str | None = None

    @property
    def hosts(self) -> int:
        """N. With links inside servers the wiring has 2 N: host i's port inside its server is number N + i."""
        return self.demands[0].hosts if self.demands else self.experiment.hosts

    def on_ports(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """A matrix of N hosts as one of all that the wiring has."""
        more = len(self.wiring.hosts) - len(matrix)
        return np.pad(matrix, (0, more))

    @property
    def estimates(self) -> tuple[Demand, ...]:
        """What plans know of the demands, one a phase."""
        experiment = self.experiment
        return tuple(
            estimate_of(
                demand,
                stale=experiment.estimate_stale,
                error=experiment.estimate_error,
                seed=experiment.seed,
                phase=phase,
                gpus_per_server=experiment.gpus_per_server,
                mtu_bytes=experiment.mtu_bytes,
            )
            for phase, demand in enumerate(self.demands)
        )

    @property
    def links(self) -> str:
        """What carries the packets: trunk, pairs (of netkit), or veth."""
        return "veth" if self.bmv2 or self.experiment.stage == "host" else self.experiment.links

    @property
    def notes(self) -> list[str]:
        """What was assumed of the inputs, and what the lower bound does not know."""
        notes = [note for demand in self.demands for note in demand.notes]
        if self.experiment.loss_recovery == "timeout" and not self.experiment.trimming:
            notes.append(
                "dropped packets are found by timeouts alone, which makes any baseline look bad: show it beside the same "
                "run with loss_recovery sack"
            )
        shortest_ns = min(port.ns for port in self.wiring.ports[: len(self.wiring.hosts)])
        if shortest_ns * SHORTEST_LINK < PERIOD_FABRIC_NS and self.experiment.loss_recovery != "none":
            notes.append(
                f"a host's link of {float(shortest_ns):g} ns is too short for the engine to know of ACKs in time: they take "
                f"effect up to {PERIOD_FABRIC_NS / 1000:g} us late"
            )
        waits = any(has_barrier(run.plan, self.experiment.stages) for run in self.experiment.runs)
        if waits and self.parameters.barrier_ns < SHORTEST_BARRIER_NS:
            notes.append(
                f"a barrier of {float(self.parameters.barrier_ns):g} ns is shorter than the engine needs to learn that a stage is "
                f"over: stages begin up to {PERIOD_FABRIC_NS / 1000:g} us late"
            )
        if not self.experiment.server_link_gbps and self.experiment.gpus_per_server > 1:
            moving = [run.name for run in self.experiment.runs if moves_inside(run.schedule)]
            if moving:
                notes.append(
                    f"{', '.join(moving)}: what servers move inside takes no time: give server_link_gbps to have it sent"
                )
        if self.experiment.estimate_stale or self.experiment.estimate_error:
            notes.append(
                f"plans are made from an estimate, {100 * float(self.experiment.estimate_stale):g} % of it out of date and each flow "
                f"{100 * float(self.experiment.estimate_error):g} % off: the lower bound is that of the demand itself"
            )
        notes += self._bmv2_notes() if self.bmv2 else []
        for demand in self.demands:
            bound_s = demand.bottleneck(self.speeds_bps).time_s
            slowest = max(self._uplink_times(demand), default=(Fraction(0), ""))
            if slowest[0] > bound_s:
                notes.append(
                    f"link {slowest[1]} needs {float(slowest[0] * 10**6):.2f} us for its share: the lower bound and the "
                    "rates know of the hosts' links alone"
                )
        return notes

    def _bmv2_notes(self) -> list[str]:
        """How far BMv2's whole packets a second are off."""
        mtu = self.experiment.mtu_bytes
        notes = []
        error = rounding(self.wiring, self.dilation, mtu)
        if error > _NOTED_ROUNDING:
            notes.append(
                f"BMv2 serves whole packets a second, which is up to {100 * error:.2g} % off the links' speeds at dilation "
                f"{float(self.dilation):g}"
            )
        for demand in self.demands:
            packets = -(-demand.wire_bytes // mtu)
            longer = max(
                float((packets.sum(axis=axis) * mtu / np.maximum(1, demand.wire_bytes.sum(axis=axis))).max())
                for axis in (0, 1)
            )
            if longer - 1 > _NOTED_SHORT:
                notes.append(
                    f"BMv2 serves a short packet as slowly as a full one: a port may take {100 * (longer - 1):.0f} % longer than "
                    "the bytes of this demand do, of which the lower bound knows nothing"
                )
        return notes

    def _uplink_times(self, demand: Demand) -> Iterator[tuple[Fraction, str]]:
        """(time for an even share of what crosses it, name) of every port between switches."""
        for index, share_bytes in even_shares(self.wiring, self.on_ports(demand.wire_bytes)).items():
            port = self.wiring.ports[index]
            yield 8 * share_bytes / (port.gbps * _NS), f"{port.node}-{port.peer_node}"

    @property
    def lower_bound_s(self) -> Fraction:
        """Of all phases together."""
        return sum((bottleneck.time_s for bottleneck in self.bottlenecks), Fraction(0))

    @property
    def bottleneck_names(self) -> list[str]:
        """Such as "receiver h5", one a phase."""
        return [f"{bottleneck.side} {self.wiring.hosts[bottleneck.host]}" for bottleneck in self.bottlenecks]

    @property
    def bottleneck_text(self) -> str:
        """All of a few phases, in order, or the one of all; of many, which it is most often."""
        names = self.bottleneck_names
        if len(set(names)) == 1:
            return names[0]
        if len(names) <= _FEW_PHASES:
            return ", ".join(names)
        name, times = Counter(names).most_common(1)[0]
        return f"{name} in {times} of {len(names)} phases"

    @property
    def bottlenecks(self) -> list[Bottleneck]:
        """One a phase."""
        return [demand.bottleneck(self.speeds_bps) for demand in self.demands]

    @property
    def expected_bytes(self) -> int:
        """On the wire, all phases."""
        return sum(demand.total_bytes for demand in self.demands)


def prepare(experiment: Experiment) -> Scenario:
    """Reads the matrices and lays out the network. Raises InputError for what does not fit together."""
    inputs, demands = _read_demands(experiment)
    hosts = demands[0].hosts if demands else experiment.hosts
    for given, demand in zip(inputs, demands, strict=True):
        file = given.phase.file
        if demand.hosts != hosts:
            raise InputError(f"{file} has {demand.hosts} hosts, {experiment.demand[0].file} has {hosts}")
        packets = int((-(-demand.wire_bytes // experiment.mtu_bytes)).sum())
        if packets >= _MAX_PACKETS:
            raise InputError(f"{file} makes {packets} packets, more than {_MAX_PACKETS}: give smaller amounts")
        flows = np.count_nonzero(demand.wire_bytes)
        if packets // PACKETS_A_WORD + flows >= RECEIVED_WORDS:
            raise InputError(f"{file} makes {packets} packets, more than receivers keep account of: give less")
    if isinstance(experiment.queue_bytes, int) and 0 < experiment.queue_bytes < experiment.mtu_bytes:
        raise InputError(
            f"queue_bytes is {experiment.queue_bytes}: no packet of {experiment.mtu_bytes} B fits; give more, or 0"
        )
    if experiment.hosts not in (0, hosts):
        raise InputError(f"hosts is {experiment.hosts}, but {experiment.demand[0].file} has {hosts}: leave hosts out")
    shape = _shape(experiment, hosts)
    topo = TOPOLOGIES[experiment.topology](
        hosts,
        **shape,
        link_gbps=experiment.link_gbps,
        link_ns=experiment.link_ns,
        link_gbps_of=experiment.link_gbps_of,
        link_ns_of=experiment.link_ns_of,
    )
    if experiment.server_link_gbps:
        if 2 * hosts > MAX_HOSTS:
            raise InputError(
                f"server_link_gbps: {hosts} hosts with two ports each are too many: at most {MAX_HOSTS // 2}"
            )
        server_gbps = experiment.server_link_gbps
        add_server_links(topo, hosts, experiment.gpus_per_server, server_gbps, experiment.link_ns)
    wiring = wire(topo)
    _check_background(experiment, wiring)
    bmv2 = _installed_bmv2() if experiment.fabric == "bmv2" else None
    fastest = max(port.gbps for port in wiring.ports)
    dilation = experiment.dilation or (
        bmv2_dilation(fastest, experiment.mtu_bytes)
        if bmv2
        else choose_dilation(sorted({port.gbps for port in wiring.ports}))
    )
    if experiment.stage == "host" and not experiment.dilation:
        speeds = tuple(wiring.ports[host].gbps * _NS for host in range(hosts))
        dilation = real_time_dilation(dilation, experiment, wiring, demands, speeds)
    if bmv2:
        _check_bmv2(experiment, wiring, dilation)
    if 8 * dilation / fastest < 1:
        raise InputError(
            f"dilation is {float(dilation):g}: at {float(fastest):g} Gb/s a byte would take less than the clock's 1 ns; "
            f"give {float(fastest / 8):g} or more, or leave it out"
        )
    for port in wiring.ports:
        for what, time_ns, limit in (
            ("a packet takes", experiment.mtu_bytes * 8 * dilation / port.gbps, 2**31),
            ("the delay is", port.ns * dilation, 2**32),
        ):
            if time_ns >= limit:
                raise InputError(
                    f"{port.node} to {port.peer_node}: {what} {float(time_ns):g} ns of kernel time at dilation "
                    f"{float(dilation):g}, which must be below {limit}: give a smaller dilation, or a smaller range of links"
                )
    speeds = tuple(wiring.ports[host].gbps * _NS for host in range(len(wiring.hosts)))
    for failure in experiment.link_failure:
        ports_of_link(wiring, failure.link)
    largest = max((demand.max_port_bytes for demand in demands), default=experiment.mtu_bytes)
    parameters = derive(experiment, wiring, largest)
    return Scenario(
        experiment,
        inputs,
        demands,
        wiring,
        speeds,
        dilation,
        shape,
        parameters,
        bmv2,
        bmv2.version() if bmv2 else None,
    )


def _read_demands(experiment: Experiment) -> tuple[tuple[Input, ...], tuple[Demand, ...]]:
    """Each demand of each file, a phase each, in the order in which they run."""
    inputs: list[Input] = []
    demands: list[Demand] = []
    for phase in experiment.demand:
        sequence = load_demands(
            phase.file,
            unit=phase.unit,
            token_bytes=phase.token_bytes,
            mtu_bytes=experiment.mtu_bytes,
            hosts_per_server=experiment.gpus_per_server,
            reading=phase.reading,
            direction=phase.direction,
            combine_token_bytes=phase.combine_token_bytes,
        )
        if len(demands) + len(sequence) > _MAX_PHASES:
            raise InputError(
                f"{phase.file} holds {len(sequence)} demands, each a phase of a run, of which {_MAX_PHASES} are supported: "
                "choose with steps and layers"
            )
        demands += sequence.read()
        for index in range(len(sequence)):
            place = str(sequence.place(index)) if len(sequence) > 1 else ""
            inputs.append(Input(phase, f"{phase.name}: {place}" if place else phase.name, sequence.unit))
    return tuple(inputs), tuple(demands)


def _shape(experiment: Experiment, hosts: int) -> dict[str, int]:
    if experiment.topology == "fat-tree":
        return {"fat_tree_k": experiment.fat_tree_k or smallest_fat_tree(hosts)}
    return {"hosts_per_leaf": experiment.hosts_per_leaf or (4 if hosts <= 16 else 8)}


def _check_bmv2(experiment: Experiment, wiring: Wiring, dilation: Fraction) -> None:
    """Raises InputError for what BMv2's queues, which count packets, cannot do."""
    fastest = max(port.gbps for port in wiring.ports)
    least = bmv2_dilation(fastest, experiment.mtu_bytes, MOST_PACKETS_PER_S)
    if dilation < least:
        raise InputError(
            f"dilation is {float(dilation):g}: BMv2 is exact up to {MOST_PACKETS_PER_S} packets/s a port, which takes "
            f"{math.ceil(least)} or more here; give that, or leave it out"
        )
    error = rounding(wiring, dilation, experiment.mtu_bytes)
    if error > _MOST_ROUNDING:
        raise InputError(
            f"dilation is {float(dilation):g}: BMv2 serves whole packets a second, which would be {100 * error:.2g} % off the "
            "speed of a link; give a smaller one, or link speeds that are closer to each other"
        )
    kmax = experiment.ecn_kmax_bytes
    if isinstance(kmax, int) and 0 < kmax < experiment.mtu_bytes:
        raise InputError(
            f"ecn_kmax_bytes is {kmax}: BMv2 counts its queues in packets of {experiment.mtu_bytes} B; give one or more, or 0"
        )
    if len(wiring.switches) > MOST_SWITCHES:
        raise InputError(
            f"the topology has {len(wiring.switches)} switches, of BMv2 at most {MOST_SWITCHES} can run: give fewer hosts"
        )


def _check_background(experiment: Experiment, wiring: Wiring) -> None:
    """Raises InputError for a background flow that this network cannot carry."""
    hosts = len(wiring.hosts)
    packets = 0
    for number, flow in enumerate(experiment.background, 1):
        for end in (flow.source, flow.destination):
            if end not in wiring.hosts:
                raise InputError(
                    f"background {number}: {end!r} is no host: there are {wiring.hosts[0]} to {wiring.hosts[hosts - 1]}"
                )
        line_gbps = wiring.ports[wiring.hosts.index(flow.source)].gbps
        if flow.rate_gbps > line_gbps:
            raise InputError(
                f"background {number}: rate_gbps is {float(flow.rate_gbps):g}, and {flow.source} sends "
                f"{float(line_gbps):g} Gb/s at most: give less"
            )
        packets += -(-flow.bytes // experiment.mtu_bytes)
    if packets >= _MAX_PACKETS or len(experiment.background) >= _MAX_BACKGROUND:
        raise InputError(
            f"background: {packets} packets of {len(experiment.background)} flows: {_MAX_PACKETS} of {_MAX_BACKGROUND} are too "
            "many; give less"
        )


def _installed_bmv2() -> installation.Installation:
    """Raises CannotRunError in one line where something is missing that the BMv2 fabric needs."""
    found = installation.find()
    if found is None:
        raise CannotRunError(f"fabric bmv2 {installation.NEEDED}; or use fabric kernel")
    import testbed.fabric.bmv2.bindings  # noqa: F401 (says what is missing of P4Runtime)

    return found


def ports_of_link(wiring: Wiring, link: str) -> tuple[int, int]:
    """Both ends of a link, by its one name: a host, or "leaf1-spine2". Raises InputError for a name that is no link."""
    hosts = len(wiring.hosts)
    ends = {port.node: port for port in wiring.ports[:hosts]}
    ends |= {f"{port.node}-{port.peer_node}": port for port in wiring.ports[2 * hosts :] if port.index < port.peer}
    if link not in ends:
        raise InputError(f"link_failure: {link!r} is not a link of this topology: links are {named_links(ends)}")
    return ends[link].index, ends[link].peer
