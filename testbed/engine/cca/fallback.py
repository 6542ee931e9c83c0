"""What a paced flow does about traffic that its schedule did not foresee: below R while there is congestion, then R again.

The paper asks of the NIC that it "senses link-layer feedback (such as ECN markers) to dynamically scale down rates" in the
event of unforeseen background traffic, as a fallback. It gives no law; this one is our own.

    rate = R * base / (1 + p)

p is the part of the last RTT0's bytes that came back marked. Flows that meet at a port see one p, whatever their R, and so
keep one share of their R and still end together. A law with a memory of its own cuts (AIMD, as in DCTCP) leaves each flow
with a share of its own, which none can make good, since none may exceed R: the collective then waits for the unluckiest one.
docs/congestion-control.md has figures. At p = 1 half of R is left. What does not suffice against goes to base, which has a
memory: a NACK, a timeout, or nothing but marks for long halve it, and it rises again slowly.

Stability: with marks that rise from none to all over 0.6 of the bandwidth-delay product (Kmin and Kmax by default) and a
delay of one RTT0, gain times delay is 1 / (0.6 (1 + p)^2), 0.8 where a third of the port is taken: below pi / 2, at which an
integrator with a delay begins to oscillate.
"""

from __future__ import annotations

from typing import Final

from testbed.engine.cca import Control, Network, Path

__all__ = ["Fallback"]

RISE: Final = 1 / 32
"""Of R, that base rises an RTT0: half of R in 16 of them, slow against the one in which marks take effect."""
CALM_RTTS: Final = 2
"""Between two cuts of base: the packets that are on their way when the rate changes, and a queue that they wait in, which may
hold another product."""
SOLID_RTTS: Final = 4
SOLID_PACKETS: Final = 32
"""Nothing but marks for so long means that half of R is too much. (Where a third of the packets are not marked, so many marks
in a row are one case in 400,000.)"""
LEAST_SHARE: Final = 1 / 64
"""Of R: even then a flow hears of the network often enough to rise."""


class Fallback(Control):
    """One flow: starts at R and is never above it. Under a schedule that sets no rate, R is the line rate."""

    kind = "rate"

    __slots__ = (
        "_base",
        "_ceiling_bps",
        "_cut_ns",
        "_marked_share",
        "_risen_ns",
        "_rtt_ns",
        "_solid_bytes",
        "_window_bytes",
    )

    def __init__(self, network: Network, path: Path) -> None:
        super().__init__(network, path)
        self._rtt_ns = network.rtt_ns
        self._ceiling_bps = path.ceiling_bps
        self._window_bytes = path.ceiling_bps / 8e9 * network.rtt_ns  # that R sends in an RTT0
        self._base = 1.0
        self._marked_share = 0.0
        self._solid_bytes = 0  # since the latest unmarked packet
        self._risen_ns = 0.0  # up to which base has risen
        self._cut_ns = -CALM_RTTS * network.rtt_ns

    @property
    def share(self) -> float:
        """Of R, at present."""
        return max(self._base / (1 + self._marked_share), LEAST_SHARE)

    def start(self) -> float:
        """R."""
        return self._ceiling_bps

    def on_ack(self, now_ns: float, newly_bytes: int, rtt_ns: float, marked: bool, in_flight_bytes: int) -> float:
        """See Control. The mark is that of the packet that is answered; those before it, of which the ACK also tells, had none."""
        del rtt_ns, in_flight_bytes
        own_bytes = min(newly_bytes, self.network.mtu_bytes) if marked else 0
        self._hear(newly_bytes - own_bytes, marked=False)
        self._hear(own_bytes, marked=True)
        if self._solid_bytes >= max(
            SOLID_PACKETS * self.network.mtu_bytes, SOLID_RTTS * self._window_bytes * self.share
        ):
            self._halve(now_ns)
        return self._rate_bps(now_ns)

    def on_nack(self, now_ns: float, size_bytes: int, rtt_ns: float, in_flight_bytes: int) -> float:
        """See Control. The queue was full."""
        del rtt_ns, in_flight_bytes
        self._hear(size_bytes, marked=True)
        self._halve(now_ns)
        return self._rate_bps(now_ns)

    def on_timeout(self, now_ns: float, size_bytes: int, in_flight_bytes: int) -> float:
        """See Control."""
        del size_bytes, in_flight_bytes
        self._halve(now_ns)
        return self._rate_bps(now_ns)

    def _hear(self, size_bytes: int, *, marked: bool) -> None:
        """The average over the latest RTT0, or packet where there is less than one in it."""
        if not size_bytes:
            return
        self._solid_bytes = self._solid_bytes + size_bytes if marked else 0
        weight = min(1.0, size_bytes / (self._window_bytes * self.share))
        self._marked_share += weight * (marked - self._marked_share)

    def _halve(self, now_ns: float) -> None:
        self._solid_bytes = 0
        if now_ns - self._cut_ns < CALM_RTTS * self._rtt_ns:
            return
        self._rise(now_ns)
        self._base = max(self._base / 2, LEAST_SHARE)
        self._cut_ns = now_ns

    def _rise(self, now_ns: float) -> None:
        self._base = min(1.0, self._base + RISE * max(0.0, now_ns - self._risen_ns) / self._rtt_ns)
        self._risen_ns = now_ns

    def _rate_bps(self, now_ns: float) -> float:
        self._rise(now_ns)
        return self._ceiling_bps * self.share
