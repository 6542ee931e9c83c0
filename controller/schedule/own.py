"""Schedules of the user's own: a Python file that defines SCHEDULE."""

from __future__ import annotations

import os

from controller.errors import InputError
from controller.schedule.plan import Schedule
from controller.user_file import blaming, compile_file, execute_file

__all__ = ["blaming", "check_file", "load_file"]


def check_file(name: str, base: str) -> str:
    """The absolute path of a file that is Python. Executes nothing. Raises InputError."""
    path = os.path.abspath(os.path.join(base, name))
    compile_file(path, "schedule")
    return path


def load_file(path: str) -> Schedule:
    """Executes the file. Raises InputError, with the line, where it does not give a schedule."""
    found = getattr(execute_file(path, "schedule"), "SCHEDULE", None)
    if not isinstance(found, Schedule):
        raise InputError(f"{path}: must define SCHEDULE, a controller.schedule.plan.Schedule")
    if not isinstance(found.name, str):
        raise InputError(f"{path}: SCHEDULE.name is no text: correct it")
    options = found.options
    if not isinstance(options, tuple) or not all(isinstance(option, str) for option in options):
        raise InputError(f"{path}: SCHEDULE.options is no tuple of texts, such as ('small', 'large'): correct it")
    return found
