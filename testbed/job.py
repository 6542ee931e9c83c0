"""From a scenario and one of its runs to what one machine is given: plans, times, files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.demand import HEADER_BYTES, Demand
from controller.schedule import Plan
from controller.schedule.plan import Discipline, Stages, durations_s
from testbed import dpu_model
from testbed.engine import (
    BACKGROUND_FIELDS,
    FLOW_FIELDS,
    MAX_SOCKETS,
    RECORD_CAPACITY,
    STAGE_FIELDS,
    Balancing,
    LossRecovery,
)
from testbed.experiment import Run
from testbed.parameters import FREEZE_NS
from testbed.phases import Phase, phases_of
from testbed.scenario import PACKETS_A_WORD, PERIOD_FABRIC_NS, SHORTEST_LINK, Scenario, ports_of_link
from testbed.stage.virtual.guest import VISIBLE
from testbed.times import delay_ns, fixed_byte_ns

__all__ = [
    "ENTROPY",
    "JITTER",
    "LOGS",
    "PATHS",
    "PHASES",
    "USER_CONTROL",
    "Job",
    "background_table",
    "flow_table",
    "prepare_job",
    "seed_word",
    "stage_table",
    "start_offsets",
]

_NS: Final = 10**9
USER_CONTROL: Final = "control.py"
"""A user's congestion control, in the folder that the guest shares."""
LOGS: Final = "switches"
"""Folder of the switches' logs there."""
_LEAD: Final = 10
"""A wake comes a tenth of a period ahead, and a few ns, so that it does not meet packets in step with it."""
_LEAD_ODD_NS: Final = 17
_SHORTEST_PERIOD_NS: Final = 150
_MOST_TIMEOUTS: Final = 60
MOST_BOUNDS: Final = 8
"""A run that has not ended after so many lower bounds, and what losses may add, does not end."""
_SKB_BYTES: Final = 1536
"""Kernel memory of one short frame in flight, with its share of tables, rounded up."""
_PACKET_STATE_BYTES: Final = 12
_FLOW_BYTES: Final = 512
_CONTROL_BYTES: Final = 2560
"""A congestion control in Python, with its bound methods and numbers, rounded up."""
_PORT_BYTES: Final = 65536
_SOCKET_BYTES: Final = 1_000_000_000
_BASE_MIB: Final = 512
_BMV2_MIB: Final = 64
"""Of one switch process and its part of the network, rounded up."""
_LINGER_PACKETS: Final = 4
_TOLERANCE: Final = 4
"""Part of a packet's time by which nothing may be late in virtual time. BMv2's threads are, by a fifteenth."""
_MOST_HOPS: Final = 6
_RECORD_BYTES: Final = 3 * 32
"""Of a packet at one hop, where records are kept until the end: with what a growing array takes at once."""
_GOLDEN: Final = (0.6180339887498949, 0.7548776662466927)
"""1/phi of the plain and of the plastic number: a low-discrepancy sequence in (i, j) (Roberts, 2018)."""
_RATE_ONE: Final = 2**32
"""The line rate, in steps (ebpf/include/rate_table.h)."""


@dataclass(frozen=True)
class Job:
    """One run, ready to start."""

    run: Run
    memory_mib: int
    packets: int


def _random(seed: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, purpose])))


def seed_word(seed: int, purpose: int) -> int:
    """32 random bits of a seed."""
    return int(np.random.SeedSequence([seed, purpose]).generate_state(1, np.uint32)[0])


PHASES, JITTER, PATHS, ENTROPY, MARKS, LOSSES = 1, 2, 3, 4, 5, 6
"""Purposes of the random streams of a seed; testbed/estimate.py has one more."""


def start_offsets(scenario: Scenario) -> NDArray[np.uint64]:
    """Kernel nanoseconds by which each sender starts late."""
    jitter_ns = float(scenario.experiment.start_jitter_ns * scenario.dilation)
    drawn = _random(scenario.experiment.seed, JITTER).random(len(scenario.wiring.hosts))
    return np.floor(drawn * jitter_ns).astype(np.uint64)


