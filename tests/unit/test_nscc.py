"""NSCC against its formulas, worked out by hand.

Most tests use a network in which the numbers are round: 100 Gb/s (12.5 B/ns) and RTT0 = 12 us, so that

    BDP   = 12.5 x 12,000 = 150,000 B     a = 150,000 / 150,000 = 1
    T     = 0.75 x 12,000 = 9,000 ns      b = 9,000 / 12,000 = 0.75
    alpha = 4 x 4,032 x 1 x 0.75 / 9,000 = 1.344 B/ns
    fi    = 5 x 4,032 x 1 = 20,160        eta = 0.15 x 4,032 x 1 = 604.8 B     fast scale = 0.25
    quick adapt above a delay of 4 x 9,000 = 36,000 ns; adjust after 12,000 ns or 8 x 4,096 = 32,768 B

and a flow between two hosts on one leaf, so that what is the flow's own differs from what is the network's:

    base    = 8,000 ns                    cwnd_max = 1.5 x 12.5 x 8,000 = 150,000 B
    gate    = 150,000 / 8 = 18,750 B      quick adapt every 8,000 + 9,000 = 17,000 ns
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from testbed.engine.cca import Network, Path
from testbed.engine.cca.nscc import Nscc

MTU = 4096
BASE = 8000.0
TARGET = 9000.0
WINDOW_MAX = 150_000.0
ALPHA = Fraction("1.344")
FAIR = 20_160
ETA = 604.8


def flow(cwnd_bytes: float = 100_000, *, trimming: bool = True) -> Nscc:
    """The flow of the module's docstring, brought to a window by a loss."""
    control = Nscc(Network(MTU, 64, 12_000.0, trimming), Path(0, 1, 100e9, BASE))
    if cwnd_bytes < WINDOW_MAX:
        control.on_timeout(0.0, int(WINDOW_MAX - cwnd_bytes), 0)
    assert control.cwnd_bytes == cwnd_bytes
    return control


def ack(
    control: Nscc, now_ns: float, newly: int, delay_ns: float, *, marked: bool = False, in_flight: int = 60_000
) -> float:
    """An ACK whose sample is the flow's base and this delay."""
    window = control.on_ack(now_ns, newly, BASE + delay_ns, marked, in_flight)
    assert window == control.cwnd_bytes
    return window


def exactly(value: Fraction | float) -> object:
    return pytest.approx(float(value), rel=1e-12)


# The table of constants


@pytest.mark.parametrize(
    ("trimming", "target_ns"),
    # 0.75 x 8,166.4 and 1.0 x 8,166.4
    [(True, 6124.8), (False, 8166.4)],
)
def test_constants_of_two_tiers_at_800_gbps(trimming: bool, target_ns: float) -> None:
    """RTT0 = 2 x 4 us + 4 x (4,160 B x 8 / 800 Gb/s = 41.6 ns) = 8,166.4 ns; BDP = 816,640 B."""
    control = Nscc(Network(MTU, 64, 8166.4, trimming), Path(0, 9, 800e9, 8166.4))
    a = Fraction(816_640, 150_000)  # 5.44426...
    assert control._target_ns == exactly(target_ns)
    # 4 x 4,032 a b / T, and b / T is 1 / 12,000 ns whatever T is: 7.3170944 B/ns = 0.0073170944 B/ps
    assert control._alpha == exactly(4 * 4032 * a / 12_000) == exactly(7.3170944)
    assert control._fair == exactly(5 * 4032 * a) == exactly(109_756.416)
    assert control._eta_bytes == exactly(Fraction("0.15") * 4032 * a) == exactly(3_292.69248)
    assert control._fast_scale == exactly(a / 4) == pytest.approx(1.361, abs=1e-3)
    assert control._quick_delay_ns == exactly(4 * target_ns)
    assert control._adjust_ns == 8166.4
    assert control._adjust_bytes == 32_768
    assert control._cwnd_min_bytes == 4096
    assert control.start() == control.cwnd_bytes == control._cwnd_max_bytes == exactly(1_224_960)
    assert control.kind == "window"


