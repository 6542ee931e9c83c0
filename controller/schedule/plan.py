"""What a schedule decides."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["Discipline", "Plan"]


class Discipline(IntEnum):
    """How a NIC picks its next packet; the values are those of testbed/engine/sender.h."""

    ROUND_ROBIN = 0
    PACED = 1


@dataclass(frozen=True)
class Plan:
    """``steps`` is N x N, uint32: the rate of flow (i, j) in steps of sender i's line rate; 0 is unpaced."""

    discipline: Discipline
    steps: NDArray[np.uint32]
