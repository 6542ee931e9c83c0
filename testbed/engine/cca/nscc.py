"""NSCC, the sender-based congestion control of Ultra Ethernet, as the public reference simulator runs it.

Source: ultraethernet/uet-htsim at 40ccb052, the facts, not the code. Its 32-bit accumulator, which overflows
on fast and long networks, is not repeated: Python's numbers are wide enough.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from testbed.engine.cca import Control, Network, Path

__all__ = ["Nscc"]

# What the constants are scaled from: 100 Gb/s and 12 us.
REFERENCE_BDP_BYTES: Final = 150_000
REFERENCE_RTT_NS: Final = 12_000

TARGET_TRIMMING: Final = 0.75
"""Target delay over RTT0 with trimming; 1 without."""
WINDOW_MAX: Final = 1.5
"""Of the flow's own BDP."""
PROPORTIONAL: Final = 4
FAIR: Final = 5
ETA: Final = 0.15
FAST: Final = 0.25
FAST_DELAY_NS: Final = 1000
"""Below this delay the path counts as empty."""
GAMMA: Final = 0.8
DECREASE_FLOOR: Final = 0.5
"""What one decrease leaves at least."""
AVERAGE_GAIN: Final = 0.0125
UNMARKED_SHARE: Final = 0.25
"""Of the base RTT: what the average takes from a long delay without a mark."""
QUICK_GATE: Final = 8
"""Quick adapt needs less than the largest window over this to have arrived."""
QUICK_DELAY: Final = 4
"""Quick adapt acts above this many target delays."""
ADJUST_PACKETS: Final = 8


class _Gains(NamedTuple):
    """Of all flows whose senders have one line rate."""

    bytes_per_ns: float
    target_ns: float
    alpha: float
    fair: float
    eta_bytes: float
    fast_scale: float
    quick_delay_ns: float
    adjust_ns: float
    adjust_bytes: int
    cwnd_min_bytes: float
    cwnd_max_bytes: float
    """Before any sample."""


@cache
def _gains(network: Network, line_rate_bps: float, rtt_ns: float) -> _Gains:
    """Computed once, so that a quarter of a million flows share the numbers and not only their values."""
    bytes_per_ns = line_rate_bps / 8e9
    mss_bytes = network.mtu_bytes - network.header_bytes
    target_ns = network.rtt_ns * (TARGET_TRIMMING if network.trimming else 1.0)
    a = network.rtt_ns * bytes_per_ns / REFERENCE_BDP_BYTES
    b = target_ns / REFERENCE_RTT_NS
    return _Gains(
        bytes_per_ns=bytes_per_ns,
        target_ns=target_ns,
        # Gains of the increase, which is in bytes^2: it is divided by the window when it takes effect.
        alpha=PROPORTIONAL * mss_bytes * a * b / target_ns,
        fair=FAIR * mss_bytes * a,
        eta_bytes=ETA * mss_bytes * a,
        fast_scale=FAST * a,
        quick_delay_ns=QUICK_DELAY * target_ns,
        adjust_ns=network.rtt_ns,
        adjust_bytes=ADJUST_PACKETS * network.mtu_bytes,
        cwnd_min_bytes=float(network.mtu_bytes),
        cwnd_max_bytes=_largest_window_bytes(bytes_per_ns, rtt_ns, network.mtu_bytes),
    )


def _largest_window_bytes(bytes_per_ns: float, rtt_ns: float, mtu_bytes: float) -> float:
    """A spurious sample must not leave a largest window below the smallest."""
    return max(WINDOW_MAX * bytes_per_ns * rtt_ns, float(mtu_bytes))