def test_constants_of_the_round_network() -> None:
    control = flow(WINDOW_MAX)
    assert (control._target_ns, control._eta_bytes, control._fast_scale) == (TARGET, exactly(ETA), 0.25)
    assert (control._alpha, control._fair, control._quick_delay_ns) == (exactly(ALPHA), exactly(FAIR), 36_000)
    assert flow(trimming=False)._target_ns == 12_000


def test_the_window_cannot_be_set_from_outside() -> None:
    with pytest.raises(AttributeError):
        flow().cwnd_bytes = 1.0  # type: ignore[misc]


# The four cases


@pytest.mark.parametrize("delay_ns", [9000, 20_000])
def test_no_mark_and_a_long_delay_is_the_fair_increase(delay_ns: float) -> None:
    control = flow()
    assert ack(control, 100, 32_768, delay_ns) == 100_000  # 8 MTU: not above
    # inc = 20,160 x 32,769 = 660,623,040; / 100,000
    assert ack(control, 200, 1, delay_ns) == exactly(106_606.2304)


@pytest.mark.parametrize(
    ("delay_ns", "step"),
    # 1.344 x 32,769 x (9,000 - d) / 100,000
    [(5000, Fraction("1761.66144")), (8999, ALPHA * 32_769 / 100_000), (1000, ALPHA * 32_769 * 8000 / 100_000)],
)
def test_no_mark_and_a_short_delay_is_the_proportional_increase(delay_ns: float, step: Fraction) -> None:
    control = flow()
    assert ack(control, 100, 32_000, delay_ns) == 100_000
    assert ack(control, 200, 769, delay_ns) == exactly(100_000 + step)


def test_a_mark_and_a_long_delay_is_the_decrease() -> None:
    control = flow()
    # avg = 0.0125 x 960,000 = 12,000; factor 1 - 0.8 x 3,000 / 12,000 = 0.8; 8,001 ns since 0 is more than base.
    assert ack(control, 8001, MTU, 960_000, marked=True) == exactly(80_000)
    # avg = 0.9875 x 12,000 + 0.0125 x 9,000 = 11,962.5, but it is only 8,000 ns since; eta, 16,001 ns after 0.
    assert ack(control, 16_001, MTU, 9000, marked=True) == exactly(80_604.8)
    # avg = 0.9875 x 11,962.5 + 112.5 = 11,925.46875
    average = Fraction("11925.46875")
    factor = 1 - Fraction("0.8") * (average - 9000) / average
    assert ack(control, 16_002, MTU, 9000, marked=True) == exactly(Fraction("80604.8") * factor)


def test_one_decrease_leaves_half_at_least() -> None:
    # avg = 0.0125 x 7,200,000 = 90,000; 1 - 0.8 x 81,000 / 90,000 = 0.28
    assert ack(flow(), 8001, MTU, 7_200_000, marked=True) == 50_000


def test_no_decrease_where_the_average_is_at_the_target_or_soon_after_the_start() -> None:
    control = flow()
    assert ack(control, 8001, MTU, 720_000, marked=True) == 100_000  # avg = 0.0125 x 720,000 = 9,000
    assert ack(control, 8002, MTU, 720_000, marked=True) < 100_000  # the one before does not count as a decrease
    assert ack(flow(), 8001, MTU, 720_001, marked=True) < 100_000
    assert ack(flow(), 8000, MTU, 960_000, marked=True) == 100_000


def test_a_decrease_ends_at_one_packet() -> None:
    assert ack(flow(5000), 8001, 0, 7_200_000, marked=True) == MTU


def test_the_decrease_needs_a_delay_of_the_target() -> None:
    control = flow()
    ack(control, 100, 0, 1_600_000, marked=True)  # avg = 20,000
    assert ack(control, 8001, 0, 8999, marked=True) == 100_000
    assert ack(control, 8002, 0, 9000, marked=True) < 100_000


