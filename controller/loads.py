"""What every port of an all-to-all carries: the sums of the matrix's rows and columns, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from controller import native
from controller.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PortLoads", "exact_total", "port_loads"]

_MOST: Final = 2**63 - 1


@dataclass(frozen=True)
class PortLoads:
    """In bytes on the wire, int64, one entry a host; what stays on a host is in neither."""

    sent: NDArray[np.int64]
    """Row sums."""
    received: NDArray[np.int64]
    """Column sums."""

    @property
    def largest(self) -> int:
        """M, the largest of all (paper, equation 3)."""
        return int(max(self.sent.max(), self.received.max()))


def port_loads(wire_bytes: NDArray[Any]) -> PortLoads:
    """Of an N x N matrix of bytes on the wire, row = sender, in any integer type. Its diagonal does not count.

    One pass over the matrix where the C part is built and the type is uint32 or int64 (another one is copied);
    NumPy gives the same numbers. Raises InputError for what is no such matrix, a negative entry, or a total above
    2^63 - 1.
    """
    matrix = _integers(wire_bytes)
    hosts = len(matrix)
    sent, received = np.empty(hosts, dtype=np.int64), np.empty(hosts, dtype=np.int64)
    if native.part is not None:
        seen = native.part.port_loads(matrix, sent, received)
    else:
        seen = _numpy_loads(matrix, sent, received)
    if seen < 0:
        raise InputError("the matrix has a negative entry: an amount to send is 0 or more")
    # No sum was beyond 2^63 if the largest entry that these bits allow, everywhere, is not.
    if (seen.bit_length() + 2 * hosts.bit_length() > 63) and exact_total(matrix) > _MOST:
        raise InputError("the total of the matrix is above 2^63 bytes: give smaller amounts")
    return PortLoads(sent, received)


def exact_total(amounts: NDArray[Any]) -> int:
    """Of int64 amounts of 0 or more that each fit, even where their sum does not."""
    return (int((amounts >> 32).sum()) << 32) + int((amounts & 0xFFFFFFFF).sum())


def _integers(given: NDArray[Any]) -> NDArray[Any]:
    """As contiguous uint32 or int64."""
    given = np.asarray(given)
    if given.ndim != 2 or given.shape[0] != given.shape[1] or not len(given):
        shape = " x ".join(str(n) for n in given.shape)
        raise InputError(f"the matrix is {shape}, but must be square: one row and one column a host")
    if given.dtype.kind not in "iu":
        raise InputError(f"the matrix holds {given.dtype}, but must hold whole bytes: give an integer type")
    if given.dtype == np.uint64 and int(given.max()) > _MOST:
        raise InputError("the total of the matrix is above 2^63 bytes: give smaller amounts")
    if given.dtype == np.uint32:
        return np.ascontiguousarray(given)
    return np.ascontiguousarray(given, dtype=np.int64)


def _numpy_loads(matrix: NDArray[Any], sent: NDArray[np.int64], received: NDArray[np.int64]) -> int:
    """What the C part does."""
    own = matrix.diagonal().astype(np.int64)
    matrix.sum(axis=1, dtype=np.int64, out=sent)
    matrix.sum(axis=0, dtype=np.int64, out=received)
    sent -= own
    received -= own
    return 0 if matrix.dtype == np.uint32 else int(np.bitwise_or.reduce(matrix, axis=None))