class Nscc(Control):
    """One flow: a window that keeps the queueing delay near a target.

    Each flow has a base RTT of its own, which follows the smallest sample, and with it the largest window;
    the target delay and all gains are those of the network's longest path (RTT0).
    """

    __slots__ = (
        "_achieved_bytes",
        "_adjust_bytes",
        "_adjust_ns",
        "_alpha",
        "_average_ns",
        "_base_ns",
        "_bytes_per_ns",
        "_cwnd_bytes",
        "_cwnd_max_bytes",
        "_cwnd_min_bytes",
        "_eta_bytes",
        "_fair",
        "_fast",
        "_fast_bytes",
        "_fast_scale",
        "_ignored_bytes",
        "_increase",
        "_last_adjust_ns",
        "_last_decrease_ns",
        "_quick_delay_ns",
        "_quick_end_ns",
        "_received_bytes",
        "_target_ns",
        "_to_ignore_bytes",
        "_trigger",
    )

    def __init__(self, network: Network, path: Path) -> None:
        super().__init__(network, path)
        gains = _gains(network, path.line_rate_bps, path.rtt_ns)
        self._bytes_per_ns = gains.bytes_per_ns
        self._target_ns = gains.target_ns
        self._alpha = gains.alpha
        self._fair = gains.fair
        self._eta_bytes = gains.eta_bytes
        self._fast_scale = gains.fast_scale
        self._quick_delay_ns = gains.quick_delay_ns
        self._adjust_ns = gains.adjust_ns
        self._adjust_bytes = gains.adjust_bytes
        self._cwnd_min_bytes = gains.cwnd_min_bytes

        self._base_ns = path.rtt_ns
        self._cwnd_bytes = self._cwnd_max_bytes = gains.cwnd_max_bytes
        self._average_ns = 0.0
        self._increase = 0.0
        self._received_bytes = 0
        self._last_adjust_ns = 0.0
        self._last_decrease_ns = 0.0
        self._fast = False
        self._fast_bytes = 0
        self._achieved_bytes = 0
        self._ignored_bytes = 0
        self._to_ignore_bytes = 0
        self._trigger = False
        self._quick_end_ns = 0.0  # not set

    @property
    def cwnd_bytes(self) -> float:
        """The window."""
        return self._cwnd_bytes

    def start(self) -> float:
        """The largest window: a flow starts at full speed."""
        return self._cwnd_bytes

    def on_ack(self, now_ns: float, newly_bytes: int, rtt_ns: float, marked: bool, in_flight_bytes: int) -> float:
        """See Control. Called so often that it calls nothing in the common case."""
        self._achieved_bytes += newly_bytes
        self._ignored_bytes += newly_bytes
        received_bytes = self._received_bytes = self._received_bytes + newly_bytes
        target_ns = self._target_ns

        if rtt_ns > 0.0:
            if rtt_ns < self._base_ns:
                self._set_base(rtt_ns)
            delay_ns = rtt_ns - self._base_ns
            average_ns = self._average_ns
            # Without a mark there is no lasting queue, however long this packet took.
            sample_ns = UNMARKED_SHARE * self._base_ns if delay_ns > target_ns and not marked else delay_ns
            self._average_ns = average_ns + AVERAGE_GAIN * (sample_ns - average_ns)
        else:
            delay_ns = self._average_ns

        if (now_ns > self._quick_end_ns or (marked and self._ignored_bytes < self._to_ignore_bytes)) and (
            self._quick_adapt(now_ns, delay_ns > self._quick_delay_ns, marked, in_flight_bytes)
        ):
            return self._cwnd_bytes

        cwnd_bytes = self._cwnd_bytes
        if not marked:
            if delay_ns >= target_ns:
                # No mark, long delay: the queue is draining, so every flow may take the same step.
                self._increase += self._fair * newly_bytes
            else:
                # No mark, short delay: in proportion to what is missing, or fast once a whole window saw none.
                if delay_ns < FAST_DELAY_NS:
                    self._fast_bytes += newly_bytes
                    fast = self._fast = self._fast or self._fast_bytes > cwnd_bytes
                else:
                    self._fast_bytes = 0
                    fast = self._fast = False
                if fast:
                    cwnd_bytes += self._fast_scale * newly_bytes
                else:
                    self._increase += self._alpha * newly_bytes * (target_ns - delay_ns)
        elif delay_ns >= target_ns:
            # Mark, long delay: congestion. Decrease by how far the average is off, at most once a round trip.
            self._fast = False
            self._fast_bytes = 0
            average_ns = self._average_ns
            if average_ns > target_ns and now_ns - self._last_decrease_ns > self._base_ns:
                cwnd_bytes *= max(1 - GAMMA * (average_ns - target_ns) / average_ns, DECREASE_FLOOR)
                self._last_decrease_ns = now_ns
        # Mark, short delay: the queue is only building up, and the load balancer moves away from it.

        since_adjust_ns = now_ns - self._last_adjust_ns
        if received_bytes > self._adjust_bytes or since_adjust_ns > self._adjust_ns:
            # The increase counts against a window within its bounds; above the upper one it makes no difference.
            cwnd_bytes = max(cwnd_bytes, self._cwnd_min_bytes)
            cwnd_bytes += self._increase / cwnd_bytes
            if since_adjust_ns >= self._adjust_ns:
                cwnd_bytes += self._eta_bytes
                self._last_adjust_ns = now_ns
            self._increase = 0.0
            self._received_bytes = 0

        if cwnd_bytes > self._cwnd_max_bytes:
            cwnd_bytes = self._cwnd_max_bytes
        elif cwnd_bytes < self._cwnd_min_bytes:
            cwnd_bytes = self._cwnd_min_bytes
        self._cwnd_bytes = cwnd_bytes
        return cwnd_bytes

    def on_nack(self, now_ns: float, size_bytes: int, rtt_ns: float, in_flight_bytes: int) -> float:
        """See Control. A trimmed packet met a full queue, about RTT0 of delay."""
        if 0.0 < rtt_ns < self._base_ns:
            self._set_base(rtt_ns)
        self._ignored_bytes += size_bytes
        self._average_ns += AVERAGE_GAIN * (self.network.rtt_ns - self._average_ns)
        self._trigger = True
        if not self._quick_adapt(now_ns, True, True, in_flight_bytes):
            cwnd_bytes = min(self._cwnd_bytes - size_bytes, self._cwnd_max_bytes)
            self._cwnd_bytes = max(cwnd_bytes, self._cwnd_min_bytes)
        return self._cwnd_bytes

    def on_timeout(self, now_ns: float, size_bytes: int, in_flight_bytes: int) -> float:
        """See Control. The window gives back what was lost."""
        del now_ns, in_flight_bytes
        self._cwnd_bytes = max(self._cwnd_bytes - size_bytes, self._cwnd_min_bytes)
        return self._cwnd_bytes

    def _set_base(self, rtt_ns: float) -> None:
        self._base_ns = rtt_ns
        self._cwnd_max_bytes = _largest_window_bytes(self._bytes_per_ns, rtt_ns, self._cwnd_min_bytes)

    def _quick_adapt(self, now_ns: float, congested: bool, marked: bool, in_flight_bytes: int) -> bool:
        """Once a base RTT and target delay: cuts the window to what arrived, if that is little and something is wrong.

        True where the event must change nothing else: it acted, or still sees packets of before it acted.
        """
        if marked and self._ignored_bytes < self._to_ignore_bytes:
            done = True
        elif now_ns > self._quick_end_ns:
            done = (
                self._quick_end_ns != 0.0
                and (self._trigger or congested)
                and self._achieved_bytes < self._cwnd_max_bytes / QUICK_GATE
            )
            if done:
                self._cwnd_bytes = max(float(self._achieved_bytes), self._cwnd_min_bytes)
                self._to_ignore_bytes = in_flight_bytes
                self._ignored_bytes = 0
                self._trigger = False
            self._achieved_bytes = 0
            self._quick_end_ns = now_ns + self._base_ns + self._target_ns
        else:
            done = False
        if done:
            self._increase = 0.0
            self._received_bytes = 0
        return done
