"""The mailbox's layout: C and Python hold one, and neither changes unnoticed."""

from __future__ import annotations

import re
import struct
import subprocess
import zlib

import pytest

from controller.errors import CannotRunError
from controller.nic import doca_message as message
from controller.nic.doca_message import Binding, Settings, Status, bindings_message, parse_reply, rates_message
from controller.nic.rate_table import RATE_SLOTS
from tests.conftest import REPOSITORY
from tests.unit.conftest import Compile

HEADER = REPOSITORY / "dpu/message.h"
STRUCTS = {
    "pcc_head": message._HEAD,
    "pcc_settings": message._SETTINGS,
    "pcc_binding": message._BINDING,
    "pcc_reply": message._REPLY,
}
MEMBERS = {
    "pcc_head": "magic version kind bytes checksum generation count reserved",
    "pcc_settings": "unknown_steps rtt_ns bdp_bytes cnp_bytes flags reserved",
    "pcc_binding": "qpn function slot",
    "pcc_reply": "magic version status accepted refused rates_generation bindings_generation count reserved",
}
"""In the order in which doca_message.py packs them."""
CONSTANTS = {
    "PCC_MAGIC": message.MAGIC,
    "PCC_VERSION": message.VERSION,
    "PCC_RATE_BITS": message.RATE_BITS,
    "PCC_RATE_ONE": message.RATE_ONE,
    "PCC_BINDINGS": message.MAX_BINDINGS,
    "PCC_QPN_MIN": message.QPN_MIN,
    "PCC_QPN_MAX": message.QPN_MAX,
    "PCC_FALLBACK": message.FALLBACK,
    "PCC_REQUEST_BYTES": message.REQUEST_BYTES,
    "PCC_REPLY_BYTES": message.REPLY_BYTES,
    "RATE_SLOTS": RATE_SLOTS,
    **{f"PCC_{kind.name}": kind for kind in message.Kind},
    **{f"PCC_{status.name}": status for status in Status},
    "PCC_STATUSES": len(Status),
}
SETTINGS = Settings(unknown_steps=4096, rtt_ns=8170, bdp_bytes=817_000, cnp_bytes=4096, fallback=True)


def members(name: str) -> list[str]:
    """As dpu/message.h declares them, without arrays of no size."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    body = re.search(rf"^struct {name} {{(.*?)^}};", text, re.DOTALL | re.MULTILINE)
    assert body
    declared = re.findall(r"(?:struct )?\w+ ([\w, \[\]]+);", body.group(1))
    return [member.strip() for line in declared for member in line.split(",") if "[]" not in member]


@pytest.fixture(scope="module")
def layout(compile_c: Compile) -> dict[str, int]:
    """Offsets of all members, sizes and constants, as the C compiler sees them."""
    lines = ["#include <stdio.h>", f'#include "{HEADER}"', "int main(void) {"]
    for name in STRUCTS:
        lines += [f'printf("{name}.{each} %zu\\n", offsetof(struct {name}, {each}));' for each in members(name)]
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
    lines += [f'printf("{name} %llu\\n", (unsigned long long){name});' for name in CONSTANTS]
    program = compile_c("\n".join([*lines, "return 0; }"]))
    output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in (line.split() for line in output.splitlines())}


@pytest.mark.parametrize("name", STRUCTS)
def test_offsets(layout: dict[str, int], name: str) -> None:
    """Each member lies where Python's format puts it."""
    python, at = STRUCTS[name], 0
    formats = re.findall(r"[A-Z]", python.format.lstrip("<"))
    assert members(name) == MEMBERS[name].split()
    assert len(formats) == len(members(name))
    for member, code in zip(members(name), formats, strict=True):
        assert layout[f"{name}.{member}"] == at, member
        at += struct.calcsize(f"<{code}")
    assert layout[name] == at == python.size


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(layout: dict[str, int], name: str) -> None:
    assert layout[name] == CONSTANTS[name]


def test_golden_messages() -> None:
    """In bytes. A change of either side's layout needs a new version, and new bytes here."""
    assert rates_message(3, struct.pack("<3I", 1, 0x12345, 1 << 20)).hex(" ", 4) == (
        "49464343 01000100 2c000000 3265c659 03000000 00000000 03000000 00000000 01000000 45230100 00001000"
    )
    bindings = [Binding(0x000123, 7), Binding(0xFFFFFF, 1023, function=2)]
    assert bindings_message(1, SETTINGS, bindings).hex(" ", 4) == (
        "49464343 01000200 48000000 5c8f75eb 01000000 00000000 02000000 00000000 "
        "00100000 ea1f0000 68770c00 00100000 01000000 00000000 23010000 00000700 ffffff00 0200ff03"
    )
    assert message.read_message().hex(" ", 4) == (
        "49464343 01000300 20000000 a6fd04d5 00000000 00000000 00000000 00000000"
    )


def test_the_checksum_is_that_of_the_message_without_it() -> None:
    sent = bytearray(rates_message(9, b"\1\0\0\0"))
    (crc,) = struct.unpack_from("<I", sent, 12)
    sent[12:16] = bytes(4)
    assert zlib.crc32(sent) == crc


def test_what_the_layout_cannot_hold() -> None:
    with pytest.raises(ValueError, match="above the line rate"):
        rates_message(1, struct.pack("<I", (1 << 20) + 1))
    with pytest.raises(ValueError, match="at most 1024 slots"):
        rates_message(1, bytes(4 * RATE_SLOTS + 4))
    with pytest.raises(ValueError, match="at most 1024 slots"):
        rates_message(1, b"123")
    with pytest.raises(ValueError, match="2049 bindings are more"):
        bindings_message(1, SETTINGS, [Binding(16 + number, 0) for number in range(2049)])


def test_replies_that_are_none() -> None:
    good = message._REPLY.pack(message.MAGIC, 1, 0, 1, 0, 1, 1, 0, 0)
    assert parse_reply(good).status is Status.OK
    for reply, words in (
        (b"", "0 bytes"),
        (message._REPLY.pack(message.MAGIC, 2, 0, 1, 0, 1, 1, 0, 0), "version 2"),
        (message._REPLY.pack(0, 1, 0, 1, 0, 1, 1, 0, 0), "one source"),
        (message._REPLY.pack(message.MAGIC, 1, 99, 1, 0, 1, 1, 0, 0), "one source"),
        (message._REPLY.pack(message.MAGIC, 1, 0, 1, 0, 1, 1, 5, 0), "5 rates"),
    ):
        with pytest.raises(CannotRunError, match=words):
            parse_reply(reply)
