"""What the switches are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["KERNEL_OBJECT"]

KERNEL_OBJECT: Final = Path(__file__).with_name("objects") / "fabric.bpf.o"
"""The in-kernel fabric's programs, as make compiles them."""
