"""The doca backend: rates in a BlueField-3, by a program of ours for DOCA PCC (dpu/). docs/doca.md says what it needs.

Nothing here has been run on hardware. The C library underneath is built where NVIDIA's SDK is, by ``make -C dpu``.
A DPU paces as long as the process that loaded its program lives: unlike a network interface, nothing stays.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from controller.errors import CannotRunError, InputError
from controller.nic import Capabilities, Nic, Steps
from controller.nic.doca_message import (
    RATE_ONE,
    REPLY_BYTES,
    Binding,
    Reply,
    Settings,
    Status,
    bindings_message,
    parse_reply,
    rates_message,
    read_message,
)
from controller.nic.rate_table import RATE_SLOTS

__all__ = [
    "LIBRARY",
    "THREADS",
    "DocaNic",
    "Library",
    "State",
    "attach",
    "default_settings",
    "line_rate_bps",
    "load",
    "unload",
]

LIBRARY: Final = Path(__file__).with_name("objects") / "libincastfree_pcc.so"
THREADS: Final = (*range(176, 188), *range(192, 204), *range(208, 220), *range(224, 236), 240)
"""Execution units of the DPA that the program runs on: those of NVIDIA's public sample."""
UPDATE_NS: Final = 13_200_000
_WHY_BYTES: Final = 512
_INFINIBAND: Final = Path("/sys/class/infiniband")
_NO_DEVICE: Final = 1
_STANDIN: Final = "incastfree_standin"
"""A symbol that the stand-in of the tests has (tests/doca)."""


class State(IntEnum):
    """Of the DPU's program: enum pcc_host_state of dpu/host/host.h."""

    ACTIVE = 0
    STANDBY = 1
    DEACTIVATED = 2
    ERROR = 3


@dataclass(frozen=True)
class Library:
    """The C library. Raises CannotRunError where it was not built, or is the tests' stand-in and not asked for."""

    path: Path = LIBRARY
    standin: bool = False
    """For tests alone: that it is the stand-in of tests/doca, which drives no hardware."""
    handle: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise CannotRunError(
                f"{self.path} was not built: run make -C dpu where NVIDIA's DOCA SDK is (docs/doca.md)"
            )
        try:
            handle = ctypes.CDLL(str(self.path))
        except OSError as error:
            raise CannotRunError(f"{self.path} cannot be loaded ({error}): install NVIDIA's DOCA run time") from None
        if hasattr(handle, _STANDIN) is not self.standin:
            raise CannotRunError(f"{self.path} is the stand-in of the tests, which drives no DPU: run make -C dpu")
        object.__setattr__(self, "handle", handle)


def default_settings(line_rate: Fraction, *, rtt_ns: int = 10_000, fallback: bool = False) -> Settings:
    """For NICs of ``line_rate`` bit/s: unknown QPs at 1/256 of it, which is what DOCA gives a new flow."""
    return Settings(
        unknown_steps=RATE_ONE >> 8,
        rtt_ns=rtt_ns,
        bdp_bytes=max(1, int(line_rate * rtt_ns / 8 / 10**9)),
        cnp_bytes=4096,
        fallback=fallback,
    )


