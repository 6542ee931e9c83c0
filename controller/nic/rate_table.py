"""The rate table of one NIC, as ebpf/include/rate_table.h lays it out."""

from __future__ import annotations

import struct
from typing import Final, cast

from controller.errors import CannotRunError
from controller.nic import Steps

__all__ = ["RATE_ONE", "RATE_SLOTS", "TABLE_BYTES", "RateTable"]

RATE_SLOTS: Final = 1024
RATE_ONE: Final = 1 << 32
"""Steps of a whole line rate."""

_HEAD: Final = struct.Struct("<II")
_GENERATION: Final = struct.Struct("<Q")
_HALF_BYTES: Final = _GENERATION.size + 4 * RATE_SLOTS
TABLE_BYTES: Final = _HEAD.size + 2 * _HALF_BYTES
_READ_ATTEMPTS: Final = 1000


class RateTable:
    """Reads and writes a table in shared memory. One writer; any number of readers.

    The stores of a write keep their order on x86-64; a weaker memory model would need barriers.
    """

    def __init__(self, memory: memoryview) -> None:
        """``memory``: at least TABLE_BYTES, writable for a writer."""
        self._memory = memory.cast("B")[:TABLE_BYTES]

    @property
    def active(self) -> int:
        """Which half is in force."""
        return int(_HEAD.unpack_from(self._memory)[0]) & 1

    @property
    def generation(self) -> int:
        """How often rates were written; 0 before the first time."""
        return int(_GENERATION.unpack_from(self._memory, self._half(self.active))[0])

    def write(self, steps: Steps) -> None:
        """Puts all rates in force at once.

        ``steps``: little-endian uint32, one a slot, at most RATE_SLOTS; the slots after the last get 0.
        """
        data = memoryview(cast(bytes, steps)).cast("B")  # an array is a buffer too: its type says so from 3.12 on
        if len(data) > 4 * RATE_SLOTS:
            raise ValueError(f"{len(data) // 4} rates do not fit into {RATE_SLOTS} slots")
        target = 1 - self.active
        start = self._half(target)
        body = start + _GENERATION.size
        generation = self.generation + 1
        _GENERATION.pack_into(self._memory, start, 0)
        self._memory[body : body + len(data)] = data
        self._memory[body + len(data) : start + _HALF_BYTES] = bytes(4 * RATE_SLOTS - len(data))
        _GENERATION.pack_into(self._memory, start, generation)
        _HEAD.pack_into(self._memory, 0, target, 0)

    def read(self) -> tuple[int, bytes]:
        """(generation, RATE_SLOTS little-endian uint32), never of two writes at once."""
        for _ in range(_READ_ATTEMPTS):
            start = self._half(self.active)
            before = int(_GENERATION.unpack_from(self._memory, start)[0])
            body = bytes(self._memory[start + _GENERATION.size : start + _HALF_BYTES])
            after = int(_GENERATION.unpack_from(self._memory, start)[0])
            if before == after and (before or not any(body)):
                return before, body
        raise CannotRunError("the rate table was rewritten during every attempt to read it: write it less often")

    @staticmethod
    def _half(index: int) -> int:
        return _HEAD.size + index * _HALF_BYTES
