"""Python files that users write: a schedule, a congestion control. Checked without running them, then executed by hand."""

# No NumPy here: in a small virtual machine its import costs more than a run.
from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Iterator

from controller.errors import CannotRunError, InputError

__all__ = ["blaming", "compile_file", "execute_file"]


def compile_file(path: str, key: str) -> types.CodeType:
    """Executes nothing. Raises InputError for what is no readable Python; ``key`` is what the user gave the file for."""
    try:
        with open(path, "rb") as file:
            source = file.read()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path!r} cannot be read ({reason}): give {key} a readable Python file") from None
    try:
        # The source's own future imports count, not those of this file.
        return compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        place = f", line {error.lineno}" if error.lineno else ""
        raise InputError(f"{path}{place}: not valid Python ({error.msg}): correct it") from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise InputError(f"{path}: not valid Python ({error}): correct it") from None


def execute_file(path: str, key: str) -> types.ModuleType:
    """The module that the file makes. Raises InputError, with the line, where it fails."""
    code = compile_file(path, key)
    # By hand, because the import system would leave a __pycache__ beside the user's file.
    module = types.ModuleType(f"incastfree_{key}_{os.path.splitext(os.path.basename(path))[0]}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses and pickle look a class's module up
    with blaming(path, "cannot be imported"):
        exec(code, module.__dict__)
    return module


@contextlib.contextmanager
def blaming(path: str, what: str) -> Iterator[None]:
    """Where a user's file fails, an InputError says which one, and the line. What it prints goes to stderr: stdout has results."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (InputError, CannotRunError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        import traceback

        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        place = f"{path}, line {lines[-1]}" if lines else path
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{place}: {what} ({reason}): correct it") from error
