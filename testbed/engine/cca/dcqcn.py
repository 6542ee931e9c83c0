"""DCQCN, the rate-based congestion control of RoCEv2: Zhu et al., "Congestion Control for Large-Scale RDMA Deployments",
SIGCOMM 2015 (section 3 for the law, section 5 for its constants).

Where it differs from the paper:

- Receivers there send a CNP at most once in 50 us. Here every marked packet is answered at once by an ACK that echoes the
  mark, and the sender takes the first of a decrease interval.
- A control has no timers. What was due since the last call happens at the next one, first the decay of alpha, then the
  increases. Nothing else could have changed the state in between; but a rise takes effect up to one ACK late, which is four
  packets at the flow's own pace. The slower the flow, the later it rises.
- The byte counter counts what is acknowledged, so a round trip late.
"""

from __future__ import annotations

from typing import ClassVar, Final

from testbed.engine.cca import Control, Network, Path

__all__ = ["Dcqcn", "DcqcnPaper"]

GAIN: Final = 1 / 256
"""g: of the estimate of congestion, alpha."""
FAST_RECOVERY: Final = 5
"""F: so many steps only halve the way back to the target."""
BYTES_A_STEP: Final = 10_000_000
"""B, the byte counter."""
ADDITIVE: Final = 5e6 / 25e9
"""R_AI over the line rate: 5 Mb/s at 25 Gb/s."""
HYPER: Final = 50e6 / 25e9
"""R_HAI over the line rate."""
LEAST: Final = 1e-4
"""Of the line rate. The paper names no floor. One is needed here, where only an answer moves the clock: at this one, 80 Mb/s of
800 Gb/s, a packet of 4096 B takes 0.4 ms, about an increase interval.
"""


class Dcqcn(Control):
    """One flow, as adapters are set: alpha 1 us, decrease 4 us, increase 300 us; a burst of cuts lowers the target once.

    (clamp_tgt_rate is off in mlxconfig's defaults. With cuts as near as 4 us the paper's rule, a new target with each, would
    leave nothing to recover to.)

    It starts at the line rate. Where the schedule sets a rate, that takes the line rate's place as the start and as the limit
    of both the current and the target rate: the first cuts of a line rate that it may not use would cut nothing. The steps of
    the increase are those of the line rate all the same.
    """

    kind = "rate"

    ALPHA_NS: ClassVar[float] = 1_000.0
    """alpha decays once for each such time without a mark."""
    DECREASE_NS: ClassVar[float] = 4_000.0
    """Between two cuts."""
    INCREASE_NS: ClassVar[float] = 300_000.0
    """Between two steps of the increase by time."""
    CLAMPS_TARGET: ClassVar[bool] = False
    """Whether each cut lowers the target to the rate before it, or only the first since an increase."""

    __slots__ = (
        "_alpha",
        "_alpha_ns",
        "_byte_steps",
        "_bytes",
        "_ceiling_bps",
        "_cut_ns",
        "_least_bps",
        "_limited",
        "_raised_ns",
        "_rate_bps",
        "_step_ns",
        "_target_bps",
        "_time_steps",
    )

    def __init__(self, network: Network, path: Path) -> None:
        super().__init__(network, path)
        self._ceiling_bps = self._rate_bps = self._target_bps = path.ceiling_bps
        self._least_bps = min(LEAST * path.line_rate_bps, self._ceiling_bps)
        self._limited = False  # the clocks start with the first mark, as a limiter is set up by it (IEEE 802.1Qau)
        self._alpha = 1.0
        self._alpha_ns = 0.0  # up to which it has decayed
        self._raised_ns = -self.ALPHA_NS
        self._cut_ns = -self.DECREASE_NS
        self._step_ns = 0.0  # up to which the increases by time are done
        self._bytes = 0  # since the latest increase by bytes
        self._time_steps = 0
        self._byte_steps = 0

    @property
    def alpha(self) -> float:
        """The estimate of congestion, of 0 to 1."""
        return self._alpha

    @property
    def target_bps(self) -> float:
        """R_T, where the increase leads."""
        return self._target_bps

    def start(self) -> float:
        """As fast as the flow may."""
        return self._rate_bps

    def on_ack(self, now_ns: float, newly_bytes: int, rtt_ns: float, marked: bool, in_flight_bytes: int) -> float:
        """See Control. A marked one is what a CNP is in the paper."""
        del rtt_ns, in_flight_bytes
        self._bytes += newly_bytes
        self._catch_up(now_ns)
        if marked:
            self._congested(now_ns)
        return self._rate_bps

    def on_nack(self, now_ns: float, size_bytes: int, rtt_ns: float, in_flight_bytes: int) -> float:
        """See Control. Like a mark: a trimmed packet was cut before it could be marked, at a queue that was full.

        (The NACK of RoCE means something else, a gap in the sequence, and DCQCN does not act on it.)
        """
        del size_bytes, rtt_ns, in_flight_bytes
        self._catch_up(now_ns)
        self._congested(now_ns)
        return self._rate_bps

    def on_timeout(self, now_ns: float, size_bytes: int, in_flight_bytes: int) -> float:
        """See Control. Like a mark."""
        del size_bytes, in_flight_bytes
        self._catch_up(now_ns)
        self._congested(now_ns)
        return self._rate_bps

    def _catch_up(self, now_ns: float) -> None:
        """What timers and byte counter would have done since the last call."""
        if not self._limited:
            self._bytes = 0
            return
        decays = int((now_ns - self._alpha_ns) / self.ALPHA_NS)
        if decays > 0:
            self._alpha *= (1 - GAIN) ** decays
            self._alpha_ns += decays * self.ALPHA_NS
        while now_ns - self._step_ns >= self.INCREASE_NS:
            self._step_ns += self.INCREASE_NS
            self._increase()
            self._time_steps += 1
        while self._bytes >= BYTES_A_STEP:
            self._bytes -= BYTES_A_STEP
            self._increase()
            self._byte_steps += 1

    def _increase(self) -> None:
        if min(self._time_steps, self._byte_steps) > FAST_RECOVERY:
            self._target_bps += HYPER * self.path.line_rate_bps
        elif max(self._time_steps, self._byte_steps) >= FAST_RECOVERY:
            self._target_bps += ADDITIVE * self.path.line_rate_bps
        self._target_bps = min(self._target_bps, self._ceiling_bps)
        self._rate_bps = (self._rate_bps + self._target_bps) / 2

    def _congested(self, now_ns: float) -> None:
        self._limited = True
        if now_ns - self._cut_ns >= self.DECREASE_NS:
            self._cut_ns = now_ns
            if self.CLAMPS_TARGET or self._time_steps or self._byte_steps:
                self._target_bps = self._rate_bps
            self._rate_bps = max(self._rate_bps * (1 - self._alpha / 2), self._least_bps)
            self._step_ns = now_ns
            self._bytes = self._time_steps = self._byte_steps = 0
        # Once an alpha interval; where cuts come more often than that, as in the paper, with each.
        if now_ns - self._raised_ns >= min(self.ALPHA_NS, self.DECREASE_NS):
            self._alpha = (1 - GAIN) * self._alpha + GAIN
            self._raised_ns = self._alpha_ns = now_ns


class DcqcnPaper(Dcqcn):
    """As in the paper: CNPs, and so cuts, 50 us apart; alpha 55 us, which must be more than that; increase 55 us."""

    ALPHA_NS = 55_000.0
    DECREASE_NS = 50_000.0
    INCREASE_NS = 55_000.0
    CLAMPS_TARGET = True

    __slots__ = ()
