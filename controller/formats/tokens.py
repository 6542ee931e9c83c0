"""From the experts that tokens chose to the tokens that each rank gets."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError
from controller.formats.trace import AUTO, PER_RANK, Reading

__all__ = ["copies_note", "received"]

_BLOCK: Final = 1 << 18
"""Choices at a time: what is made of them stays in the processor's cache."""


def received(
    where: str, chosen: NDArray[Any], rank_of: NDArray[np.int64], ranks: int, *, per_rank: bool
) -> NDArray[np.int64]:
    """Tokens for each rank, [ranks].

    ``chosen`` [tokens, k] holds experts, -1 for none; ``rank_of`` [experts] says where each is. A token with two experts on
    one rank counts there twice, or once if ``per_rank``. Raises InputError for an expert that there is not.
    """
    experts = len(rank_of)
    table = np.append(rank_of, ranks).astype(np.int16)  # -1 indexes its last entry, which is nowhere
    total = np.zeros(ranks + 1, dtype=np.int64)
    tokens, k = chosen.shape
    if not k:
        return total[:ranks]
    block = max(1, _BLOCK // k)
    for first in range(0, tokens, block):
        part = chosen[first : first + block]
        low, high = int(part.min()), int(part.max())
        if low < -1:
            raise InputError(
                f"{where}: expert {low} is negative: experts count from 0, and -1 is none; write the file anew"
            )
        if high >= experts:
            raise InputError(
                f"{where}: expert {high} is not one of {experts}: give --experts-per-rank, --ranks or a --placement that has it "
                "(-1 is none)"
            )
        targets = table[part]
        if per_rank and k > 1:
            targets.sort(axis=1)
            again = targets[:, 1:] == targets[:, :-1]
            targets[:, 1:][again] = ranks
        total += np.bincount(targets.ravel(), minlength=ranks + 1)
    return total[:ranks]


def copies_note(where: str, reading: Reading, default: str) -> tuple[bool, str]:
    """Whether a token counts once a rank, and the note that says so."""
    per_rank = (default if reading.token_copies == AUTO else reading.token_copies) == PER_RANK
    how = "once (as DeepEP sends it)" if per_rank else "once for each of them (as split sizes count it)"
    other = "per-expert" if per_rank else "per-rank"
    return (
        per_rank,
        f"{where}: a token for two experts on one rank counts {how}; --token-copies {other} counts otherwise",
    )