def test_a_mark_and_a_short_delay_does_nothing() -> None:
    control = flow()
    assert ack(control, 100, 32_769, 500, marked=True) == 100_000
    assert control._fast_bytes == 0
    # Only eta, 12,001 ns after 0: no increase was gathered.
    assert ack(control, 12_001, 0, 8999, marked=True) == exactly(100_604.8)


# Adjustment and bounds


def test_eta_once_a_round_trip() -> None:
    control = flow()
    assert ack(control, 12_000, 0, 5000, marked=True) == 100_000
    assert ack(control, 12_001, 0, 5000, marked=True) == exactly(100_604.8)
    assert ack(control, 24_001, 0, 5000, marked=True) == exactly(100_604.8)
    # Where the bytes cause the adjustment, RTT0 to the ns counts as passed.
    assert ack(control, 24_001, 32_769, 5000, marked=True) == exactly(101_209.6)
    assert ack(control, 24_002, 32_769, 5000, marked=True) == exactly(101_209.6)


def test_an_adjustment_clears_what_it_used() -> None:
    control = flow()
    first = ack(control, 100, 32_769, 9000)
    assert first == exactly(106_606.2304)
    assert ack(control, 200, 32_768, 8999, marked=True) == first  # received starts anew
    assert ack(control, 300, 1, 8999, marked=True) == first  # and so does the increase


def test_the_window_ends_at_the_largest() -> None:
    control = flow(149_000)
    # 149,000 + 20,160 x 32,769 / 149,000 = 153,433 would be above.
    assert ack(control, 100, 32_769, 9000) == WINDOW_MAX


def test_the_largest_window_follows_the_smallest_sample() -> None:
    control = flow(WINDOW_MAX)
    # 1.5 x 12.5 x 6,000 = 112,500
    assert control.on_ack(100, 0, 6000.0, True, 0) == 112_500
    # The base stays: a sample of 14,999 is now a delay of 8,999, one of 15,000 the target.
    control.on_timeout(100, 12_500, 0)
    assert control.on_ack(200, 32_769, 15_000.0, False, 0) == exactly(106_606.2304)
    assert control._base_ns == 6000


def test_the_increase_counts_against_a_window_within_its_bounds() -> None:
    control = flow(5000)
    ack(control, 100, 10_000, 9000)
    # Halved to 2,500, which is raised to 4,096 first; then 20,160 x 10,000 / 4,096 = 49,218.75, and eta.
    assert ack(control, 12_001, 0, 7_200_000, marked=True) == exactly(4096 + 49_218.75 + 604.8)


def test_a_spurious_sample_leaves_one_packet() -> None:
    assert flow().on_ack(100, 0, 1.0, True, 0) == MTU


# The average delay


def test_the_average_takes_the_delay() -> None:
    control = flow()
    ack(control, 1, 0, 8000)
    assert control._average_ns == exactly(100)  # 0.0125 x 8,000
    ack(control, 2, 0, 9000)
    assert control._average_ns == exactly(211.25)  # 0.9875 x 100 + 0.0125 x 9,000: T is not above T
    ack(control, 3, 0, 9001, marked=True)
    assert control._average_ns == exactly(Fraction("208.609375") + Fraction("112.5125"))


def test_the_average_takes_a_quarter_of_the_base_for_a_long_delay_without_a_mark() -> None:
    control = flow()
    ack(control, 1, 0, 9001)
    assert control._average_ns == exactly(25)  # 0.0125 x 8,000 / 4
    control.on_ack(2, 0, 4000.0, True, 0)
    assert control._average_ns == exactly(24.6875)  # 0.9875 x 25
    control.on_ack(3, 0, 20_000.0, False, 0)
    assert control._average_ns == exactly(Fraction("24.37890625") + Fraction("12.5"))  # the new base / 4


def test_without_a_sample_the_average_is_the_delay() -> None:
    control = flow()
    ack(control, 1, 0, 320_000, marked=True)
    assert control._average_ns == exactly(4000)
    # inc = 1.344 x 32,769 x (9,000 - 4,000) = 220,207,680
    assert control.on_ack(2, 32_769, 0.0, False, 0) == exactly(102_202.0768)
    assert (control._average_ns, control._base_ns) == (exactly(4000), BASE)


