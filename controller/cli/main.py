"""Finds the verbs, parses the command line, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import errno
import importlib.metadata
import io
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, NoReturn, Protocol, cast

from controller import __version__
from controller.errors import CannotRunError, InputError

__all__ = ["Verb", "main"]

ENTRY_POINTS: Final = "incastfree.verbs"
_DEAF_S: Final = 10.0
"""After a signal others change nothing for so long: five times of what cleaning up takes. Python may lose the first."""


class Verb(Protocol):
    """A module with these names is a verb."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Options of the verb."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Does it; returns the exit code."""


class _Parser(argparse.ArgumentParser):
    def __init__(self, **given: Any) -> None:
        """Options are given whole: --seed is not --seeds, which some verbs have and others not."""
        super().__init__(**{**given, "allow_abbrev": False})

    """argparse prints the whole usage with an error; here an error is one line."""

    def error(self, message: str) -> NoReturn:
        """Exit code 2."""
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; see {self.prog} --help\n")


def main(words: Sequence[str] | None = None) -> int:
    """0: done; 1: cannot run here, or a run failed; 2: bad input; 128 + signal: interrupted."""
    signals: list[int] = []
    heard_s = -math.inf

    def interrupt(number: int, _frame: object) -> None:
        nonlocal heard_s
        now_s = time.monotonic()
        if now_s - heard_s < _DEAF_S:
            return  # what cleans up is not to be interrupted: it would leave what it has not come to
        heard_s = now_s
        signals.append(number)
        raise KeyboardInterrupt

    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:  # a shell's job in the background
                signal.signal(number, interrupt)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="surrogateescape")  # names of files need not be text
        try:
            return _run(words)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except InputError as error:
        return _fail(error, 2)
    except CannotRunError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        for number in (
            signal.SIGINT,
            signal.SIGTERM,
            signal.SIGHUP,
        ):  # while Python ends, which resets what is a function
            signal.signal(number, signal.SIG_IGN)
        return _fail("interrupted; what had finished is kept", 128 + (signals or [signal.SIGINT])[0])
    except BrokenPipeError:
        # The reader of our output has gone: nothing more to say, not even at exit.
        _discard_output()
        return 1
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _discard_output()
        return _fail(f"the output cannot be written: {error.strerror}", 1)


def _run(words: Sequence[str] | None) -> int:
    parser = _Parser(prog="incastfree", description="Rate-based MoE all-to-all: rates for NICs, and the testbed.")
    parser.add_argument("--version", action="version", version=f"incastfree {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    modules: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            module = cast(Verb, point.load())
        except ImportError as error:
            missing[point.name] = str(error.name)
            verbs.add_parser(point.name, help=f"(needs {error.name})").add_argument("ignored", nargs=argparse.REMAINDER)
            continue
        modules[point.name] = module
        module.add_arguments(verbs.add_parser(point.name, help=module.HELP, description=module.HELP))
    arguments = parser.parse_args(words)
    if arguments.verb in missing:
        package = missing[arguments.verb]
        remedy = "run make setup in a clone of incastfree"
        if not package.startswith("testbed"):
            remedy = f"pip install {package}, or {remedy}"
        raise CannotRunError(f"{arguments.verb} needs the Python package {package}: {remedy}")
    return int(modules[arguments.verb].run(arguments))


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(reason: object, code: int) -> int:
    print(f"incastfree: {' '.join(str(reason).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
