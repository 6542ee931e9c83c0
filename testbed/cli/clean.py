"""``incastfree clean``: removes what killed commands left."""

from __future__ import annotations

import argparse
from typing import Final

from testbed.stage.host.strays import end_strays
from testbed.stage.virtual.machine import clean_stale

HELP: Final = (
    "remove what killed commands left: processes, if there are any, and temporary folders (the next run does too)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options."""


def run(arguments: argparse.Namespace) -> int:
    """Says how many."""
    del arguments
    processes = end_strays()  # first: they may be writing to the folders
    print(f"{processes} processes ended, {clean_stale()} temporary folders removed")
    return 0
