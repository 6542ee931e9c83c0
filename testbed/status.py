"""How far long work is, on stderr: a line that is rewritten on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Final

__all__ = ["StatusLine"]

_TERMINAL_EVERY_S: Final = 0.2


class StatusLine:
    """Not for several threads at once: lock around it."""

    def __init__(self, every_s: float, *, quiet: bool = False) -> None:
        """``every_s``: between two lines where they are not rewritten, the first as late."""
        self._terminal = sys.stderr.isatty()
        self._every_s = _TERMINAL_EVERY_S if self._terminal else every_s
        self._next_s = time.monotonic() + (0 if self._terminal else every_s)
        self._quiet = quiet

    def due(self) -> bool:
        """Whether to show something now; after that not for a while."""
        now_s = time.monotonic()
        if self._quiet or now_s < self._next_s:
            return False
        self._next_s = now_s + self._every_s
        return True

    def show(self, text: str) -> None:
        """In place of what is there."""
        if self._terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clears the line."""
        if self._terminal and not self._quiet:
            self.show("")
