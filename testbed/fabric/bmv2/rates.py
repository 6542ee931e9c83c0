"""Speeds as BMv2 has them: whole packets a second, whatever the packets' size."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from controller.demand import HEADER_BYTES
from testbed.topology import Wiring

__all__ = ["MOST_PACKETS_PER_S", "MOST_SWITCHES", "PACKETS_PER_S", "bmv2_dilation", "queue_rates", "rounding"]

_NS: Final = 10**9
PACKETS_PER_S: Final = 1000
"""Of the fastest port, where the dilation is chosen: BMv2's threads serve up to 60 us after they are due, a fifteenth of a packet's
time at this rate; in virtual time slowness costs nothing."""
MOST_PACKETS_PER_S: Final = 10_000
"""Beyond that the same some us are more than a tenth of a packet's time."""


MOST_SWITCHES: Final = 500
"""Each has two ports to listen on, counted from 9090 and 9590 (switch.py)."""


def bmv2_dilation(fastest_gbps: Fraction, mtu_bytes: int, packets_per_s: int = PACKETS_PER_S) -> Fraction:
    """The dilation at which the fastest port passes so many full packets a second of kernel time."""
    return fastest_gbps * _NS / (8 * mtu_bytes * packets_per_s)


def _exact_rate(gbps: Fraction, dilation: Fraction, packet_bytes: int) -> Fraction:
    return gbps * _NS / (8 * packet_bytes * dilation)


def queue_rates(wiring: Wiring, dilation: Fraction, mtu_bytes: int) -> list[tuple[int, int]]:
    """(data, control) in packets a second for each port: data as if every packet were full, control as if all were headers."""
    return [
        (
            max(1, round(_exact_rate(port.gbps, dilation, mtu_bytes))),
            max(1, round(_exact_rate(port.gbps, dilation, HEADER_BYTES))),
        )
        for port in wiring.ports
    ]


def rounding(wiring: Wiring, dilation: Fraction, mtu_bytes: int) -> float:
    """The largest error of a data rate by its rounding, as a fraction of the rate."""
    return max(
        float(abs(rate / _exact_rate(port.gbps, dilation, mtu_bytes) - 1))
        for port, (rate, _) in zip(wiring.ports, queue_rates(wiring, dilation, mtu_bytes), strict=True)
    )
