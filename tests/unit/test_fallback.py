"""The fallback of a paced flow, worked out by hand, and in a closed loop with a queue."""

from __future__ import annotations

from collections import deque

import pytest

from testbed.engine.cca import Network, Path, load
from testbed.engine.cca.fallback import Fallback

RTT_NS = 8192.0
MTU = 4096
NETWORK = Network(mtu_bytes=MTU, header_bytes=64, rtt_ns=RTT_NS, trimming=True)
R_BPS = 40e9
"""Ten packets of 4096 B an RTT0."""


def made(rate_bps: float = R_BPS) -> Fallback:
    return Fallback(NETWORK, Path(0, 1, 800e9, RTT_NS, rate_bps))


def ack(control: Fallback, now_ns: float, *, marked: bool = False, packets: int = 1) -> float:
    return control.on_ack(now_ns, packets * MTU, RTT_NS, marked, 0)


def test_without_marks_it_is_r() -> None:
    assert load("fallback") is Fallback
    control = made()
    assert control.start() == R_BPS
    assert all(ack(control, 1000 * n, packets=4) == R_BPS for n in range(1000))


def test_without_a_scheduled_rate_r_is_the_line_rate() -> None:
    assert Fallback(NETWORK, Path(0, 1, 800e9, RTT_NS)).start() == 800e9


def test_one_mark() -> None:
    """A tenth of an RTT0's bytes: R / 1.1. An RTT0 of unmarked packets takes it back."""
    control = made()
    ack(control, 0)
    assert ack(control, 1, marked=True) == pytest.approx(R_BPS / 1.1)
    # Four new packets, of which the last caused the ACK: three without a mark, and one with.
    other = made()
    assert ack(other, 0, marked=True, packets=4) == pytest.approx(R_BPS / 1.1)
    rates = [ack(control, 800 * n) for n in range(2, 52)]
    assert rates == sorted(rates)
    assert rates[9] > R_BPS / 1.05
    assert rates[-1] == pytest.approx(R_BPS, rel=1e-3)
    assert max(rates) <= R_BPS


def test_all_marked_is_half_of_r() -> None:
    """At first; each time that it has gone on for four RTT0 and 32 packets, base is halved, and rises by an eighth in between."""
    control = made()
    rates = [ack(control, 1000 * n, marked=True) for n in range(3000)]
    assert rates[30] == pytest.approx(R_BPS / 2, rel=0.05)
    assert rates[31] < 0.3 * R_BPS
    assert R_BPS / 64 < min(rates) < R_BPS / 12
    # One unmarked packet in 31, and it stays.
    control = made()
    rates = [ack(control, 1000 * n, marked=n % 31 != 0) for n in range(3000)]
    assert min(rates) > 0.49 * R_BPS


def test_a_nack_halves_once_in_two_round_trips() -> None:
    control = made()
    first = control.on_nack(0, MTU, 0.0, MTU)
    assert first == pytest.approx(R_BPS / 2 / 1.1)
    assert control.on_nack(100, MTU, 0.0, MTU) > R_BPS / 4
    assert control.on_nack(2 * RTT_NS - 1, MTU, 0.0, MTU) > R_BPS / 4 / 1.1
    assert control.on_nack(2 * RTT_NS + 1, MTU, 0.0, MTU) < 0.3 * R_BPS


def test_a_timeout_halves() -> None:
    control = made()
    assert control.on_timeout(0, MTU, 0) == R_BPS / 2
    # And in 16 RTT0 that is made good, whether much is heard or little.
    assert ack(control, 8 * RTT_NS) == pytest.approx(0.75 * R_BPS)
    assert ack(control, 16 * RTT_NS) == R_BPS
    assert ack(control, 17 * RTT_NS) == R_BPS


def test_it_never_gets_above_r_nor_stops() -> None:
    control = made()
    for n in range(5000):
        now_ns = 500.0 * n
        kind = n * 2654435761 % 7
        rate = (
            control.on_nack(now_ns, MTU, 0.0, MTU)
            if kind == 0
            else control.on_timeout(now_ns, MTU, 0)
            if kind == 1
            else ack(control, now_ns, marked=kind < 5, packets=kind)
        )
        assert R_BPS / 64 <= rate <= R_BPS


def test_flows_that_see_the_same_have_the_same_share() -> None:
    """However unlike their R: the share has no memory of when it was cut."""
    fast, slow = made(R_BPS), made(R_BPS / 4)
    for n in range(4000):
        marked = n * 0.618 % 1 < 0.4
        ack(fast, 200 * n, marked=marked)
        if n % 4 == 0:
            ack(slow, 200 * n, marked=n * 0.618 % 1 < 0.4)
    assert fast.share == pytest.approx(1 / 1.4, rel=0.06)
    assert slow.share == pytest.approx(1 / 1.4, rel=0.25)


@pytest.mark.parametrize("background", [0.05, 0.1, 0.2, 0.3])
def test_the_loop_is_stable(background: float) -> None:
    """A fluid queue behind senders that all hear alike, one RTT0 late: no swing reaches the limit, or empties the queue.

    Ten packets an RTT0 of each of twenty flows fill the port; marking from 40 to 160 packets of the product of 200.
    """
    control = made()
    queue = due = 0.0
    answers: deque[float] = deque([0.0] * 10)  # the marked part, tenths of an RTT0 ago
    queues: list[float] = []
    for n in range(2000):
        queue = max(0.0, queue + 20 * (control.share + background - 1))
        queues.append(queue)
        answers.append(min(1.0, max(0.0, (queue - 40) / 120)))
        due += answers.popleft()
        due -= (marked := due >= 1)
        # Sent at R, a packet is a tenth of an RTT0's; at less, it comes as much later.
        control.on_ack(n * RTT_NS / 10, round(MTU * control.share), RTT_NS, marked, 0)
    assert max(queues) < 190
    settled = queues[1000:]
    assert min(settled) > 10
    wanted = background / (1 - background)
    assert sum(settled) / len(settled) == pytest.approx(40 + 120 * wanted, abs=8)