# Fast increase


def test_fast_increase_starts_after_more_than_a_window_and_replaces_the_proportional_step() -> None:
    control = flow(10_000)
    assert ack(control, 100, 10_000, 0) == 10_000  # a window: not more
    assert control._increase == exactly(120_960_000)  # 1.344 x 10,000 x 9,000
    assert ack(control, 200, 1, 999) == 10_000.25
    assert ack(control, 300, 100, 999) == 10_025.25
    assert control._increase == exactly(120_960_000)


def test_fast_increase_goes_on_while_the_count_is_below_a_window() -> None:
    control = flow(10_000)
    ack(control, 100, 10_000, 0)
    ack(control, 200, 101, 0)
    # 10,025.25 + 120,960,000 / 10,025.25 + 604.8, 12,001 ns after 0
    window = Fraction("10025.25") + 120_960_000 / Fraction("10025.25") + Fraction("604.8")
    assert ack(control, 12_001, 0, 0) == exactly(window)
    assert ack(control, 12_002, 400, 0) == exactly(window + 100)  # 10,501 counted, 22,695 in the window


def test_a_delay_of_1_us_ends_fast_increase_and_its_count() -> None:
    control = flow(10_000)
    ack(control, 100, 10_001, 0)
    assert control.cwnd_bytes == 12_500.25
    assert ack(control, 200, 400, 1000) == 12_500.25
    assert control._increase == exactly(ALPHA * 400 * 8000)
    assert ack(control, 300, 12_500, 0) == 12_500.25  # counted from 0 again
    assert ack(control, 400, 4, 0) == 12_501.25


def test_only_a_decrease_or_a_delay_ends_fast_increase() -> None:
    control = flow(10_000)
    ack(control, 100, 10_001, 0)
    ack(control, 200, 400, 0, marked=True)
    ack(control, 300, 0, 9000)
    assert ack(control, 400, 4, 0) == 12_501.25
    # A mark with a long delay ends it even where nothing is decreased, and clears the count.
    ack(control, 500, 0, 9000, marked=True)
    assert ack(control, 600, 12_501, 0) == 12_501.25


# Quick adapt


def quick() -> Nscc:
    """A flow whose first period of quick adapt ends at 100 + 17,000 ns."""
    control = flow()
    ack(control, 100, MTU, 5000, marked=True)
    return control


def test_quick_adapt_cuts_the_window_to_what_arrived() -> None:
    control = quick()
    # The period has not passed. An adjustment is due: 20,160 x 5,000 / 100,000, and eta.
    assert ack(control, 17_100, 5000, 36_001) == exactly(100_000 + 1008 + Fraction("604.8"))
    assert ack(control, 17_101, 1000, 36_001, in_flight=60_000) == 6000  # without the 4,096 B before the period
    assert (control._to_ignore_bytes, control._ignored_bytes, control._achieved_bytes) == (60_000, 0, 0)


def test_quick_adapt_waits_for_a_first_period() -> None:
    control = flow()
    assert ack(control, 100, MTU, 40_000, marked=True) == 100_000
    assert ack(control, 17_101, 5000, 40_000, marked=True) == 5000


def test_quick_adapt_needs_more_than_four_target_delays() -> None:
    # An adjustment is due: 20,160 x 5,000 / 100,000, and eta.
    assert ack(quick(), 17_101, 5000, 36_000) == exactly(100_000 + 1008 + Fraction("604.8"))
    assert ack(quick(), 17_101, 5000, 36_000.5) == 5000


@pytest.mark.parametrize(("arrived", "acts"), [(18_749, True), (18_750, False)])
def test_quick_adapt_needs_less_than_an_eighth_of_the_largest_window(arrived: int, acts: bool) -> None:
    control = quick()
    assert (ack(control, 17_101, arrived, 40_000, marked=True) == arrived) is acts
    # Either way the next period counts from 0, and ends 17,000 ns later.
    assert ack(control, 34_101, 0, 40_000) != MTU
    assert ack(control, 34_102, 0, 40_000) == MTU


