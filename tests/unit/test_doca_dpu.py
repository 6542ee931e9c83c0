"""The DPU's plain C: the mailbox, the tables, the rate of an event, the reactive fallback."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.nic.doca_message import (
    MAX_BINDINGS,
    RATE_ONE,
    Binding,
    Settings,
    Status,
    bindings_message,
    rates_message,
    read_message,
)
from controller.nic.rate_table import RATE_SLOTS, RateTable
from tests.conftest import REPOSITORY
from tests.unit.doca import CNP, NACK, OTHER, SETTINGS, TX, Dpu, Flow, bound, compile_plain

DEFAULT = 1 << 12
"""DOCA_PCC_DEV_DEFAULT_RATE."""
FALLBACK = replace(SETTINGS, fallback=True)
RTT = FALLBACK.rtt_ns
PACKET = FALLBACK.cnp_bytes


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_plain(tmp_path_factory.mktemp("dpu"))


@pytest.fixture
def dpu(library: ctypes.CDLL) -> Dpu:
    return Dpu(library)


def sealed(message: bytearray) -> bytes:
    """With the checksum that belongs to it."""
    message[12:16] = bytes(4)
    message[12:16] = struct.pack("<I", zlib.crc32(message))
    return bytes(message)


def test_it_compiles_for_a_dpa() -> None:
    """A freestanding RISC-V without Linux's headers: all that can be said here of dpacc."""
    clang = shutil.which("clang")
    if (
        clang is None
        or "riscv64"
        not in subprocess.run([clang, "--print-targets"], check=False, capture_output=True, text=True).stdout
    ):
        pytest.skip("needs a clang for RISC-V: apt-get install clang")
    includes = [f"-I{REPOSITORY / name}" for name in ("dpu", "dpu/compat", "ebpf/include", "tests/doca")]
    flags = ("--target=riscv64", "-ffreestanding", "-nostdlibinc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")
    for source in ("algorithm.c", "mailbox.c", "device/device.c"):
        subprocess.run(
            [clang, *flags, *includes, "-c", str(REPOSITORY / "dpu" / source), "-o", "/dev/null"], check=True
        )


# ---- tables ----


def test_before_the_host_has_spoken_a_flow_has_the_default_rate(dpu: Dpu) -> None:
    flow = Flow()
    assert [dpu.rate(flow, kind, qpn=5) for kind in (TX, CNP, NACK, OTHER)] == [DEFAULT] * 4


def test_a_flow_has_the_rate_of_its_slot_by_function_and_qpn(dpu: Dpu) -> None:
    bindings = [Binding(77, 0), Binding(77, 3, function=1), Binding(78, 3)]
    assert dpu.send(bindings_message(1, SETTINGS, bindings)).status is Status.OK
    assert dpu.send(rates_message(1, struct.pack("<4I", 10, 20, 30, RATE_ONE))).status is Status.OK
    assert dpu.rate(Flow(), TX, qpn=77) == 10
    # Two QPs to one receiver share its rate.
    assert dpu.rate(Flow(), TX, qpn=77, function=1) == RATE_ONE // 2
    assert dpu.rate(Flow(), TX, qpn=78) == RATE_ONE // 2
    assert dpu.rate(Flow(), TX, qpn=78, function=1) == SETTINGS.unknown_steps
    assert dpu.rate(Flow(), TX, qpn=79) == SETTINGS.unknown_steps


def test_a_bound_flow_without_a_rate_is_bounded(dpu: Dpu) -> None:
    """0 is no rate that a DPU can have."""
    bound(dpu, [0, 5])
    assert dpu.rate(Flow(), TX, qpn=0x100) == SETTINGS.unknown_steps


def test_events_without_a_qp_number_belong_to_the_flow_of_their_context(dpu: Dpu) -> None:
    """As on BlueField-3, where only TX events have one. Until there was one the flow is unknown."""
    bound(dpu, [10, 20])
    flow = Flow()
    assert dpu.rate(flow, CNP, count=1) == SETTINGS.unknown_steps
    assert dpu.rate(flow, TX, qpn=0x101) == 20
    assert dpu.rate(flow, CNP, qpn=1, count=1) == 20
    assert dpu.rate(flow, TX, qpn=0x100) == 10  # another QP has the context


