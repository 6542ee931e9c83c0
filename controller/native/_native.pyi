from typing import Any

def port_loads(matrix: Any, sent: Any, received: Any, /) -> int:
    """Row and column sums of a square C-contiguous uint32 or int64 matrix, without its diagonal, into int64 arrays.

    Returns 0 for uint32; for int64 all entries ORed together: negative if one is. Sums of int64 are modulo 2^64.
    """

def ceil_steps(amounts: Any, numerator: int, denominator: int, scale: float, steps: Any, /) -> bool:
    """ceil(amount * numerator / denominator) of int64 amounts into uint32; False where one does not fit.

    ``denominator`` is at most 2^61, ``scale`` is numerator / denominator.
    """

def rank_steps(row: Any, received: Any, largest_row: int, usable: int, steps: Any, /) -> bool:
    """ceil(row * usable / M) into uint32, M the largest of ``received`` and ``largest_row``; False for unsound sums."""

def write_table(memory: Any, steps: Any, /) -> None:
    """Puts rates in force in a rate table (ebpf/include/rate_table_io.h). Raises ValueError for too many."""

def read_table(memory: Any, /) -> tuple[int, bytes] | None:
    """(generation, rates); None if every attempt was overtaken by a writer."""