def test_the_next_period_is_the_flows_own_base_and_the_target_later() -> None:
    control = quick()
    control.on_ack(17_101, 20_000, 4000.0, True, 0)  # the base falls to 4,000 ns: 13,000 ns until the next
    control.on_ack(30_101, 0, 45_000.0, False, 0)
    assert control.cwnd_bytes > MTU
    assert control.on_ack(30_102, 5000, 45_000.0, False, 0) == 5000


def test_quick_adapt_leaves_one_packet_at_least() -> None:
    assert ack(quick(), 17_101, 100, 40_000) == MTU


def test_quick_adapt_ignores_marks_of_what_was_in_flight() -> None:
    control = quick()
    ack(control, 17_101, 5000, 40_000, in_flight=60_000)
    # Sees no decrease, though the average is far above the target, and no eta, though RTT0 has passed.
    assert ack(control, 30_000, 59_999, 960_000, marked=True) == 5000
    # The last byte of it: the decrease is near a half and so meets the smallest window; then eta.
    assert ack(control, 30_001, 1, 960_000, marked=True) == exactly(MTU + Fraction("604.8"))


def test_an_ack_without_a_mark_counts_while_marks_are_ignored() -> None:
    control = quick()
    ack(control, 17_101, 5000, 40_000, in_flight=60_000)
    # inc = 20,160 x 500 = 10,080,000 / 5,000, and eta
    assert ack(control, 17_102, 500, 9000) == exactly(5000 + 2016 + Fraction("604.8"))


def test_quick_adapt_and_ignoring_drop_the_increase() -> None:
    control = quick()
    ack(control, 200, 5000, 9000)
    assert (control._increase, control._received_bytes) == (exactly(FAIR * 5000), MTU + 5000)
    ack(control, 17_101, 5000, 40_000, in_flight=60_000)
    assert (control._increase, control._received_bytes) == (0, 0)
    ack(control, 17_102, 500, 9000)  # an adjustment by eta
    ack(control, 17_103, 500, 9000)
    assert (control._increase, control._received_bytes) == (exactly(FAIR * 500), 500)
    ack(control, 17_104, 500, 9000, marked=True)
    assert (control._increase, control._received_bytes) == (0, 0)


def test_ignoring_keeps_the_period_open() -> None:
    control = quick()
    ack(control, 17_101, 5000, 40_000, in_flight=60_000)
    assert ack(control, 40_000, 7000, 40_000, marked=True) == 5000
    assert ack(control, 40_001, 500, 40_000) == 7500  # what arrived while marks were ignored counts


# NACK and timeout


def test_a_nack_takes_its_bytes_off_the_window() -> None:
    control = flow()
    assert control.on_nack(100, MTU, 0.0, 60_000) == 95_904
    assert control._average_ns == exactly(150)  # 0.0125 x RTT0
    assert control.on_nack(200, 1000, 20_000.0, 60_000) == 94_904
    assert control._average_ns == exactly(298.125)  # 0.9875 x 150 + 150: a sample of the NACK does not enter
    assert control._base_ns == BASE
    assert control.cwnd_bytes == 94_904


def test_a_nack_leaves_one_packet() -> None:
    assert flow(5000).on_nack(100, MTU, 0.0, 60_000) == MTU


def test_the_sample_of_a_nack_lowers_the_base() -> None:
    control = flow(WINDOW_MAX)
    assert control.on_nack(100, MTU, 4000.0, 0) == 75_000  # 1.5 x 12.5 x 4,000
    assert control._base_ns == 4000


