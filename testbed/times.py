"""Times as the kernel programs and the engine take them: whole kernel nanoseconds, and bytes in 2^-32 of one."""

from __future__ import annotations

import math
from fractions import Fraction

__all__ = ["delay_ns", "fixed_byte_ns"]


def fixed_byte_ns(gbps: Fraction, dilation: Fraction) -> int:
    """Time of one byte in 2^-32 ns of kernel time (ebpf/include/wire_time.h).

    Rounded up, so that a packet whose time is a whole number of ns gets just that.
    """
    return math.ceil(8 * dilation / gbps * 2**32)


def delay_ns(fabric_ns: Fraction, dilation: Fraction) -> int:
    """A propagation delay in kernel time."""
    return round(fabric_ns * dilation)
