"""What the guest says to the host: lines that start with "@" on its standard output (machine.py reads them)."""

from __future__ import annotations

import contextlib
import errno
import os
import traceback
from collections.abc import Iterator
from typing import Final

from controller.errors import CannotRunError, InputError

__all__ = ["CONSOLE", "reported", "say"]

CONSOLE: Final = 1


def say(kind: str, text: str = "") -> None:
    """One line to the host."""
    os.write(CONSOLE, f"@{kind} {' '.join(text.split())}\n".encode())


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Whatever ends the block early is said, and goes no further."""
    try:
        yield
    except InputError as error:
        say("input", str(error))
    except BaseException as error:  # noqa: BLE001 (the machine is to say why it ends, whatever it was)
        if "INCASTFREE_DEBUG" in os.environ:
            traceback.print_exc()
        say("error", _reason(error))


def _reason(error: BaseException) -> str:
    """In one line, for the user."""
    if isinstance(error, CannotRunError):
        return str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the temporary folder is full: set TMPDIR to one with room"
    return f"{type(error).__name__}: {error}"