def test_quick_adapt_on_a_nack() -> None:
    control = quick()
    ack(control, 17_000, 5000, 5000, marked=True)  # and eta
    assert control.on_nack(17_100, 0, 0.0, 64_096) == exactly(100_604.8)  # the period has not passed
    assert control.on_nack(17_101, MTU, 0.0, 64_096) == 5000
    assert (control._to_ignore_bytes, control._ignored_bytes, control._trigger) == (64_096, 0, False)
    # Further NACKs of what was in flight change nothing but the average, and count.
    assert control.on_nack(17_102, 60_000, 0.0, 60_000) == 5000
    assert control.on_nack(17_103, 4095, 0.0, 60_000) == 5000
    assert control.on_nack(17_104, 1, 0.0, 60_000) == 4999


def test_a_nack_where_too_much_arrived_for_quick_adapt() -> None:
    control = quick()
    ack(control, 17_000, 18_750, 5000, marked=True)
    window = control.cwnd_bytes
    assert control.on_nack(17_101, MTU, 0.0, 60_000) == window - MTU
    # It started a new period, and is remembered at its end.
    assert ack(control, 34_101, 0, 5000, marked=True) > MTU
    assert ack(control, 34_102, 0, 5000, marked=True) == MTU


def test_a_nack_triggers_quick_adapt_once() -> None:
    control = quick()
    control.on_nack(200, MTU, 0.0, 60_000)
    assert ack(control, 17_101, 5000, 5000, in_flight=0) == 5000
    assert ack(control, 34_102, 4999, 5000, marked=True, in_flight=0) > 5000


def test_a_timeout_takes_its_bytes_off_the_window() -> None:
    control = flow()
    assert control.on_timeout(100, MTU, 60_000) == 95_904
    assert control.on_timeout(200, 91_807, 60_000) == 4097
    assert control.on_timeout(300, MTU, 0) == MTU
    assert control.cwnd_bytes == MTU


# Numbers that do not fit into 32 bits


@pytest.mark.parametrize(
    ("delay_ns", "newly", "increase"),
    [
        # Three tiers: a = 1,225,000 / 150,000, T = 0.75 x 12,250 = 9,187.5 ns.
        # fi = 20,160 a = 164,640; x 32,769 = 5,395,088,160
        (9187.5, 32_769, 5_395_088_160),
        # alpha = 1.344 a = 10.976; x 49,152 x 9,187.5 = 4,956,585,984
        (0.0, 49_152, 4_956_585_984),
    ],
)
def test_the_accumulator_is_wide(delay_ns: float, newly: int, increase: int) -> None:
    assert increase > 2**32
    control = Nscc(Network(MTU, 64, 12_250.0, True), Path(0, 1, 800e9, 12_250.0))
    assert control.on_timeout(0, 1_437_500, 0) == exactly(400_000)  # cwnd_max = 1,837,500
    assert control.on_ack(100, newly, 12_250.0 + delay_ns, False, 0) == exactly(400_000 + Fraction(increase, 400_000))


# A sequence


