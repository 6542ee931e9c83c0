"""The rate table of one NIC, as ebpf/include/rate_table.h lays it out."""

from __future__ import annotations

import platform
from typing import Final, cast

from controller import native
from controller.errors import CannotRunError
from controller.nic import Steps

__all__ = ["RATE_ONE", "RATE_SLOTS", "TABLE_BYTES", "RateTable"]

RATE_SLOTS: Final = 1024
RATE_ONE: Final = 1 << 32
"""Steps of a whole line rate."""

_WORD: Final = 8
"""Of the head, and of a generation. Each is stored as one word: struct.pack_into would store its bytes one by one."""
_HALF_BYTES: Final = _WORD + 4 * RATE_SLOTS
TABLE_BYTES: Final = _WORD + 2 * _HALF_BYTES
_READ_ATTEMPTS: Final = 1000
_ORDERED: Final = ("x86_64", "AMD64", "i686")
"""Machines that let nobody see stores in another order than they were made."""


class RateTable:
    """Reads and writes a table in shared memory. One writer; any number of readers.

    In C where that was built (ebpf/include/rate_table_io.h), with the order of its stores on any machine. Without
    it the stores keep their order on x86-64; on other machines, which may reorder them, it is refused.
    """

    def __init__(self, memory: memoryview) -> None:
        """``memory``: at least TABLE_BYTES, aligned to 8, writable for a writer."""
        self._memory = memory.cast("B")[:TABLE_BYTES]
        self._words = self._memory.cast("Q")
        if native.part is None and platform.machine() not in _ORDERED:
            raise CannotRunError(
                f"on {platform.machine()} rates are written by the controller's C part ({native.MISSING}): "
                "apt-get install gcc python3-dev, and install incastfree again"
            )

    @property
    def active(self) -> int:
        """Which half is in force."""
        return self._words[0] & 1

    @property
    def generation(self) -> int:
        """How often rates were written; 0 before the first time."""
        return self._words[self._half(self.active) // _WORD]

    def write(self, steps: Steps) -> None:
        """Puts all rates in force at once.

        ``steps``: little-endian uint32, one a slot, at most RATE_SLOTS; the slots after the last get 0. Raises
        ValueError, with nothing changed, where there are more.
        """
        if native.part is not None:
            native.part.write_table(self._memory, steps)
        else:
            self._write(steps)

    def read(self) -> tuple[int, bytes]:
        """(generation, RATE_SLOTS little-endian uint32), never of two writes at once."""
        found = native.part.read_table(self._memory) if native.part is not None else self._read()
        if found is None:
            raise CannotRunError("the rate table was rewritten during every attempt to read it: write it less often")
        return cast(tuple[int, bytes], found)

    def _write(self, steps: Steps) -> None:
        """What the C part does, where stores keep their order."""
        data = memoryview(cast(bytes, steps)).cast("B")  # an array is a buffer too: its type says so from 3.12 on
        if len(data) > 4 * RATE_SLOTS:
            raise ValueError(f"{len(data) // 4} rates do not fit into {RATE_SLOTS} slots")
        if len(data) % 4:
            raise ValueError("a rate has 4 bytes")
        target = 1 - self.active
        start = self._half(target)
        body = start + _WORD
        generation = self.generation + 1
        self._words[start // _WORD] = 0
        self._memory[body : body + len(data)] = data
        self._memory[body + len(data) : start + _HALF_BYTES] = bytes(4 * RATE_SLOTS - len(data))
        self._words[start // _WORD] = generation
        self._words[0] = target

    def _read(self) -> tuple[int, bytes] | None:
        for _ in range(_READ_ATTEMPTS):
            start = self._half(self.active)
            before = self._words[start // _WORD]
            body = bytes(self._memory[start + _WORD : start + _HALF_BYTES])
            after = self._words[start // _WORD]
            if before == after and (before or not any(body)):
                return before, body
        return None

    @staticmethod
    def _half(index: int) -> int:
        return _WORD + index * _HALF_BYTES
