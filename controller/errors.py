"""The two ways in which a command ends early. Each carries the one line that the user reads."""

from __future__ import annotations

__all__ = ["CannotRunError", "InputError"]


class _OneLineError(Exception):
    """Whatever names of files, arrays and keys are in its message: what would not print is escaped as Python escapes it."""

    def __init__(self, message: str) -> None:
        super().__init__("".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in message))


class InputError(_OneLineError):
    """What the user gave cannot be used: names the file, the place in it and the remedy. Exit code 2."""


class CannotRunError(_OneLineError):
    """What was asked cannot run on this machine: says why, and what would make it run. Exit code 1."""
