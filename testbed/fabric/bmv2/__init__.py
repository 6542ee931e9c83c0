"""Switches of BMv2 (simple_switch_grpc), programmed over P4Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["P4INFO", "PROGRAM"]

_BUILD: Final = Path(__file__).resolve().parents[3] / "p4src" / "build"
P4INFO: Final = _BUILD / "fabric.p4info.txt"
"""The names and ids of the program's tables, as p4c writes them beside it."""
PROGRAM: Final = _BUILD / "fabric.json"
"""p4src/fabric.p4 as BMv2 loads it."""
