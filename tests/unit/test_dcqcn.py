"""DCQCN worked out by hand, from the law of its paper."""

from __future__ import annotations

import pytest

from testbed.engine.cca import Network, Path, load
from testbed.engine.cca.dcqcn import Dcqcn, DcqcnPaper

NETWORK = Network(mtu_bytes=4096, header_bytes=64, rtt_ns=8166.4, trimming=True)
LINE_BPS = 800e9
PATH = Path(0, 1, LINE_BPS, 8166.4)
G = 1 / 256
AI_BPS, HAI_BPS = 160e6, 1.6e9
"""5 and 50 Mb/s for each 25 Gb/s of line rate."""


def ack(control: Dcqcn, now_us: float, *, marked: bool = False, newly_bytes: int = 4096) -> float:
    return control.on_ack(1000 * now_us, newly_bytes, 9000.0, marked, 0)


def test_both_presets_by_their_names() -> None:
    assert load("dcqcn") is Dcqcn
    assert load("dcqcn-paper") is DcqcnPaper
    assert (Dcqcn.ALPHA_NS, Dcqcn.DECREASE_NS, Dcqcn.INCREASE_NS) == (1_000, 4_000, 300_000)
    assert (DcqcnPaper.ALPHA_NS, DcqcnPaper.DECREASE_NS, DcqcnPaper.INCREASE_NS) == (55_000, 50_000, 55_000)
    assert Dcqcn.kind == DcqcnPaper.kind == "rate"


@pytest.mark.parametrize("preset", [Dcqcn, DcqcnPaper])
def test_without_a_mark_it_stays_at_the_line_rate(preset: type[Dcqcn]) -> None:
    control = preset(NETWORK, PATH)
    assert control.start() == LINE_BPS
    assert all(ack(control, us, newly_bytes=10**6) == LINE_BPS for us in range(0, 3000, 10))
    # However long the calm was, the first mark halves: alpha begins with it.
    assert ack(control, 3000, marked=True) == LINE_BPS / 2
    assert control.target_bps == LINE_BPS


def test_marks_within_a_decrease_interval_cut_once_and_raise_alpha() -> None:
    control = Dcqcn(NETWORK, PATH)
    assert ack(control, 10, marked=True) == LINE_BPS / 2  # alpha 1, and (1 - g) + g is 1 again
    assert control.alpha == 1
    assert ack(control, 13.9, marked=True) == LINE_BPS / 2
    # Three intervals without a mark, then one.
    assert control.alpha == pytest.approx((1 - G) ** 4 + G)
    alpha = control.alpha
    assert ack(control, 14.0, marked=True) == pytest.approx(LINE_BPS / 2 * (1 - alpha / 2))
    assert control.alpha == alpha  # raised 0.1 us ago
    # The first cut's target stands: nothing was increased since.
    assert control.target_bps == LINE_BPS


def test_in_the_paper_every_cut_is_the_new_target() -> None:
    control = DcqcnPaper(NETWORK, PATH)
    ack(control, 10, marked=True)
    assert ack(control, 59, marked=True) == LINE_BPS / 2
    assert ack(control, 60, marked=True) == LINE_BPS / 4  # alpha is still 1: 50 us are less than its 55
    assert control.target_bps == LINE_BPS / 2
    assert control.alpha == 1
    ack(control, 60 + 54.9)
    assert control.alpha == 1
    ack(control, 60 + 55)
    assert control.alpha == pytest.approx(1 - G)


def test_alpha_decays_by_the_time_that_has_passed() -> None:
    control = Dcqcn(NETWORK, PATH)
    ack(control, 0, marked=True)
    ack(control, 100.5)
    assert control.alpha == pytest.approx((1 - G) ** 100)
    ack(control, 101)  # what was left of the interval counts
    assert control.alpha == pytest.approx((1 - G) ** 101)