def test_new_rates_are_there_at_the_next_event_of_whatever_kind(dpu: Dpu) -> None:
    bound(dpu, [10, 20])
    flow = Flow()
    dpu.rate(flow, TX, qpn=0x101)
    assert dpu.send(rates_message(2, struct.pack("<2I", 11, 21))).rates_generation == 2
    assert dpu.rate(flow, CNP, count=1) == 21
    # A binding that goes takes the flow with it, and one that comes brings it.
    dpu.send(bindings_message(2, SETTINGS, [Binding(0x100, 0)]))
    assert dpu.rate(flow, OTHER) == SETTINGS.unknown_steps
    dpu.send(bindings_message(3, SETTINGS, [Binding(0x101, 0)]))
    assert dpu.rate(flow, OTHER) == 11


def test_fewer_rates_leave_none_of_those_before(dpu: Dpu) -> None:
    bound(dpu, list(range(1, 101)))
    dpu.send(rates_message(2, struct.pack("<2I", 3, 4)))
    assert RateTable(dpu.table).read() == (2, struct.pack("<2I", 3, 4) + bytes(4 * (RATE_SLOTS - 2)))


def test_the_table_is_that_of_the_ebpf_pacer(dpu: Dpu) -> None:
    """Its Python reader reads it, and a reply carries what it reads."""
    rates = list(np.random.default_rng(3).integers(1, RATE_ONE + 1, RATE_SLOTS))
    bound(dpu, [int(rate) for rate in rates])
    generation, body = RateTable(dpu.table).read()
    assert generation == 1
    assert np.frombuffer(body, dtype="<u4").tolist() == rates
    reply = dpu.send(read_message())
    assert (reply.rates_generation, reply.rates) == (1, body)
    assert dpu.send(read_message(), room=40).rates == b""


