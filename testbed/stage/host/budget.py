"""How much of the network this machine can play in real time: before a run, and after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from controller.demand import Demand
from controller.errors import CannotRunError
from testbed.experiment import Experiment
from testbed.fabric.bmv2.rates import bmv2_dilation
from testbed.topology import Wiring

__all__ = ["HOPS_PER_S", "check_budget", "check_kept_up", "packet_hops_per_s", "real_time_dilation"]

HOPS_PER_S: Final = {"kernel": 200_000, "bmv2": 7_500}
"""Packet-hops that one processor carries in a second.

kernel: a cautious estimate. The same programs, interpreted, in the virtual-time kernel, do 700,000 to 1,000,000, where
no timer interrupt is real. bmv2: measured, 15,000 on two cores where queue rates are set (BMv2 1.15.5).
"""
_SHARE_TO_USE: Final = Fraction(1, 2)
"""Of the budget, where the dilation is ours to choose."""
_LEAST_PACKET_S: Final = Fraction(250, 10**6)
"""Time of a packet, where the dilation is ours to choose.

Timers of a small virtual machine whose host was busy came late by 45 us at the median, 72 us at 99 % and 145 us at
99.9 % (measured with clock_nanosleep, 8,000 times 250 us).
"""
_ACK_BYTES: Final = 16384
_ACK_PACKETS: Final = 32
"""A receiver answers once for as many (docs/model.md)."""
_MOST_LATE: Final = 0.01
"""Share of arrivals that may be late in a run that counts."""
_READABLE_DIGITS: Final = 2


def packet_hops_per_s(
    experiment: Experiment, wiring: Wiring, demands: Sequence[Demand], speeds_bps: Sequence[Fraction]
) -> float:
    """Packet-hops a second of fabric time while the busiest phase is busiest.

    Paced, a sender takes the lower bound for what it has to send. In any other schedule all senders begin at line rate.
    """
    paced = all(run.schedule == "rate" for run in experiment.runs)
    hops = _hops(wiring)
    busiest = 0.0
    for demand in demands:
        packets = -(-demand.wire_bytes // experiment.mtu_bytes)
        of_sender = (packets * hops).sum(axis=1)
        loads = demand.wire_bytes.sum(axis=1)
        bound_s = float(demand.bottleneck(speeds_bps).time_s)
        sending_s = [
            bound_s if paced else 8 * int(load) / float(speed) for load, speed in zip(loads, speeds_bps, strict=True)
        ]
        busiest = max(busiest, sum(h / s for h, s in zip(of_sender.tolist(), sending_s, strict=True) if h))
    for flow in experiment.background:
        source, destination = (wiring.hosts.index(end) for end in (flow.source, flow.destination))
        busiest += float(flow.rate_gbps) * 1e9 / 8 / experiment.mtu_bytes * float(hops[source, destination])
    if experiment.loss_recovery != "none":  # links are veth here, where ACKs are packets too
        busiest *= 1 + max(min(1.0, experiment.mtu_bytes / _ACK_BYTES), 1 / _ACK_PACKETS)
    return busiest


def _hops(wiring: Wiring) -> NDArray[np.int64]:
    """Links from each host to each other. Hosts of one switch are as far from a third."""
    hosts = len(wiring.hosts)
    hops = np.zeros((hosts, hosts), dtype=np.int64)
    first_of: dict[str, int] = {}
    for source in range(hosts):
        switch = wiring.ports[source].peer_node
        if switch in first_of:
            hops[source] = hops[first_of[switch]]
            hops[source, first_of[switch]] = len(wiring.path(source, first_of[switch]))
            continue
        first_of[switch] = source
        for destination in range(hosts):
            if destination != source:
                hops[source, destination] = len(wiring.path(source, destination))
    np.fill_diagonal(hops, 0)
    return hops


def real_time_dilation(
    least: Fraction,
    experiment: Experiment,
    wiring: Wiring,
    demands: Sequence[Demand],
    speeds_bps: Sequence[Fraction],
) -> Fraction:
    """The smallest multiple of ``least`` at which half of the budget is used, and timers have time for each packet.

    ``least``: a dilation at which times are whole (testbed.scenario.choose_dilation); so they are at its multiples. With BMv2 the
    fastest port passes whole packets a second instead.
    """
    budget = _SHARE_TO_USE * HOPS_PER_S[experiment.fabric]
    by_hops = Fraction(packet_hops_per_s(experiment, wiring, demands, speeds_bps)) / budget
    fastest_bps = max(port.gbps for port in wiring.ports) * 10**9
    by_timers = _LEAST_PACKET_S * fastest_bps / (8 * experiment.mtu_bytes)
    if experiment.fabric == "bmv2":
        packets_per_s = math.floor(
            bmv2_dilation(fastest_bps / 10**9, experiment.mtu_bytes, 1) / max(by_hops, by_timers, least)
        )
        return bmv2_dilation(fastest_bps / 10**9, experiment.mtu_bytes, max(1, packets_per_s))
    return least * max(1, math.ceil(max(by_hops, by_timers) / least))


def check_budget(
    experiment: Experiment,
    wiring: Wiring,
    demands: Sequence[Demand],
    speeds_bps: Sequence[Fraction],
    dilation: Fraction,
) -> None:
    """Before a run in real time. Raises CannotRunError, with what would do, if this machine cannot keep up with it."""
    budget = HOPS_PER_S[experiment.fabric]
    hops_per_s = packet_hops_per_s(experiment, wiring, demands, speeds_bps)
    asked = hops_per_s / float(dilation)
    if asked > budget:
        raise CannotRunError(
            f"at dilation {float(dilation):g} this takes {asked:,.0f} packet-hops a second, of which one processor "
            f"does some {budget:,} with fabric {experiment.fabric}: give a dilation of {_rounded_up(hops_per_s / budget)} or "
            "more, or leave it out"
        )
    bound_s = sum((demand.bottleneck(speeds_bps).time_s for demand in demands), Fraction(0))
    delay_ns = experiment.start_jitter_ns
    if any(run.schedule == "rate" for run in experiment.runs):
        delay_ns += len(demands) * experiment.control_delay_ns
    wall_s = float((bound_s + delay_ns / 10**9) * dilation)
    if wall_s > experiment.limit_s:
        raise CannotRunError(
            f"at dilation {float(dilation):g} a run takes {wall_s:,.0f} s in real time, more than limit_s, "
            f"{float(experiment.limit_s):g} s: give a larger one, less demand, or stage virtual"
        )


def _rounded_up(number: float) -> str:
    """In two digits, so that it can be typed."""
    step = 10 ** max(0, math.floor(math.log10(number)) + 1 - _READABLE_DIGITS)
    return str(math.ceil(number / step) * step)


def check_kept_up(late_packets: int, lateness_max_ns: int, timed: int, dilation: Fraction) -> None:
    """After a run in real time. Raises CannotRunError if the machine did not keep up with it.

    ``timed``: how often a packet came to the end of a link, or BMv2 began to serve one; ``late_packets``: how many of these
    were more than a packet's time after they were due; ``lateness_max_ns``: the latest one, in kernel time.
    """
    share = late_packets / max(1, timed)
    if share > _MOST_LATE:
        raise CannotRunError(
            f"{100 * share:.1f} % of arrivals and services were late by more than a packet's time, one by {lateness_max_ns / 1e6:.3f} ms: "
            f"this machine did not keep up, and the figures would be wrong; give a larger dilation than {float(dilation):g}, "
            "or a machine that does nothing else"
        )
