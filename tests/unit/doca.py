"""The DPU's plain C, compiled by the tests and driven by ctypes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar

import pytest

from controller.nic.doca_message import (
    REPLY_BYTES,
    Binding,
    Reply,
    Settings,
    bindings_message,
    parse_reply,
    rates_message,
)
from controller.nic.rate_table import TABLE_BYTES
from tests.conftest import REPOSITORY

TX, CNP, NACK, OTHER = range(4)
FLAGS = ("-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-shared", "-fPIC")
PLAIN = ("dpu/algorithm.c", "dpu/mailbox.c")
SIZES = """
#include "mailbox.h"
#include "algorithm.h"
unsigned pcc_state_bytes(void);
unsigned pcc_state_bytes(void)
{
	return sizeof(struct pcc_state);
}
"""


class Event(ctypes.Structure):
    """struct pcc_event."""

    _fields_: ClassVar = [(name, ctypes.c_uint32) for name in ("kind", "function", "qpn", "now_ns", "bytes", "count")]


class Flow(ctypes.Structure):
    """struct pcc_flow."""

    _fields_: ClassVar = [
        ("qpn", ctypes.c_uint32),
        ("function", ctypes.c_uint16),
        ("slot_plus_1", ctypes.c_uint16),
        *((name, ctypes.c_uint32) for name in ("bindings_generation", "cut", "marked", "risen_ns", "cut_ns")),
        *((name, ctypes.c_uint32) for name in ("solid_bytes", "has_cut")),
        ("reserved", ctypes.c_uint32 * 3),
    ]


def compile_library(folder: Path, name: str, sources: list[Path], includes: list[Path], *flags: str) -> Path:
    """A shared library; skips where there is no compiler."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc: apt-get install gcc libc6-dev")
    library = folder / name
    command = [compiler, *FLAGS, *(f"-I{path}" for path in includes), *map(str, sources), "-o", str(library), *flags]
    subprocess.run(command, check=True)
    return library


def compile_plain(folder: Path) -> ctypes.CDLL:
    """dpu/*.c as they are."""
    (folder / "sizes.c").write_text(SIZES)
    library = ctypes.CDLL(
        str(
            compile_library(
                folder,
                "libdpu.so",
                [*(REPOSITORY / source for source in PLAIN), folder / "sizes.c"],
                [REPOSITORY / "dpu", REPOSITORY / "ebpf/include"],
            )
        )
    )
    library.pcc_rate.restype = library.pcc_mailbox.restype = library.pcc_state_bytes.restype = ctypes.c_uint32
    return library


class Dpu:
    """One DPU's state, and what the SDK would keep for its flows."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.memory = ctypes.create_string_buffer(library.pcc_state_bytes())

    def send(self, message: bytes, *, room: int = REPLY_BYTES) -> Reply:
        reply = ctypes.create_string_buffer(REPLY_BYTES)
        status = ctypes.c_uint32()
        # One byte off: requests need not be aligned.
        request = ctypes.create_string_buffer(b"\0" + message, len(message) + 2)
        size = self._library.pcc_mailbox(
            self.memory, ctypes.byref(request, 1), len(message), reply, room, ctypes.byref(status)
        )
        parsed = parse_reply(reply.raw[:size])
        assert parsed.status == status.value
        return parsed

    def rate(self, flow: Flow, kind: int, now_ns: int = 0, **fields: int) -> int:
        event = Event(kind=kind, now_ns=now_ns & 0xFFFFFFFF, **fields)
        return int(self._library.pcc_rate(self.memory, ctypes.byref(flow), ctypes.byref(event)))

    @property
    def table(self) -> memoryview:
        """struct rate_table, which is the first member."""
        return memoryview(self.memory)[:TABLE_BYTES]


SETTINGS = Settings(unknown_steps=100, rtt_ns=8000, bdp_bytes=800_000, cnp_bytes=4096)


def bound(dpu: Dpu, rates: list[int], *, settings: Settings = SETTINGS, generation: int = 1) -> None:
    """Slot i is that of QP 0x100 + i."""
    bindings = [Binding(0x100 + slot, slot) for slot in range(len(rates))]
    assert dpu.send(bindings_message(generation, settings, bindings)).status == 0
    words = b"".join(rate.to_bytes(4, "little") for rate in rates)
    assert dpu.send(rates_message(generation, words)).status == 0


STANDIN_FAILURES = {
    "in use": 1,
    "not supported": 2,
    "invalid value": 3,
    "no memory": 4,
    "bad state": 5,
    "I/O failed": 6,
}
"""enum doca_error of tests/doca/doca_error.h."""
EVENT_CNP, EVENT_TX, EVENT_ACK, EVENT_NACK, EVENT_RTT = range(2, 7)
"""DOCA_PCC_DEV_EVNT_*, as tests/doca/doca_pcc_dev.h numbers them."""


def compile_standin(folder: Path) -> Path:
    """The host library as make -C dpu builds it, but on the stand-in, with the DPU's program in the same process."""
    sources = ["dpu/host/host.c", "dpu/device/device.c", *PLAIN, "tests/doca/standin.c"]
    return compile_library(
        folder,
        "libstandin_pcc.so",
        [REPOSITORY / source for source in sources],
        [REPOSITORY / "dpu", REPOSITORY / "ebpf/include", REPOSITORY / "tests/doca"],
        "-D_GNU_SOURCE",
    )
