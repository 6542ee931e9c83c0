"""What the guest says to the host: lines that start with "@" on its standard output (machine.py reads them)."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["CONSOLE", "say"]

CONSOLE: Final = 1


def say(kind: str, text: str = "") -> None:
    """One line to the host."""
    os.write(CONSOLE, f"@{kind} {' '.join(text.split())}\n".encode())