def test_a_sequence() -> None:
    control = flow(WINDOW_MAX)

    # 1. NACK. ignored 4,096; avg = 0.0125 x 12,000 = 150; trigger. No period is set: it starts one, until
    #    1,000 + 17,000 = 18,000. cwnd = 150,000 - 4,096.
    assert control.on_nack(1000, 4096, 0.0, 150_000) == 145_904

    # 2. d = 4,000. avg = 0.9875 x 150 + 0.0125 x 4,000 = 148.125 + 50 = 198.125.
    #    inc = 1.344 x 16,384 x 5,000 = 110,100,480. received 16,384.
    assert control.on_ack(2000, 16_384, 12_000.0, False, 130_000) == 145_904
    assert control._average_ns == exactly(198.125)

    # 3. d = 12,000 >= T, no mark: avg takes 8,000 / 4: 195.6484375 + 25 = 220.6484375.
    #    inc += 20,160 x 16,384 = 330,301,440, in all 440,401,920. received 32,768: not above 8 MTU.
    assert control.on_ack(3000, 16_384, 20_000.0, False, 130_000) == 145_904
    assert control._increase == exactly(440_401_920)

    # 4. No sample: d = avg = 220.6484375 < 1 us, 4,096 counted, less than a window.
    #    inc += 1.344 x 4,096 x 8,779.3515625 = 5,505.024 x 8,779.3515625
    #         = 8,779.3515625 x 5,500 (48,286,433.59375) + x 5.024 (44,107.46225) = 48,330,541.056
    #    in all 488,732,461.056. received 36,864: cwnd += inc / 145,904 (3,349.685...). RTT0 has not passed.
    window = 145_904 + Fraction("488732461.056") / 145_904
    assert control.on_ack(4000, 4096, 0.0, False, 130_000) == exactly(window)
    assert window == pytest.approx(Fraction("149253.685142"), abs=1e-6)

    # 5. base = 7,000, cwnd_max = 1.5 x 12.5 x 7,000 = 131,250. d = 0 with a mark: nothing.
    #    avg = 0.9875 x 220.6484375 = 217.89033203125. Clamp; 13,000 ns since 0: + 604.8; clamp.
    #    achieved = 16,384 + 16,384 + 4,096 + 16,384 = 53,248.
    assert control.on_ack(13_000, 16_384, 7000.0, True, 110_000) == 131_250

    # 6. NACK, with a sample above base. avg = 217.89033203125 - 2.723629150390625 + 150 = 365.166702880859375.
    #    18,000 has passed, but 53,248 >= 131,250 / 8 = 16,406.25. achieved 0, next period until
    #    19,000 + 7,000 + 9,000 = 35,000. cwnd = 131,250 - 4,096.
    assert control.on_nack(19_000, 4096, 9000.0, 100_000) == 127_154
    assert control._average_ns == exactly(Fraction("365.166702880859375"))

    # 7. d = 1,000. avg = 365.166702880859375 - 4.5645837860107421875 + 12.5 = 373.1021190948486328125.
    #    35,000 has passed, the NACK is remembered, 8,192 < 16,406.25: cwnd = 8,192, ignore 90,000.
    #    inc = received = achieved = 0, next period until 36,000 + 16,000 = 52,000.
    assert control.on_ack(36_000, 8192, 8000.0, False, 90_000) == 8192

    # 8. A mark, 16,384 < 90,000 ignored: nothing but avg, d = 23,000:
    #    373.1021190948486328125 - 4.66377648868560791015625 + 287.5 = 655.93834260616302490234375.
    assert control.on_ack(37_000, 16_384, 30_000.0, True, 80_000) == 8192
    assert control._average_ns == exactly(Fraction("655.93834260616302490234375"))

    # 9. d = 500, no mark: 4,096 (of 4.) + 9,000 = 13,096 counted > 8,192: fast, cwnd = 8,192 + 2,250 = 10,442.
    #    25,000 ns since the last: inc 0, + 604.8. ignored 25,384.
    #    avg = 655.93834260616302490234375 - 8.199229282577037811279296875 + 6.25 = 653.989113323585987091064453125.
    assert control.on_ack(38_000, 9000, 7500.0, False, 70_000) == exactly(11_046.8)

    # 10. Timeout: 11,046.8 - 4,096.
    assert control.on_timeout(39_000, 4096, 66_000) == exactly(6950.8)

    # 11. A mark; 25,384 + 64,616 = 90,000 ignored: no more. d = 1,000,000 >= T.
    #     avg = 0.9875 x 653.989113323585987091064453125 + 12,500 = 13,145.8142494...
    #     More than 7,000 ns since 0: cwnd x= 1 - 0.8 x (avg - 9,000) / avg (0.7477...). received 64,616: inc is 0,
    #     2,000 ns since the last.
    average = Fraction("0.9875") * Fraction("653.989113323585987091064453125") + 12_500
    factor = 1 - Fraction("0.8") * (average - 9000) / average
    assert average == pytest.approx(Fraction("13145.8142494"), abs=1e-6)
    assert control.on_ack(40_000, 64_616, 1_007_000.0, True, 1000) == exactly(Fraction("6950.8") * factor)
