"""``incastfree report``: a page of what run or compare left in a folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from controller.errors import CannotRunError
from testbed.measure.store import write_atomically
from testbed.report.figures import draw_plots, library
from testbed.report.html import page
from testbed.report.saved import read_saved
from testbed.runner import REPORT

HELP: Final = "make one page, with plots, of the results of run or compare"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """DIR and --out."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder that run or compare wrote with --out")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"the page; default: DIR/{REPORT}")


def run(arguments: argparse.Namespace) -> int:
    """Writes the page; says on stderr what a plot is missing. Raises InputError where there are no results."""
    saved = read_saved(arguments.folder)
    plots = draw_plots(saved)
    out = arguments.out or arguments.folder / REPORT
    try:
        # A name need not be text, but a page is.
        write_atomically(out, page(saved, plots, library()).encode(errors="backslashreplace"))
    except OSError as error:
        raise CannotRunError(f"{out} cannot be written: {error.strerror}; choose another --out") from None
    for plot in plots:
        for reason in plot.missing:
            print(f"note: {plot.title} does not show {reason}", file=sys.stderr)
    print(f"report            {out}")
    return 0
