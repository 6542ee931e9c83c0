"""Options that several verbs share."""

from __future__ import annotations

import argparse
from pathlib import Path

from controller.demand import MTU_BYTES, UNITS

__all__ = ["add_demand_options", "whole_number"]


def add_demand_options(parser: argparse.ArgumentParser) -> None:
    """FILE, --unit, --token-bytes, --mtu-bytes, --gpus-per-server."""
    parser.add_argument("file", type=Path, metavar="FILE", help="demand matrix: CSV or NPY, row = sender")
    parser.add_argument("--unit", default="bytes", choices=UNITS, help="what an entry counts (default: payload bytes)")
    parser.add_argument("--token-bytes", type=whole_number, default=0, help="payload of one token, with --unit tokens")
    parser.add_argument("--mtu-bytes", type=whole_number, default=MTU_BYTES, help="packet on the wire (default: 4096)")
    parser.add_argument("--gpus-per-server", type=whole_number, default=1, help="hosts in a server (default: 1)")


def whole_number(text: str) -> int:
    """A whole number, 0 or more; "30e6" is one too."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not value.is_integer() or value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number, 0 or more")
    return int(text) if text.isdigit() else int(value)
