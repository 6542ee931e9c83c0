"""What the keys that are "auto" come to: round-trip time, bandwidth-delay product, queue, marking, timeouts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from controller.demand import HEADER_BYTES
from controller.errors import InputError
from testbed.experiment import Experiment
from testbed.topology import Wiring

__all__ = ["FREEZE_NS", "Parameters", "derive"]

FREEZE_NS: Final = 10_000_000
"""REPS: so long after a timeout a flow keeps to entropy values that it knows. Source: uet-htsim at 40ccb052."""

_KMIN, _KMAX = Fraction(1, 5), Fraction(4, 5)
_QUEUES_WITHOUT_TRIMMING: Final = 5
_RTO_BASE_NS: Final = 15_000
_RTO_RTTS: Final = Fraction(3, 2)
_RTO_QUEUES: Final = 6
_PROBE_RTTS: Final = 3
_TAIL_PROBE_RTTS: Final = 2
_MOST_KMAX_BYTES: Final = 2**31
"""The fabric counts a queue's bytes in 32 bits."""


@dataclass(frozen=True)
class Parameters:
    """Times in fabric ns, sizes in bytes on the wire. Source: uet-htsim at 40ccb052."""

    rtt_ns: Fraction
    """RTT0: both ways of the longest path, and a packet's and an ACK's serialisation at every port."""
    bdp_bytes: Fraction
    queue_bytes: int
    """Of a switch port; 0: unlimited."""
    occupancy_bytes: int
    """Of which adaptive routing takes the occupancy: the queue, or the product in whole packets where it is unlimited."""
    ecn_kmin_bytes: int
    ecn_kmax_bytes: int
    rto_ns: int
    """Of a flow that does not pause: 15 us and six full queues."""
    reorder_ns: int
    """Sent so much earlier than what has come in, a packet is lost."""
    probe_ns: int
    """Having heard nothing for so long, a sender sends a packet again."""
    tail_probe_ns: int
    """The same where it has no new data left."""
    barrier_ns: Fraction
    """From when all of a stage has come until all senders know."""


def derive(experiment: Experiment, wiring: Wiring, largest_load_bytes: int) -> Parameters:
    """``largest_load_bytes``: M, which bounds a queue that has no limit of its own.

    With links that differ, the nominal speed and the longest delay count, and for the timeouts the slowest queue. Raises InputError where the thresholds of
    marking, of which one may be automatic, are the wrong way round.
    """
    hops = wiring.longest_path
    mtu = experiment.mtu_bytes
    delay_ns = max(port.ns for port in wiring.ports)
    byte_ns = 8 / experiment.link_gbps
    slowest_byte_ns = 8 / min(port.gbps for port in wiring.ports)
    rtt_ns = 2 * hops * delay_ns + hops * (mtu + HEADER_BYTES) * byte_ns
    bdp_bytes = rtt_ns / byte_ns
    bdp_packets = math.ceil(bdp_bytes / mtu)

    def bytes_of(given: int | str, automatic: int) -> int:
        return automatic if isinstance(given, str) else given

    kmin = bytes_of(experiment.ecn_kmin_bytes, min(_MOST_KMAX_BYTES, math.ceil(_KMIN * bdp_packets) * mtu))
    kmax = bytes_of(experiment.ecn_kmax_bytes, min(_MOST_KMAX_BYTES, math.ceil(_KMAX * bdp_packets) * mtu))
    if 0 < kmax < kmin:
        raise InputError(f"ecn_kmin_bytes is {kmin}, above ecn_kmax_bytes, {kmax}: give both, kmax the larger")
    factor = 1 if experiment.trimming else _QUEUES_WITHOUT_TRIMMING
    queue_bytes = bytes_of(experiment.queue_bytes, factor * bdp_packets * mtu)
    barrier = experiment.barrier_ns
    deepest_ns = math.ceil((queue_bytes or largest_load_bytes) * slowest_byte_ns)
    return Parameters(
        rtt_ns=rtt_ns,
        bdp_bytes=bdp_bytes,
        queue_bytes=queue_bytes,
        occupancy_bytes=queue_bytes or bdp_packets * mtu,
        ecn_kmin_bytes=kmin,
        ecn_kmax_bytes=kmax,
        # Long links may need longer than the 15 us of the reference before there is any queue.
        rto_ns=max(_RTO_BASE_NS, math.ceil(_RTO_RTTS * rtt_ns)) + _RTO_QUEUES * deepest_ns,
        # Of one flow's packets on several paths one may meet a full queue and the next none, but seldom does.
        reorder_ns=math.ceil(rtt_ns) + (0 if queue_bytes else deepest_ns),
        probe_ns=math.ceil(_PROBE_RTTS * rtt_ns) + (0 if queue_bytes else deepest_ns),
        tail_probe_ns=math.ceil(_TAIL_PROBE_RTTS * rtt_ns) + (0 if queue_bytes else deepest_ns),
        # News that all has come goes the way that data came.
        barrier_ns=rtt_ns / 2 if isinstance(barrier, str) else barrier,
    )