def test_as_many_bindings_as_a_message_holds(dpu: Dpu) -> None:
    """All are found, in a table that they fill to a half, whatever their numbers are."""
    rng = np.random.default_rng(5)
    qpns = [*range(2, 1026), *(int(qpn) for qpn in rng.choice(np.arange(2000, 2**24), 1024, replace=False))]
    assert len(qpns) == MAX_BINDINGS
    bindings = [Binding(qpn, index % RATE_SLOTS, function=index % 3) for index, qpn in enumerate(qpns)]
    assert dpu.send(bindings_message(1, SETTINGS, bindings)).status is Status.OK
    rates = np.arange(1, RATE_SLOTS + 1, dtype="<u4")
    dpu.send(rates_message(1, rates.tobytes()))
    for each in bindings:  # two a slot
        assert dpu.rate(Flow(), TX, qpn=each.qpn, function=each.function) == max(1, (each.slot + 1) // 2)


# ---- malformed messages ----

RATES = rates_message(2, struct.pack("<3I", 7, 8, 9))
BINDINGS = bindings_message(2, SETTINGS, [Binding(0x100, 5), Binding(0x200, 6)])


def changed(message: bytes, offset: int, layout: str, value: int) -> bytes:
    """With a right checksum: what is wrong is the value."""
    copy = bytearray(message)
    struct.pack_into(layout, copy, offset, value)
    return sealed(copy)


MALFORMED = {
    "nothing": (b"", Status.BAD_SIZE),
    "a head cut short": (RATES[:31], Status.BAD_SIZE),
    "a rate cut short": (RATES[:-1], Status.BAD_SIZE),
    "a byte too many": (RATES + b"\0", Status.BAD_SIZE),
    "magic": (changed(RATES, 0, "<I", 1), Status.BAD_MAGIC),
    "version": (changed(RATES, 4, "<H", 2), Status.BAD_VERSION),
    "kind": (changed(RATES, 6, "<H", 4), Status.BAD_KIND),
    "a flipped bit": (RATES[:40] + b"\xff" + RATES[41:], Status.BAD_CHECKSUM),
    "count": (changed(RATES, 24, "<I", 2), Status.BAD_COUNT),
    "a count that overflows": (changed(RATES, 24, "<I", 0x40000003), Status.BAD_COUNT),
    "count of bindings": (changed(BINDINGS, 24, "<I", 3), Status.BAD_COUNT),
    "the same generation": (changed(RATES, 16, "<Q", 1), Status.STALE),
    "the same generation of bindings": (changed(BINDINGS, 16, "<Q", 1), Status.STALE),
    "a rate above the line's, the last": (changed(RATES, 40, "<I", RATE_ONE + 1), Status.BAD_RATE),
    "slot": (changed(BINDINGS, 70, "<H", RATE_SLOTS), Status.BAD_BINDING),
    "QP 1": (changed(BINDINGS, 64, "<I", 1), Status.BAD_BINDING),
    "a QP of 25 bits": (changed(BINDINGS, 64, "<I", 1 << 24), Status.BAD_BINDING),
    "one QP twice": (changed(BINDINGS, 64, "<I", 0x100), Status.DUPLICATE),
    "no bound for unknown QPs": (changed(BINDINGS, 32, "<I", 0), Status.BAD_SETTINGS),
    "a bound above the line": (changed(BINDINGS, 32, "<I", RATE_ONE + 1), Status.BAD_SETTINGS),
    "no round trip": (changed(BINDINGS, 36, "<I", 0), Status.BAD_SETTINGS),
    "a flag that nobody knows": (changed(BINDINGS, 48, "<I", 2), Status.BAD_SETTINGS),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_is_refused_counted_and_changes_nothing(dpu: Dpu, name: str) -> None:
    message, status = MALFORMED[name]
    bound(dpu, [10, 20])
    flow = Flow()
    dpu.rate(flow, TX, qpn=0x101)
    before = dpu.send(read_message())
    reply = dpu.send(message)
    assert reply.status is status
    assert (reply.accepted, reply.refused) == (before.accepted, before.refused + 1)
    assert (reply.rates_generation, reply.bindings_generation) == (1, 1)
    assert dpu.send(read_message()).rates == before.rates
    assert [dpu.rate(Flow(), TX, qpn=qpn) for qpn in (0x100, 0x101, 0x200)] == [10, 20, SETTINGS.unknown_steps]
    assert dpu.rate(flow, OTHER) == 20
    # And the next good one is taken.
    assert dpu.send(BINDINGS).status is dpu.send(RATES).status is Status.OK
    assert dpu.rate(Flow(), TX, qpn=0x200) == SETTINGS.unknown_steps


@settings(max_examples=200, deadline=None)
@given(noise=st.binary(max_size=200), start=st.sampled_from((b"", RATES[:32], BINDINGS[:32])), good=st.booleans())
def test_noise_is_never_put_in_force(library: ctypes.CDLL, noise: bytes, start: bytes, good: bool) -> None:
    """Whatever comes: rates in force are in (0, 1], and what was refused left no trace."""
    dpu = Dpu(library)
    bound(dpu, [10, 20])
    message = bytearray(start + noise)
    if good and len(message) >= 16:
        message = bytearray(sealed(message))
    reply = dpu.send(bytes(message))
    rate = dpu.rate(Flow(), TX, qpn=0x101)
    assert 1 <= rate <= RATE_ONE
    if reply.status is not Status.OK:
        assert (rate, reply.rates_generation, reply.bindings_generation) == (20, 1, 1)


# ---- reactive fallback ----


def drive(
    dpu: Dpu, flow: Flow, rtts: float, marked: float, *, now_ns: int = 0, steps: int = 200_000
) -> tuple[int, list[int]]:
    """A flow that sends at its rate, and of whose packets a part comes back marked: (time, rates)."""
    rates: list[int] = []
    rate = dpu.rate(flow, TX, now_ns, qpn=0x100, bytes=0)
    end_ns, owed = now_ns + rtts * RTT, 0.0
    while now_ns < end_ns:
        now_ns += max(1, int(PACKET * RTT * RATE_ONE / (SETTINGS.bdp_bytes * rate)))
        rate = dpu.rate(flow, TX, now_ns, qpn=0x100, bytes=PACKET)
        owed += marked
        if owed >= 1:
            rate = dpu.rate(flow, CNP, now_ns, count=1)
            owed -= 1
        rates.append(rate)
    assert max(rates) <= steps
    return now_ns, rates


def test_without_the_flag_congestion_changes_nothing(dpu: Dpu) -> None:
    bound(dpu, [200_000])
    assert set(drive(dpu, Flow(), 5, 1.0)[1]) == {200_000}


@pytest.mark.parametrize("marked", [0.1, 0.25, 0.5, 0.9])
def test_the_rate_is_r_over_one_plus_the_part_that_is_marked(dpu: Dpu, marked: float) -> None:
    bound(dpu, [200_000], settings=FALLBACK)
    _, rates = drive(dpu, Flow(), 30, marked)
    settled = rates[len(rates) // 2 :]
    assert sum(settled) / len(settled) == pytest.approx(200_000 / (1 + marked), rel=0.04)


def test_it_is_back_at_r_soon_after_the_last_mark_and_never_above(dpu: Dpu) -> None:
    bound(dpu, [200_000], settings=FALLBACK)
    flow = Flow()
    now_ns, rates = drive(dpu, flow, 6, 0.5)
    assert min(rates) < 150_000
    _, rates = drive(dpu, flow, 8, 0.0, now_ns=now_ns)
    assert rates == sorted(rates)
    assert rates[-1] > 0.99 * 200_000
    assert max(rates) <= 200_000


def test_a_nack_halves_base_once_in_two_round_trips_and_it_rises_by_a_32th_a_round_trip(dpu: Dpu) -> None:
    bound(dpu, [RATE_ONE], settings=FALLBACK)
    flow = Flow()
    dpu.rate(flow, TX, qpn=0x100)
    start_ns = 10 * RTT
    dpu.rate(flow, NACK, start_ns, count=1)
    assert flow.cut == RATE_ONE // 2
    dpu.rate(flow, NACK, start_ns + 2 * RTT - 1, count=1)
    assert flow.cut == pytest.approx(RATE_ONE // 2 - 2 * RATE_ONE // 32, rel=1e-3)
    dpu.rate(flow, NACK, start_ns + 2 * RTT, count=1)
    assert flow.cut == pytest.approx((RATE_ONE + RATE_ONE * 7 // 16) // 2, rel=1e-3)
    dpu.rate(flow, OTHER, start_ns + 18 * RTT)
    assert flow.cut == pytest.approx(RATE_ONE * 23 // 32 - RATE_ONE // 2, rel=1e-3)
    dpu.rate(flow, OTHER, start_ns + 100 * RTT)
    assert flow.cut == 0


def test_nothing_but_marks_for_long_halves_base_too(dpu: Dpu) -> None:
    bound(dpu, [200_000], settings=FALLBACK)
    assert min(drive(dpu, Flow(), 4, 1.0)[1]) == pytest.approx(100_000, rel=0.03)
    assert min(drive(dpu, Flow(), 40, 1.0)[1]) < 60_000
    # With a third of them unmarked it does not.
    flow = Flow()
    drive(dpu, flow, 40, 2 / 3)
    assert flow.cut == 0


def test_an_update_resets_neither_the_fallback_nor_what_it_remembers(dpu: Dpu) -> None:
    """The share of R that a flow had before it has of the new R."""
    bound(dpu, [200_000], settings=FALLBACK)
    flow = Flow()
    now_ns, rates = drive(dpu, flow, 10, 0.5)
    dpu.rate(flow, NACK, now_ns, count=1)
    before = bytes(flow)
    assert rates[-1] < 180_000
    low = dpu.rate(flow, OTHER, now_ns)
    dpu.send(rates_message(2, struct.pack("<I", 100_000)))
    assert dpu.rate(flow, OTHER, now_ns) == pytest.approx(low / 2, abs=1)
    assert bytes(flow) == before
    dpu.send(bindings_message(2, FALLBACK, [Binding(0x100, 0)]))
    assert dpu.rate(flow, OTHER, now_ns) == pytest.approx(low / 2, abs=1)


def test_the_clock_may_wrap(dpu: Dpu) -> None:
    bound(dpu, [RATE_ONE], settings=FALLBACK)
    flow = Flow()
    start_ns = 2**32 - RTT
    dpu.rate(flow, TX, start_ns, qpn=0x100)
    dpu.rate(flow, NACK, start_ns, count=1)
    dpu.rate(flow, OTHER, start_ns + 8 * RTT)
    assert flow.cut == pytest.approx(RATE_ONE // 4, rel=1e-3)


EVENTS = st.tuples(
    st.sampled_from((TX, CNP, NACK, OTHER)),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.sampled_from((0x100, 0x101, 0x900)),
)


@settings(max_examples=100, deadline=None)
@given(
    rates=st.lists(st.integers(1, RATE_ONE), min_size=2, max_size=2),
    events=st.lists(EVENTS, max_size=60),
    given=st.builds(
        Settings,
        unknown_steps=st.integers(1, RATE_ONE),
        rtt_ns=st.integers(1, 2**32 - 1),
        bdp_bytes=st.integers(1, 2**32 - 1),
        cnp_bytes=st.integers(1, 2**32 - 1),
        fallback=st.booleans(),
    ),
)
def test_whatever_happens_the_rate_is_above_0_and_never_above_r(
    library: ctypes.CDLL, rates: list[int], events: list[tuple[int, int, int, int]], given: Settings
) -> None:
    dpu = Dpu(library)
    bound(dpu, rates, settings=given)
    flow, qpn = Flow(), 0
    for kind, step_ns, number, sent_by in events:
        qpn = sent_by if kind == TX else qpn
        now = dpu.rate(flow, kind, step_ns, qpn=sent_by, bytes=number, count=number)
        ceiling = {0x100: rates[0], 0x101: rates[1]}.get(qpn, given.unknown_steps)
        assert 1 <= now <= ceiling
        if not given.fallback:
            assert now == ceiling
