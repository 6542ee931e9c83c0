"""NICs that can pace: one backend a kind, all behind one interface and one rate table layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Capabilities", "Nic"]


@dataclass(frozen=True)
class Capabilities:
    """What a NIC can express."""

    steps: int
    """Steps of the line rate that a rate is rounded up to."""
    slots: int
    """Flows that can be paced at once."""


class Nic(Protocol):
    """One open NIC. Closing it leaves it pacing."""

    @property
    def capabilities(self) -> Capabilities:
        """Steps and slots, before any rate is computed."""

    def write_rates(self, steps: bytes) -> None:
        """Puts the rates of all slots in force at once; little-endian uint32, one a slot."""

    def read_rates(self) -> tuple[int, bytes]:
        """(generation, rates) as they are in force."""

    def close(self) -> None:
        """Gives up what this process holds of the NIC."""
