"""What the host and the DPU say to each other, as dpu/message.h lays it out. Neither NumPy nor DOCA is needed here."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, cast

from controller.errors import CannotRunError
from controller.nic.rate_table import RATE_SLOTS

if TYPE_CHECKING:
    from controller.nic import Steps

__all__ = [
    "MAX_BINDINGS",
    "QPN_MAX",
    "QPN_MIN",
    "RATE_BITS",
    "RATE_ONE",
    "REPLY_BYTES",
    "REQUEST_BYTES",
    "Binding",
    "Kind",
    "Reply",
    "Settings",
    "Status",
    "bindings_message",
    "parse_reply",
    "rates_message",
    "read_message",
]

MAGIC: Final = 0x43434649
VERSION: Final = 1
RATE_BITS: Final = 20
RATE_ONE: Final = 1 << RATE_BITS
"""Steps of a whole line rate on a DPU."""
MAX_BINDINGS: Final = 2048
QPN_MIN, QPN_MAX = 2, 0xFFFFFF
FALLBACK: Final = 1

_HEAD: Final = struct.Struct("<IHHIIQII")
"""struct pcc_head: magic, version, kind, bytes, checksum, generation, count, reserved."""
_CHECKSUM: Final = slice(12, 16)
_SETTINGS: Final = struct.Struct("<IIIIII")
"""struct pcc_settings."""
_BINDING: Final = struct.Struct("<IHH")
"""struct pcc_binding: qpn, function, slot."""
_REPLY: Final = struct.Struct("<IHHIIQQII")
"""struct pcc_reply: magic, version, status, accepted, refused, rates_generation, bindings_generation, count, reserved."""
REQUEST_BYTES: Final = _HEAD.size + _SETTINGS.size + MAX_BINDINGS * _BINDING.size
"""The largest message, which the mailbox is set up for."""
REPLY_BYTES: Final = _REPLY.size + 4 * RATE_SLOTS


class Kind(IntEnum):
    """Of a message: enum pcc_kind."""

    RATES = 1
    BINDINGS_AND_SETTINGS = 2
    READ = 3


class Status(IntEnum):
    """What became of a message: enum pcc_status."""

    OK = 0
    BAD_SIZE = 1
    BAD_MAGIC = 2
    BAD_VERSION = 3
    BAD_CHECKSUM = 4
    BAD_KIND = 5
    BAD_COUNT = 6
    STALE = 7
    BAD_RATE = 8
    BAD_BINDING = 9
    DUPLICATE = 10
    BAD_SETTINGS = 11


@dataclass(frozen=True)
class Binding:
    """The QP ``qpn`` of a NIC function uses a slot of the rate table: the rank of its receiver."""

    qpn: int
    slot: int
    function: int = 0


@dataclass(frozen=True)
class Settings:
    """What the DPU's program is told besides."""

    unknown_steps: int
    """Rate of a QP that is not bound or has no rate, 1 to RATE_ONE."""
    rtt_ns: int
    """Round trip without queues."""
    bdp_bytes: int
    """What the line sends in that time."""
    cnp_bytes: int
    """That one CNP or NACK stands for."""
    fallback: bool = False
    """Whether rates give way to CNPs and NACKs, and rise to R again."""


@dataclass(frozen=True)
class Reply:
    """The DPU's answer to a message."""

    status: Status
    accepted: int
    refused: int
    """Messages since the program was loaded."""
    rates_generation: int
    bindings_generation: int
    rates: bytes
    """In force, little-endian uint32 a slot: of the answer to read_message, else empty."""


def rates_message(generation: int, steps: Steps) -> bytes:
    """All slots' rates in one batch. Raises ValueError for more than RATE_SLOTS of them, or one above RATE_ONE."""
    body = bytes(memoryview(cast(Any, steps)).cast("B"))
    if len(body) % 4 or len(body) > 4 * RATE_SLOTS:
        raise ValueError(f"{len(body)} bytes are not the rates of at most {RATE_SLOTS} slots")
    if body and max(memoryview(body).cast("I")) > RATE_ONE:
        raise ValueError(f"a rate is above the line rate, which is {RATE_ONE} steps")
    return _message(Kind.RATES, generation, len(body) // 4, body)


def bindings_message(generation: int, settings: Settings, bindings: Iterable[Binding]) -> bytes:
    """All bindings and the settings; what was bound before and is not among them is bound no more."""
    packed = [_BINDING.pack(each.qpn, each.function, each.slot) for each in bindings]
    if len(packed) > MAX_BINDINGS:
        raise ValueError(f"{len(packed)} bindings are more than a message holds, {MAX_BINDINGS}")
    flags = FALLBACK if settings.fallback else 0
    body = _SETTINGS.pack(
        settings.unknown_steps, settings.rtt_ns, settings.bdp_bytes, settings.cnp_bytes, flags, 0
    ) + b"".join(packed)
    return _message(Kind.BINDINGS_AND_SETTINGS, generation, len(packed), body)


def read_message() -> bytes:
    """Asks for the rates in force."""
    return _message(Kind.READ, 0, 0, b"")


def _message(kind: Kind, generation: int, count: int, body: bytes) -> bytes:
    message = bytearray(_HEAD.pack(MAGIC, VERSION, kind, _HEAD.size + len(body), 0, generation, count, 0) + body)
    message[_CHECKSUM] = struct.pack("<I", zlib.crc32(message))
    return bytes(message)


def parse_reply(reply: bytes) -> Reply:
    """Raises CannotRunError for what is no reply of a program that speaks this version."""
    if len(reply) < _REPLY.size:
        raise CannotRunError(
            f"the DPU answered with {len(reply)} bytes, which are no reply of the program dpu/device: load that one"
        )
    magic, version, status, accepted, refused, rates, bindings, count, _ = _REPLY.unpack_from(reply)
    if magic != MAGIC or version != VERSION or status not in Status._value2member_map_:
        raise CannotRunError(
            f"the DPU's program speaks version {version} of the mailbox's messages, the host {VERSION}: build both from one source"
        )
    body = reply[_REPLY.size :]
    if len(body) != 4 * count:
        raise CannotRunError(f"the DPU's reply has {len(body)} bytes of rates, but says {count} rates: build it again")
    return Reply(Status(status), accepted, refused, rates, bindings, body)
