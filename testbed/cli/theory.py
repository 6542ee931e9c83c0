"""``incastfree theory``: the fluid model and the paper's closed forms beside a run of round robin."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from controller.errors import CannotRunError
from testbed.measure.store import write_atomically
from testbed.report.saved import read_saved
from testbed.theory.measured import Theory
from testbed.theory.picture import Account

HELP: Final = "set the fluid model of round robin, and the paper's formulas, beside a run of rr"
NAME: Final = "theory"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """DIR and --phase."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder that run or compare wrote, with a run of rr")
    parser.add_argument("--phase", type=int, default=1, metavar="NUMBER", help="of the demand, from 1; default: 1")


def run(arguments: argparse.Namespace) -> int:
    """Writes DIR/theory.png and theory.csv, prints a table. Raises InputError where there is no such run."""
    account = Account(Theory.of(read_saved(arguments.folder), arguments.phase - 1))
    table = account.table()
    for note in account.notes:
        print(f"note: {note}", file=sys.stderr)
    print(table)
    for suffix, content in (("png", account.png()), ("csv", account.csv().encode())):
        path = arguments.folder / f"{NAME}.{suffix}"
        try:
            write_atomically(path, content)
        except OSError as error:
            raise CannotRunError(
                f"{path} cannot be written: {error.strerror}; move away what is there, or make its folder writable"
            ) from None
        print(f"{'picture' if suffix == 'png' else 'table':17} {path}")
    return 0
