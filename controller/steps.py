"""From bytes to steps of the line rate: rounded up, exactly, and fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from controller import native

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ceil_into"]

_MAX_DENOMINATOR: Final = 2**61
"""Of what a remainder modulo 2^64 tells."""
_BEYOND: Final = 2.0**33
"""An estimate of so many steps, of at most 2^32, is no rounding error."""
_OFF: Final = 2.0**-50
"""Part of itself by which an estimate is off at most (controller/native/steps.h)."""


def ceil_into(steps: NDArray[np.uint32], amounts: NDArray[np.int64], numerator: int, denominator: int) -> None:
    """Sets ``steps`` to ceil(amount * numerator / denominator), whatever the size of the two.

    ``amounts``: contiguous, 0 or more. A double alone would round some results down. Raises ValueError where one
    is 2^32 or more.
    """
    scale = numerator / denominator
    if float(amounts.max(initial=0)) * scale >= _BEYOND:
        raise ValueError("a rate is above the line rate: T* is too short for the demand")
    if native.part is not None and denominator <= _MAX_DENOMINATOR:
        if not native.part.ceil_steps(amounts, numerator, denominator, scale, steps):
            raise ValueError("a rate is above the line rate: T* is too short for the demand")
        return
    if denominator <= _MAX_DENOMINATOR:
        # The remainder modulo 2^64 sets the estimate right: controller/native/steps.h has the proof.
        below = (amounts * scale).astype(np.int64)
        product = amounts.view(np.uint64) * np.uint64(numerator % 2**64)
        rest = (product - below.view(np.uint64) * np.uint64(denominator)).view(np.int64)
        exact = below + (rest > 0) + (rest > denominator)
    else:
        # The estimate is off by less than 2^-50 of it: where that leaves two answers, whole numbers of any size.
        estimate = amounts * scale
        exact = np.ceil(estimate * (1 + _OFF)).astype(np.int64)
        unsure = exact != np.ceil(estimate * (1 - _OFF))
        exact[unsure] = -(-amounts[unsure].astype(object) * numerator // denominator)
    if exact.max(initial=0) >= 2**32:
        raise ValueError("a rate is above the line rate: T* is too short for the demand")
    steps[...] = exact
