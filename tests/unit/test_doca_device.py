"""The DPU's program: SDK events and requests in, rates and replies out. Compiled against declarations of our own."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import pytest

from controller.nic.doca_message import (
    RATE_ONE,
    REPLY_BYTES,
    Binding,
    Settings,
    Status,
    bindings_message,
    parse_reply,
    rates_message,
)
from tests.unit.doca import EVENT_ACK, EVENT_CNP, EVENT_NACK, EVENT_RTT, EVENT_TX, compile_standin

SETTINGS = Settings(unknown_steps=77, rtt_ns=8000, bdp_bytes=800_000, cnp_bytes=4096, fallback=True)
DEFAULTS = [1 << 12, 8000, 800_000, 4096, 0]


@pytest.fixture(scope="module")
def program_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_standin(tmp_path_factory.mktemp("device"))


@pytest.fixture
def program(program_file: Path) -> ctypes.CDLL:
    """Just loaded onto the DPU."""
    library = ctypes.CDLL(str(program_file))
    library.doca_pcc_dev_user_init(ctypes.byref(ctypes.c_uint32()))
    library.standin_event.restype = ctypes.c_uint32
    return library


class Flow:
    """The context that the SDK keeps for a flow."""

    def __init__(self, program: ctypes.CDLL) -> None:
        self._program = program
        self.words = (ctypes.c_uint32 * 12)()

    def event(
        self,
        kind: int,
        qpn: int = 0,
        *,
        port: int = 0,
        slot: int = 0,
        now_ns: int = 0,
        units: int = 128,
        joined: int = 0,
    ) -> int:
        return int(self._program.standin_event(self.words, kind, port, slot, qpn, now_ns, units, joined))


def request(program: ctypes.CDLL, message: bytes, room: int = REPLY_BYTES) -> tuple[int, bytes]:
    reply, size = ctypes.create_string_buffer(REPLY_BYTES), ctypes.c_uint32(99)
    buffer = ctypes.create_string_buffer(message, len(message))
    status = program.doca_pcc_dev_user_mailbox_handle(buffer, len(message), room, reply, ctypes.byref(size))
    return int(status), reply.raw[: size.value]


def load(program: ctypes.CDLL, *rates: int) -> None:
    bindings = [Binding(0x100 + slot, slot, function=slot % 2) for slot in range(len(rates))]
    for message in (bindings_message(1, SETTINGS, bindings), rates_message(1, struct.pack(f"<{len(rates)}I", *rates))):
        status, reply = request(program, message)
        assert (status, parse_reply(reply).status) == (0, Status.OK)


def parameters(program: ctypes.CDLL) -> list[int]:
    values = (ctypes.c_uint32 * 30)()
    return list(values[: program.standin_parameters(values)])


def test_init(program: ctypes.CDLL) -> None:
    """Slot 0 of all ports, ACKs masked out, parameters with their defaults, which the stand-in holds to their bounds."""
    disabled = ctypes.c_uint32()
    program.doca_pcc_dev_user_init(ctypes.byref(disabled))
    assert program.standin_slots() == 0b1111
    assert disabled.value == 1 << EVENT_ACK
    assert parameters(program) == DEFAULTS


def test_before_the_host_has_spoken(program: ctypes.CDLL) -> None:
    assert Flow(program).event(EVENT_TX, 0x100) == 1 << 12


@pytest.mark.parametrize("slot", [0, 1, 15])
def test_the_rate_is_that_of_port_and_qp_whatever_slot_the_event_names(program: ctypes.CDLL, slot: int) -> None:
    load(program, 1000, 2000)
    assert Flow(program).event(EVENT_TX, 0x100, slot=slot) == 1000
    assert Flow(program).event(EVENT_TX, 0x101, port=1, slot=slot) == 2000
    assert Flow(program).event(EVENT_TX, 0x101, slot=slot) == 77


def test_other_events_find_the_flow_by_its_context(program: ctypes.CDLL) -> None:
    load(program, 500_000)
    flow = Flow(program)
    assert flow.event(EVENT_RTT) == 77
    assert flow.event(EVENT_TX, 0x100) == 500_000
    assert flow.event(EVENT_RTT) == 500_000
    assert flow.event(EVENT_CNP, now_ns=10) < 500_000


def test_joined_events_count_as_many(program: ctypes.CDLL) -> None:
    load(program, RATE_ONE)
    one, many = Flow(program), Flow(program)
    for flow in (one, many):
        flow.event(EVENT_TX, 0x100)
    after_one = one.event(EVENT_CNP)
    for _ in range(7):
        one.event(EVENT_CNP)
    eight = many.event(EVENT_CNP, joined=8)
    assert eight < after_one
    assert eight == pytest.approx(one.event(EVENT_RTT), rel=1e-3)


def test_bytes_of_tx_events_make_marks_fade(program: ctypes.CDLL) -> None:
    load(program, RATE_ONE)
    flow, slow = Flow(program), Flow(program)
    for each in (flow, slow):
        each.event(EVENT_TX, 0x100)
        each.event(EVENT_CNP, joined=50)
    assert flow.event(EVENT_TX, 0x100, units=4096) > slow.event(EVENT_TX, 0x100, units=128)


def test_a_nack_halves(program: ctypes.CDLL) -> None:
    load(program, RATE_ONE)
    flow = Flow(program)
    flow.event(EVENT_TX, 0x100)
    assert flow.event(EVENT_NACK, now_ns=100) == pytest.approx(RATE_ONE / 2, rel=0.01)


def test_a_refusal_is_in_the_reply_and_only_without_room_for_it_a_failure(program: ctypes.CDLL) -> None:
    status, reply = request(program, b"nonsense")
    assert (status, parse_reply(reply).status) == (0, Status.BAD_SIZE)
    assert request(program, b"nonsense", room=39) == (1, b"")


def set_parameters(program: ctypes.CDLL, first: int, values: list[int], *, slot: int = 0) -> tuple[int, list[int]]:
    new, own = (ctypes.c_uint32 * len(values))(*values), (ctypes.c_uint32 * 5)(*DEFAULTS)
    return program.doca_pcc_dev_user_set_algo_params(0, slot, first, len(values), new, own), list(own)


def test_parameters(program: ctypes.CDLL) -> None:
    """Set from outside, all that were given or none."""
    assert set_parameters(program, 0, [5]) == (1, DEFAULTS)  # before the host's settings
    load(program, 1000)
    unknown = Flow(program)
    assert set_parameters(program, 0, [5]) == (0, [5, *DEFAULTS[1:]])
    assert unknown.event(EVENT_TX, 0x999) == 5
    for first, values, slot in (
        (0, [6, 0], 0),
        (0, [0], 0),
        (0, [RATE_ONE + 1], 0),
        (4, [0, 0], 0),
        (9, [1], 0),
        (0, [6], 3),
    ):
        assert set_parameters(program, first, values, slot=slot) == (1, DEFAULTS), (first, values, slot)
        assert unknown.event(EVENT_TX, 0x999) == 5
    # The fallback goes off.
    assert set_parameters(program, 4, [0])[0] == 0
    flow = Flow(program)
    flow.event(EVENT_TX, 0x100)
    assert flow.event(EVENT_NACK) == 1000


def test_a_program_that_is_loaded_again_knows_nothing_of_before(program: ctypes.CDLL) -> None:
    load(program, 1000)
    program.doca_pcc_dev_user_init(ctypes.byref(ctypes.c_uint32()))
    assert Flow(program).event(EVENT_TX, 0x100) == 1 << 12
    load(program, 2000)
    assert Flow(program).event(EVENT_TX, 0x100) == 2000
