"""htsim's connection matrices (``.cm``), read and written (ultraethernet/uet-htsim).

Lines: ``Nodes n``, ``Connections n``, ``Triggers n``, ``Failures n``, then ``src->dst id N start T size B`` with options, and
``trigger``, ``failure``. Sizes are payload bytes. Times are a trap: its reader takes picoseconds, its writer writes microseconds.
Here nothing is made of a start but a note; a file that is written starts all at 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError
from controller.formats.files import open_file
from controller.formats.matrices import refuse_options
from controller.formats.trace import MAX_RANKS, Place, Reading, Trace, counted, refuse_given

__all__ = ["is_text", "read", "written"]

_HEADERS: Final = ("nodes", "connections", "triggers", "failures")
_OPTIONS: Final = ("id", "start", "size", "trigger", "send_done_trigger", "recv_done_trigger", "prio", "msg")
_LARGEST: Final = 2**31 - 1
"""Where htsim's reader stops."""


def is_text(head: bytes) -> bool:
    """Whether the first line that is no comment is ``Nodes n``."""
    for line in head.splitlines():
        words = line.partition(b"#")[0].split()
        if words:
            return words[0].lower() == b"nodes"
    return False


def read(path: Path, files: Sequence[Path], reading: Reading) -> Trace:
    """All connections as one demand, in payload bytes. Raises InputError."""
    if len(files) != 1:
        raise InputError(f"{path} is {len(files)} files, but a connection matrix is one: name it")
    refuse_options(path, reading)
    refuse_given(path, reading, "is one matrix", "steps", "layers")
    counts: dict[str, int] = {}
    found = {"connections": 0, "triggers": 0, "failures": 0}
    matrix: NDArray[np.int64] | None = None
    starts: set[str] = set()
    triggered = large = 0
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            try:
                words = line.partition(b"#")[0].decode("ascii").split()
            except UnicodeDecodeError:
                raise InputError(f"{path}: line {number} is not text: give a connection matrix") from None
            if not words:
                continue
            where, first = f"{path}: line {number}", words[0].lower()
            if first in _HEADERS:
                if len(words) != 2 or first in counts:
                    raise InputError(f"{where}: write {words[0][:20]} once, and one number after it")
                counts[first] = _number(where, words[0], words[1])
                if first == "nodes":
                    if not 1 <= counts[first] <= MAX_RANKS:
                        raise InputError(f"{where}: {counts[first]} nodes: 1 to {MAX_RANKS} are supported")
                    matrix = np.zeros((counts[first], counts[first]), dtype=np.int64)
                continue
            if first in ("trigger", "failure"):
                found[f"{first}s"] += 1
                continue
            source, arrow, destination = words[0].partition("->")
            if not arrow:
                raise InputError(
                    f"{where}: {words[0][:20]!r} is not known: a connection is src->dst id N start T size B"
                )
            if matrix is None:
                raise InputError(f"{where} comes before Nodes: give the number of nodes first")
            options = dict(zip(words[1::2], words[2::2], strict=False))
            if len(words) % 2 == 0 or len(options) != len(words) // 2 or not set(options) <= set(_OPTIONS):
                raise InputError(f"{where}: after src->dst come pairs of a name and a value: {', '.join(_OPTIONS)}")
            if "size" not in options:
                raise InputError(f"{where} has no size: give it in bytes")
            ends = [_number(where, "a node", each) for each in (source, destination)]
            for end in ends:
                if end >= len(matrix):
                    raise InputError(f"{where}: node {end} is not one of {len(matrix)}: nodes count from 0")
            size = _number(where, "size", options["size"])
            large += size > _LARGEST
            if int(matrix[ends[0], ends[1]]) + size >= 2**63:
                raise InputError(f"{where}: the sizes add up to 2^63 and more: give smaller ones")
            matrix[ends[0], ends[1]] += size
            found["connections"] += 1
            triggered += "trigger" in options
            if "start" in options:
                starts.add(options["start"])
    if matrix is None:
        raise InputError(f"{path} has no Nodes: it is no connection matrix")
    for name, there in found.items():
        if name in counts and counts[name] != there:
            raise InputError(
                f"{path}: {name.capitalize()} says {counts[name]}, but there are {there}: write the file anew"
            )
    notes = []
    if len(starts) > 1 or triggered:
        notes.append(
            f"{path}: {counted(len(starts), 'different start')} and {counted(triggered, 'connection')} with a trigger are taken as one demand that starts at once"
        )
    if found["failures"]:
        notes.append(f"{path}: its failures are left out: give link_failure")
    if large:
        notes.append(f"{path}: {counted(large, 'size')} above 2^31 - 1, where htsim's own reader stops")
    demand = matrix
    return Trace("htsim", "bytes", (Place(),), lambda _: demand.copy(), tuple(notes))


def _number(where: str, what: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20) or int(text) >= 2**63:
        raise InputError(f"{where}: {what[:20]} is {text[:20]!r}: give a whole number of 0 or more, below 2^63")
    return int(text)


def written(name: str, payload_bytes: NDArray[np.int64]) -> str:
    """A connection matrix of these bytes, N x N, that htsim's reader takes; all start at 0.

    ``name`` is what an error calls it. Raises InputError for what its reader cannot hold.
    """
    above = np.argwhere(payload_bytes > _LARGEST)
    if len(above):
        row, column = (int(n) for n in above[0])
        raise InputError(
            f"{name}: rank {row} sends {payload_bytes[row, column]} bytes to rank {column}: htsim's reader stops at 2^31 - 1; give less"
        )
    source, destination = np.nonzero(payload_bytes)
    lines = [f"Nodes {len(payload_bytes)}", f"Connections {len(source)}"]
    lines += [
        f"{i}->{j} id {number} start 0 size {payload_bytes[i, j]}"
        for number, (i, j) in enumerate(zip(source.tolist(), destination.tolist(), strict=True), 1)
    ]
    return "\n".join(lines) + "\n"