def test_recovery_by_time() -> None:
    """Five steps halve the way back to the target, then it rises by R_AI; the clock begins with the cut."""
    control = DcqcnPaper(NETWORK, Path(0, 1, LINE_BPS, 8166.4))
    ack(control, 0, marked=True)
    ack(control, 50, marked=True)
    rate, target = LINE_BPS / 4, LINE_BPS / 2
    assert ack(control, 50 + 54.9) == rate
    for step in range(1, 6):
        rate = (rate + target) / 2
        assert ack(control, 50 + 55 * step) == pytest.approx(rate)
        assert control.target_bps == target
    for step in range(6, 9):
        target += AI_BPS
        rate = (rate + target) / 2
        assert ack(control, 50 + 55 * step) == pytest.approx(rate)
    assert control.target_bps == target


def test_steps_that_were_missed_are_made_up_at_the_next_call() -> None:
    often, seldom = DcqcnPaper(NETWORK, PATH), DcqcnPaper(NETWORK, PATH)
    for control in (often, seldom):
        ack(control, 0, marked=True)
        ack(control, 60, marked=True)
    rates = [ack(often, 60 + us, newly_bytes=0) for us in range(5, 601, 5)]
    assert ack(seldom, 660, newly_bytes=0) == rates[-1]
    assert rates == sorted(rates)


def test_recovery_by_bytes_and_hyper_increase() -> None:
    """10 MB are a step as well; beyond five of both, R_HAI."""
    control = DcqcnPaper(NETWORK, PATH)
    ack(control, 0, marked=True)
    ack(control, 50, marked=True)
    rate, target = LINE_BPS / 4, LINE_BPS / 2
    assert ack(control, 51, newly_bytes=9_999_999) == rate
    rate = (rate + target) / 2
    assert ack(control, 52, newly_bytes=1) == rate
    ack(control, 53, newly_bytes=50_000_000)  # six steps of bytes: one too many for fast recovery
    assert control.target_bps == target + AI_BPS
    ack(control, 50 + 6 * 55, newly_bytes=0)  # and six of time, of which both counters first exceed five after the last
    before = control.target_bps
    assert before == pytest.approx(target + 7 * AI_BPS)
    ack(control, 50 + 7 * 55, newly_bytes=0)
    assert control.target_bps == pytest.approx(before + HAI_BPS)


def test_a_mark_begins_the_steps_anew() -> None:
    control = DcqcnPaper(NETWORK, PATH)
    ack(control, 0, marked=True)
    ack(control, 50, marked=True)
    ack(control, 50 + 4 * 55, newly_bytes=9_000_000)
    cut = ack(control, 50 + 4 * 55, marked=True)
    assert ack(control, 50 + 5 * 55 - 1, newly_bytes=9_000_000) == cut


def test_nack_and_timeout_are_marks() -> None:
    marked, nacked, timed_out = (Dcqcn(NETWORK, PATH) for _ in range(3))
    for us in (10, 12, 15, 400):
        rate = ack(marked, us, marked=True, newly_bytes=0)
        assert nacked.on_nack(1000 * us, 4096, 0.0, 4096) == rate
        assert timed_out.on_timeout(1000 * us, 4096, 0) == rate
    assert marked.alpha == nacked.alpha == timed_out.alpha


def test_r_is_start_and_ceiling() -> None:
    """Its first mark halves R, and no recovery leads above it."""
    control = Dcqcn(NETWORK, Path(0, 1, LINE_BPS, 8166.4, 50e9))
    assert control.start() == 50e9
    assert ack(control, 10, marked=True) == 25e9
    rates = [ack(control, us, newly_bytes=10_000_000) for us in range(20, 5000, 10)]
    assert max(rates) <= 50e9
    assert rates[-1] == pytest.approx(50e9)
    assert control.target_bps == 50e9


def test_it_never_stops() -> None:
    control = Dcqcn(NETWORK, PATH)
    rates = [ack(control, 4 * n, marked=True) for n in range(200)]
    assert rates[-1] == min(rates) == pytest.approx(80e6)
    slow = Dcqcn(NETWORK, Path(0, 1, LINE_BPS, 8166.4, 1e6))
    assert ack(slow, 5, marked=True) == 1e6
