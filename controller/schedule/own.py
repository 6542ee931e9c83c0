"""Schedules of the user's own: a Python file that defines SCHEDULE."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import types
from collections.abc import Iterator

from controller.errors import CannotRunError, InputError
from controller.schedule.plan import Schedule

__all__ = ["blaming", "check_file", "load_file"]


def check_file(name: str, base: str) -> str:
    """The absolute path of a file that is Python. Executes nothing. Raises InputError."""
    path = os.path.abspath(os.path.join(base, name))
    _compile(path)
    return path


def load_file(path: str) -> Schedule:
    """Executes the file. Raises InputError, with the line, where it does not give a schedule."""
    code = _compile(path)
    # By hand, because the import system would leave a __pycache__ beside the user's file.
    module = types.ModuleType(f"incastfree_schedule_{os.path.basename(path)[:-3]}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses look a class's module up
    with blaming(path, "cannot be imported"):
        exec(code, module.__dict__)
    found = getattr(module, "SCHEDULE", None)
    if not isinstance(found, Schedule):
        raise InputError(f"{path}: must define SCHEDULE, a controller.schedule.plan.Schedule")
    return found


@contextlib.contextmanager
def blaming(path: str, what: str) -> Iterator[None]:
    """Where a user's file fails, an InputError says which one, and the line."""
    try:
        yield
    except (InputError, CannotRunError):
        raise
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        place = f"{path}, line {lines[-1]}" if lines else path
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{place}: {what} ({reason}): correct it") from error


def _compile(path: str) -> types.CodeType:
    try:
        with open(path, "rb") as file:
            source = file.read()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path!r} cannot be read ({reason}): give schedule a readable Python file") from None
    try:
        # The source's own future imports count, not those of this file.
        return compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        place = f", line {error.lineno}" if error.lineno else ""
        raise InputError(f"{path}{place}: not valid Python ({error.msg}): correct it") from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise InputError(f"{path}: not valid Python ({error}): correct it") from None
