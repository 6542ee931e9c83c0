"""The two ways in which a command ends early. Each carries the one line that the user reads."""

from __future__ import annotations

__all__ = ["CannotRunError", "InputError"]


class InputError(Exception):
    """What the user gave cannot be used: names the file, the place in it and the remedy. Exit code 2."""


class CannotRunError(Exception):
    """What was asked cannot run on this machine: says why, and what would make it run. Exit code 1."""