class DocaNic(Nic):
    """One DPU that runs our program. A slot's rate 0 means the bounded rate of unknown QPs: a DPU knows no 0."""

    def __init__(self, device: str, library: Library, context: ctypes.c_void_p) -> None:
        """Use load."""
        self.device = device
        self._library = library.handle
        self._context: ctypes.c_void_p | None = context
        self._one_at_a_time = threading.RLock()
        self._rates_generation = 0
        self._bindings_generation = 0

    @classmethod
    def load(
        cls,
        device: str,
        line_rate: Fraction,
        *,
        bindings: Iterable[Binding] = (),
        settings: Settings | None = None,
        threads: Sequence[int] = THREADS,
        library: Library | None = None,
    ) -> DocaNic:
        """Loads the program onto a device such as mlx5_0 and tells it which QP goes to whom.

        Raises InputError for a device that does not exist or runs no programs, and CannotRunError, with nothing left
        behind, without the library, or where the program cannot start or another one is active.
        """
        library = library or Library()
        context = ctypes.c_void_p()
        units = (ctypes.c_uint32 * len(threads))(*threads)
        why = ctypes.create_string_buffer(_WHY_BYTES)
        failure = library.handle.pcc_host_open(
            device.encode(), units, len(threads), ctypes.byref(context), why, ctypes.c_size_t(_WHY_BYTES)
        )
        if failure == _NO_DEVICE:
            raise InputError(f"--dev {device}: {_text(why)}; give a BlueField-3 such as mlx5_0 (see ibdev2netdev)")
        if failure:
            raise CannotRunError(f"{device}: {_text(why)}; see docs/doca.md")
        nic = cls(device, library, context)
        try:
            nic.write_bindings(bindings, settings or default_settings(line_rate))
        except BaseException:
            nic.close()
            raise
        return nic

    @property
    def capabilities(self) -> Capabilities:
        """2^20 steps; an update is one mailbox send, whatever it holds."""
        return Capabilities(
            steps=RATE_ONE,
            slots=RATE_SLOTS,
            update_ns=UPDATE_NS,
            update_basis="published",
            update_source="AtlanticBob/hpft-implementation, one blocking doca_pcc_mailbox_send on a BlueField-3, p50",
        )

    @property
    def state(self) -> State:
        """Of the DPU's program. Raises CannotRunError where it cannot be asked."""
        state = ctypes.c_uint32()
        self._call("pcc_host_state", ctypes.byref(state))
        return State(state.value)

    def write_bindings(self, bindings: Iterable[Binding], settings: Settings) -> None:
        """Which QP has the rate of which slot; what was bound before and is not among them is bound no more."""
        with self._one_at_a_time:
            generation = self._bindings_generation + 1
            self._send(bindings_message(generation, settings, bindings))
            self._bindings_generation = generation

    def write_rates(self, steps: Steps) -> None:
        """All in one message. Flows take their new rate at their next event, and owe what they owed."""
        with self._one_at_a_time:
            generation = self._rates_generation + 1
            self._send(rates_message(generation, steps))
            self._rates_generation = generation

    def read_rates(self) -> tuple[int, bytes]:
        """(generation, little-endian uint32 a slot), as the DPU has them."""
        reply = self._send(read_message())
        return reply.rates_generation, reply.rates

    def close(self) -> None:
        """Stops the program, and with it the pacing: flows go back to the NIC's own congestion control."""
        with self._one_at_a_time:
            context, self._context = self._context, None
            if context is None:
                return
            why = ctypes.create_string_buffer(_WHY_BYTES)
            failure = self._library.pcc_host_close(context, why, ctypes.c_size_t(_WHY_BYTES))
        if failure:
            raise CannotRunError(f"{self.device}: {_text(why)}; the DPU may need a reset")

    def _send(self, message: bytes) -> Reply:
        """Raises CannotRunError where it is not put in force."""
        reply = ctypes.create_string_buffer(REPLY_BYTES)
        size = ctypes.c_uint32()
        self._call("pcc_host_send", message, len(message), reply, REPLY_BYTES, ctypes.byref(size))
        parsed = parse_reply(reply.raw[: size.value])
        if parsed.status is not Status.OK:
            raise CannotRunError(
                f"{self.device}: the DPU refused a message ({parsed.status.name.lower().replace('_', ' ')}); what was in force "
                "stays"
            )
        return parsed

    def _call(self, function: str, *arguments: Any) -> None:
        with self._one_at_a_time:
            if self._context is None:
                raise CannotRunError(f"{self.device} was closed: load it again")
            why = ctypes.create_string_buffer(_WHY_BYTES)
            failure = getattr(self._library, function)(self._context, *arguments, why, ctypes.c_size_t(_WHY_BYTES))
        if failure:
            raise CannotRunError(f"{self.device}: {_text(why)}; see docs/doca.md")


load = DocaNic.load


def attach(device: str) -> DocaNic:
    """Always raises CannotRunError: a DPU's program belongs to the process that loaded it."""
    raise CannotRunError(f"{device}: a DPU paces for the process that loaded it alone, and cannot be attached: load it")


def unload(device: str) -> None:
    """Always raises CannotRunError: it ends with its process."""
    raise CannotRunError(f"{device}: the DPU's program ends with the process that loaded it: end that one")


def line_rate_bps(device: str) -> Fraction:
    """What the RDMA device's first port says. Raises InputError where there is none, or it says nothing."""
    if not (_INFINIBAND / device).is_dir():
        raise InputError(f"--dev {device}: there is no such RDMA device; see rdma link")
    try:
        words = (_INFINIBAND / device / "ports" / "1" / "rate").read_text().split()
        speed = Fraction(words[0])
    except (OSError, ValueError, IndexError):
        speed = Fraction(0)
    if speed <= 0:
        raise InputError(f"{device} does not say its speed: give it with --link-gbps")
    return speed * 10**9


def _text(why: ctypes.Array[ctypes.c_char]) -> str:
    return why.value.decode(errors="replace")