def flow_table(scenario: Scenario, demand: Demand, plan: Plan) -> NDArray[np.void]:
    """The flows that have something to send, sorted by source, each source's in its round-robin order.

    A paced flow starts at a random (or golden, or no) place in its first gap.
    """
    experiment = scenario.experiment
    hosts = demand.hosts
    mtu = experiment.mtu_bytes
    source, destination = np.nonzero(demand.wire_bytes)
    order = np.lexsort(((destination - source - 1) % hosts, source))
    source, destination = source[order], destination[order]
    size = demand.wire_bytes[source, destination]
    packets = -(-size // mtu)
    steps = plan.steps[source, destination]

    flows = np.zeros(len(source), dtype=FLOW_FIELDS)
    flows["source"], flows["destination"] = source, destination
    flows["packets"] = packets
    flows["last_bytes"] = size - (packets - 1) * mtu
    flows["steps"] = steps
    if plan.quanta_bytes is not None:
        flows["quantum_bytes"] = plan.quanta_bytes[source, destination]
    words = -(-packets // PACKETS_A_WORD)
    flows["word"] = np.cumsum(words) - words
    if plan.discipline is Discipline.PACED:
        byte_ns = np.array([float(8 * scenario.dilation / (speed / _NS)) for speed in scenario.speeds_bps])
        first_gap_ns = np.minimum(size, mtu) * byte_ns[source] / (steps / 2.0**32)
        if experiment.phase == "random":
            waiting = _random(experiment.seed, PHASES).random((hosts, hosts))[source, destination]
        elif experiment.phase == "golden":
            waiting = (_GOLDEN[0] * source + _GOLDEN[1] * destination) % 1.0
        else:
            waiting = np.zeros(len(source))
        flows["ready_ns"] = np.floor(waiting * first_gap_ns)
    return flows


def stage_table(scenario: Scenario, demand: Demand, plan: Plan, waited_ns: Fraction = Fraction(0)) -> NDArray[np.void]:
    """The stages of each sender, sorted by source, as far as ``demand`` has packets for them.

    A packet belongs to the stage in which its first byte is planned. What no stage names goes after all of them.
    ``waited_ns``: when the clock of the plan starts, fabric time after the common start.
    """
    mtu = scenario.experiment.mtu_bytes
    given = np.sort(plan.stages, order=("source", "destination", "stage"))
    flow = given["source"] * demand.hosts + given["destination"]
    total = np.cumsum(given["bytes"])
    first = np.searchsorted(flow, flow)
    planned = total - total[first] + given["bytes"][first]
    size = demand.wire_bytes.reshape(-1)[flow]
    packets = -(-np.minimum(planned, size) // mtu)
    before = np.where(np.arange(len(given)) == first, 0, np.concatenate([[0], packets])[:-1])
    kept = packets > before
    stages = np.zeros(int(kept.sum()), dtype=STAGE_FIELDS)
    stages["source"], stages["destination"] = given["source"][kept], given["destination"][kept]
    stages["packets"], stages["number"] = packets[kept], given["stage"][kept]
    if plan.mode is Stages.CLOCK:
        ends_s = accumulate(durations_s(plan, scenario.speeds_bps), initial=Fraction(0))
        starts_ns = np.array([delay_ns(end_s * _NS, scenario.dilation) for end_s in ends_s], dtype=np.uint64)
        stages["start_ns"] = starts_ns[stages["number"]] + np.uint64(delay_ns(waited_ns, scenario.dilation))
    stages = np.sort(stages, order=("source", "number"))
    # Numbers without gaps: a stage of which the demand has nothing would never be over.
    stages["number"] = np.unique(stages["number"], return_inverse=True)[1]
    return stages


def background_table(scenario: Scenario) -> NDArray[np.void]:
    """The background flows, sorted by source; their PSNs follow each other."""
    mtu = scenario.experiment.mtu_bytes
    place = {name: index for index, name in enumerate(scenario.wiring.hosts)}
    given = sorted(scenario.experiment.background, key=lambda flow: place[flow.source])
    flows = np.zeros(len(given), dtype=BACKGROUND_FIELDS)
    first_psn = 0
    for row, flow in zip(flows, given, strict=True):
        source = place[flow.source]
        packets = -(-flow.bytes // mtu)
        steps = int(flow.rate_gbps * _NS * _RATE_ONE / scenario.speeds_bps[source])
        row["source"], row["destination"] = source, place[flow.destination]
        row["ready_ns"] = delay_ns(flow.start_ns, scenario.dilation)
        row["packets"], row["last_bytes"] = packets, max(HEADER_BYTES, flow.bytes - (packets - 1) * mtu)
        row["steps"], row["first_psn"] = max(1, min(steps, _RATE_ONE - 1)), first_psn
        first_psn += packets
    return flows


def _delay_rates(scenario: Scenario, plan: Plan, before: Plan | None, flows: NDArray[np.void]) -> int:
    """Enters the control delay into the flows: who waits for its rate, and who has one of the phase ``before``.

    Returns when the rates come into force, in kernel ns after the common start; 0 where all who have none wait.
    """
    planned = plan.discipline in (Discipline.PACED, Discipline.STAGED)
    if not planned or not scenario.experiment.control_delay_ns:
        return 0
    rates_ns = delay_ns(scenario.experiment.control_delay_ns, scenario.dilation)
    old = np.zeros(len(flows), dtype=np.int64)
    paced = plan.discipline is Discipline.PACED and before is not None and before.discipline is Discipline.PACED
    if scenario.experiment.meanwhile == "old" and paced and before is not None:
        old[:] = before.steps[flows["source"], flows["destination"]]
    # A sender that starts late starts when it would, or when its rates are there.
    waiting = np.maximum(0, rates_ns - start_offsets(scenario).astype(np.int64))[flows["source"]]
    flows["ready_ns"] += np.where(old == 0, waiting, 0).astype(np.uint64)
    if not old.any():
        return 0
    flows["before_steps"] = np.where(old, old, flows["steps"])
    return rates_ns


def prepare_job(scenario: Scenario, run: Run, work: Path, planned: Iterable[Phase] | None = None) -> Job:
    """Writes what testbed.stage.tasks.collective reads into ``work``; ``planned``: its phases, where they have been begun."""
    experiment, parameters = scenario.experiment, scenario.parameters
    if run.cc.endswith(".py"):
        (work / USER_CONTROL).write_bytes(Path(run.cc).read_bytes())
    byte_ns = [fixed_byte_ns(speed / _NS, scenario.dilation) for speed in scenario.speeds_bps]
    (work / "byte_ns.bin").write_bytes(np.array(byte_ns, dtype="<u8").tobytes())
    propagation_ns = [delay_ns(port.ns, scenario.dilation) for port in scenario.wiring.ports]
    (work / "propagation_ns.bin").write_bytes(np.array(propagation_ns, dtype="<u4").tobytes())
    background = background_table(scenario)
    (work / "background.bin").write_bytes(background.tobytes())
    background_packets = int(background["packets"].sum())
    fastest_byte_ns = min(8 * scenario.dilation / port.gbps for port in scenario.wiring.ports)

    phases: list[dict[str, Any]] = []
    packets = 0
    disciplines: set[Discipline] = set()
    before: Plan | None = None
    paced_by_dpus = dpu_model.of_dpus(scenario, run)
    for number, phase in enumerate(planned or phases_of(scenario, run)):
        demand, plan = phase.demand, phase.plan
        disciplines.add(plan.discipline)
        waited_ns = experiment.control_delay_ns if phase.first else Fraction(0)
        flows = flow_table(scenario, demand, plan)
        (work / f"stages-{number}.bin").write_bytes(stage_table(scenario, demand, plan, waited_ns).tobytes())
        rates_ns = _delay_rates(scenario, plan, before, flows) if phase.first else 0
        sends = b""
        if paced_by_dpus:
            old = before if rates_ns else None
            rates_ns = delay_ns(experiment.control_delay_ns, scenario.dilation)
            sends = dpu_model.mailbox(scenario, run, plan, old, rates_ns)
        (work / f"mailbox-{number}.bin").write_bytes(sends)
        before = before if phase.inner else plan
        (work / f"flows-{number}.bin").write_bytes(flows.tobytes())
        (work / f"rates-{number}.bin").write_bytes(scenario.on_ports(plan.steps).astype("<u4").tobytes())
        (work / f"start-{number}.bin").write_bytes(start_offsets(scenario).astype("<u8").tobytes())
        bound_ns = int(demand.bottleneck(scenario.speeds_bps).time_s * scenario.dilation * _NS)
        sent = int(flows["packets"].sum())
        packets += sent
        period_ns = _period_ns(scenario, bound_ns, sent)
        phases.append(
            {
                "period_ns": period_ns,
                "lead_ns": period_ns // _LEAD + _LEAD_ODD_NS,
                "limit_ns": MOST_BOUNDS * bound_ns
                + _allowance_ns(scenario)
                + _stages_ns(scenario, plan)
                + _late_ns(scenario, flows, bound_ns),
                "rates_ns": rates_ns,
                "discipline": int(plan.discipline),
                "paced": plan.discipline is Discipline.PACED,
                "barrier": plan.discipline is Discipline.STAGED and plan.mode is Stages.BARRIER,
                "stages": plan.stage_count,
                "stages_bytes": plan.length_bytes,
                "inner": phase.inner,
                "bucket_ns": max(1, -(-bound_ns // 500)),
            }
        )
    job = {
        "network": {
            "hosts": scenario.hosts,
            "gpus_per_server": experiment.gpus_per_server,
            "server_link_gbps": str(experiment.server_link_gbps),
            "topology": experiment.topology,
            "shape": dict(scenario.shape),
            "link_gbps": str(experiment.link_gbps),
            "link_ns": str(experiment.link_ns),
            "link_gbps_of": {name: str(value) for name, value in experiment.link_gbps_of.items()},
            "link_ns_of": {name: str(value) for name, value in experiment.link_ns_of.items()},
            "mtu_bytes": experiment.mtu_bytes,
            "queue_bytes": parameters.queue_bytes,
            "occupancy_bytes": parameters.occupancy_bytes,
        },
        "constants": _constants(scenario),
        "failures": [
            [port, delay_ns(failure.down_ns, scenario.dilation), delay_ns(failure.up_ns, scenario.dilation)]
            for failure in experiment.link_failure
            for port in ports_of_link(scenario.wiring, failure.link)
        ],
        "recovery_name": experiment.loss_recovery,
        "transport": {
            "recovery": int(LossRecovery[experiment.loss_recovery.upper()]),
            "rto_ns": int(parameters.rto_ns * scenario.dilation),
            "reorder_ns": int(parameters.reorder_ns * scenario.dilation),
            "probe_ns": int(parameters.probe_ns * scenario.dilation),
            "tail_probe_ns": int(parameters.tail_probe_ns * scenario.dilation),
        },
        "control": {
            # The DPU has the fallback, and is told to use it.
            "cc": "none" if paced_by_dpus and run.cc == "fallback" else run.cc,
            "header_bytes": HEADER_BYTES,
            "trimming": experiment.trimming,
            "seed": experiment.seed,
            "rtt_ns": float(parameters.rtt_ns),
            "line_rate_bps": [float(speed) for speed in scenario.speeds_bps],
        },
        "dilation": str(scenario.dilation),
        "path_salt": seed_word(experiment.seed, PATHS),
        "entropy_seed": seed_word(experiment.seed, ENTROPY),
        "barrier_ns": delay_ns(parameters.barrier_ns, scenario.dilation),
        "balancing": int(Balancing[experiment.lb.upper()]),
        "sockets": min(MAX_SOCKETS, 1 + (packets + background_packets) * _SKB_BYTES // _SOCKET_BYTES),
        "slot_ns": max(1, int(experiment.mtu_bytes * fastest_byte_ns)),
        "links": scenario.links,
        "fabric": experiment.fabric,
        "stage": experiment.stage,
        "bmv2": str(scenario.bmv2.program) if scenario.bmv2 else "",
        "late_records": scenario.links == "veth",
        "linger_ns": _linger_ns(scenario) if scenario.links == "veth" else 0,
        "freeze_ns": int(FREEZE_NS * scenario.dilation),
        "trace": experiment.trace,
        "phases": phases,
    }
    (work / "job.json").write_text(json.dumps(job))
    if scenario.bmv2:
        (work / VISIBLE).write_text(f"{scenario.bmv2.prefix}\n")
    memory_mib = experiment.memory_mib or _memory_mib(scenario, run, disciplines, packets, background_packets)
    return Job(run, memory_mib, packets)


def _memory_mib(
    scenario: Scenario, run: Run, disciplines: set[Discipline], packets: int, background_packets: int
) -> int:
    """An estimate of what the virtual machine needs at most; what it does not touch costs nothing."""
    hosts, ports = len(scenario.wiring.hosts), scenario.wiring.ports
    queue_bytes = scenario.parameters.queue_bytes
    if queue_bytes:
        in_flight = sum(
            1 + int((queue_bytes + port.ns * port.gbps / 8) / scenario.experiment.mtu_bytes) for port in ports
        )
    elif disciplines - {Discipline.PACED} or background_packets:  # R leaves no room for a background
        in_flight = packets + background_packets
    else:
        in_flight = hosts * 4096
    transport_bytes = packets * _PACKET_STATE_BYTES if scenario.experiment.loss_recovery != "none" else 0
    control_bytes = hosts * hosts * (_CONTROL_BYTES if run.cc != "none" else 0)
    used_bytes = (
        min(packets + background_packets, in_flight) * _SKB_BYTES
        + hosts * hosts * _FLOW_BYTES
        + len(ports) * _PORT_BYTES
    )
    switches_mib = _BMV2_MIB * len(scenario.wiring.switches) if scenario.bmv2 else 0
    if dpu_model.of_dpus(scenario, run):
        used_bytes += hosts * dpu_model.STATE_BYTES
    if scenario.links == "veth":
        used_bytes += (packets + background_packets) * _MOST_HOPS * _RECORD_BYTES
    return _BASE_MIB + switches_mib + (used_bytes + transport_bytes + control_bytes) // 2**20


def _constants(scenario: Scenario) -> dict[str, int]:
    """Of ebpf/fabric/state.h."""
    experiment, parameters = scenario.experiment, scenario.parameters

    def probability(value: Fraction) -> int:
        return int(value * 2**32)

    return {
        "acknowledging": experiment.loss_recovery != "none",
        "trimming": experiment.trimming,
        "ecn_kmin_bytes": parameters.ecn_kmin_bytes,
        "ecn_kmax_bytes": parameters.ecn_kmax_bytes,
        "mark_salt": seed_word(experiment.seed, MARKS),
        "loss_salt": seed_word(experiment.seed, LOSSES),
        "loss_data": probability(experiment.loss_data),
        "loss_control": probability(experiment.loss_ack),
        "failing": bool(experiment.link_failure),
        "adaptive": experiment.lb == "ar",
        "spraying": experiment.lb == "ops",
        "tolerance_ns": _packet_ns(scenario, max(port.gbps for port in scenario.wiring.ports))
        // (1 if experiment.stage == "host" else _TOLERANCE),
    }


def _packet_ns(scenario: Scenario, gbps: Fraction) -> int:
    """Kernel time of a full packet."""
    return int(scenario.experiment.mtu_bytes * 8 * scenario.dilation / gbps)


def _linger_ns(scenario: Scenario) -> int:
    """A switch that is a process is heard of when it sends, as a queue that is not empty does once a packet time."""
    return _LINGER_PACKETS * _packet_ns(scenario, min(port.gbps for port in scenario.wiring.ports))


def _allowance_ns(scenario: Scenario) -> int:
    """What a run may take beyond a multiple of its bound: starts, the longest way several times, links that fail, and
    one packet's being lost again and again.
    """
    experiment = scenario.experiment
    longest_ns = max(port.ns for port in scenario.wiring.ports)
    up_ns = max((failure.up_ns for failure in experiment.link_failure), default=Fraction(0))
    timeouts_ns = _MOST_TIMEOUTS * scenario.parameters.rto_ns if experiment.loss_recovery != "none" else 0
    # The demand may get nothing before a background has ended.
    background_ns = sum(
        (flow.start_ns + 8 * flow.bytes / flow.rate_gbps for flow in experiment.background), Fraction(0)
    )
    waiting_ns = (
        10_000_000
        + experiment.start_jitter_ns
        + experiment.control_delay_ns
        + 100 * longest_ns
        + up_ns
        + timeouts_ns
        + background_ns
    )
    return int(waiting_ns * scenario.dilation)


def _stages_ns(scenario: Scenario, plan: Plan) -> int:
    """What stages may take beyond a multiple of the bound: their own length, and the way and the barrier of each."""
    if plan.discipline is not Discipline.STAGED:
        return 0
    parameters = scenario.parameters
    length_ns = sum(durations_s(plan, scenario.speeds_bps), Fraction(0)) * _NS
    pause_ns = parameters.rtt_ns + parameters.barrier_ns + scenario.experiment.start_jitter_ns
    return int((MOST_BOUNDS * length_ns + MOST_BOUNDS * plan.stage_count * pause_ns) * scenario.dilation)


def _late_ns(scenario: Scenario, flows: NDArray[np.void], bound_ns: int) -> int:
    """What paced flows may take beyond a multiple of the bound, where an estimate gives them less than they need."""
    paced = flows[flows["steps"] > 0]
    if not len(paced) or not (scenario.experiment.estimate_stale or scenario.experiment.estimate_error):
        return 0
    byte_ns = np.array([float(8 * scenario.dilation * _NS / speed) for speed in scenario.speeds_bps])
    size = paced["packets"].astype(np.float64) * scenario.experiment.mtu_bytes
    slowest_ns = float((size * byte_ns[paced["source"]] / (paced["steps"] / _RATE_ONE)).max())
    return int(MOST_BOUNDS * max(0.0, slowest_ns - bound_ns))


def _period_ns(scenario: Scenario, bound_ns: int, packets: int) -> int:
    """How often the engine wakes: every 1 us of fabric time, or so often that the record ring suffices
    even where all hosts send without a pause, and where packets are short, with room for 16 times
    their average density, on the longest way each. With its lead it is no longer than a host's link, where that is
    not very short, so that every ACK is known in time.
    """
    period = int(PERIOD_FABRIC_NS * scenario.dilation)
    shortest = min(delay_ns(port.ns, scenario.dilation) for port in scenario.wiring.ports[: len(scenario.wiring.hosts)])
    if shortest >= period // SHORTEST_LINK:
        period = min(period, (shortest - _LEAD_ODD_NS) * _LEAD // (_LEAD + 1))
    hops = scenario.wiring.longest_path
    dense = bound_ns * RECORD_CAPACITY // (16 * hops * max(1, packets))
    fastest = max(port.gbps for port in scenario.wiring.ports)
    packet_ns = scenario.experiment.mtu_bytes * 8 * scenario.dilation / fastest
    full = int(packet_ns * RECORD_CAPACITY / (2 * hops * len(scenario.wiring.hosts)))
    return max(_SHORTEST_PERIOD_NS, min(period, dense, full))
