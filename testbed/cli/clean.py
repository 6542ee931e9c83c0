"""``incastfree clean``: removes what killed commands left."""

from __future__ import annotations

import argparse
from typing import Final

from testbed.stage.virtual.machine import clean_stale

HELP: Final = "remove temporary folders that killed commands left (the next run does it too)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options."""


def run(arguments: argparse.Namespace) -> int:
    """Says how many."""
    del arguments
    print(f"{clean_stale()} temporary folders removed")
    return 0
