"""``incastfree explain``: where the time of a run's last byte went."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Final

from testbed.cli.execute import Meter
from testbed.explain.rerun import chosen, explain
from testbed.explain.text import as_json, as_table
from testbed.report.saved import read_saved

HELP: Final = "repeat a run with its packets recorded, and say where the time of its last byte went"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """DIR, --run and --json."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder that run or compare wrote with --out")
    parser.add_argument("--run", metavar="RUN", help="which of its runs: a name such as rr+nscc, or a number from 1")
    parser.add_argument("--json", action="store_true", help="print JSON to stdout, and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Prints the account; 1 where the run cannot be repeated, or is another one here. Raises InputError."""
    saved = read_saved(arguments.folder)
    which = chosen(saved, arguments.run)
    meter = Meter(quiet=arguments.json)
    try:
        found = explain(saved, which, meter.update)
    finally:
        meter.close()
    print(json.dumps(as_json(found), indent=1) if arguments.json else as_table(found))
    return 0
