"""What the switches are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["KERNEL_OBJECT", "KERNEL_OBJECTS", "PLAIN_OBJECT"]

KERNEL_OBJECT: Final = Path(__file__).with_name("objects") / "fabric.bpf.o"
"""The in-kernel fabric's programs, as make compiles them."""
PLAIN_OBJECT: Final = KERNEL_OBJECT.with_name("plain.bpf.o")
"""Those of them that most runs need, with fewer instructions a hop: ebpf/fabric/plain.bpf.c."""
KERNEL_OBJECTS: Final = (KERNEL_OBJECT, PLAIN_OBJECT)
