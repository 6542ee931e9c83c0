"""Options that several verbs share."""

from __future__ import annotations

import argparse
from pathlib import Path

from controller.demand import MTU_BYTES, UNITS
from controller.errors import InputError

__all__ = ["add_demand_options", "check_demand_options", "whole_number"]


def add_demand_options(parser: argparse.ArgumentParser) -> None:
    """FILE, --unit, --token-bytes, --mtu-bytes, --gpus-per-server."""
    parser.add_argument("file", type=Path, metavar="FILE", help="demand matrix: CSV or NPY, row = sender")
    parser.add_argument("--unit", default="bytes", choices=UNITS, help="what an entry counts (default: payload bytes)")
    parser.add_argument("--token-bytes", type=whole_number, default=0, help="payload of one token, with --unit tokens")
    parser.add_argument("--mtu-bytes", type=whole_number, default=MTU_BYTES, help="packet on the wire (default: 4096)")
    parser.add_argument("--gpus-per-server", type=whole_number, default=1, help="hosts in a server (default: 1)")


def check_demand_options(arguments: argparse.Namespace) -> None:
    """Ranges, as for the keys of an experiment. Raises InputError."""
    if arguments.link_gbps is not None and not 0.001 <= arguments.link_gbps <= 100_000:
        raise InputError(f"--link-gbps {arguments.link_gbps:g}: give a speed of 0.001 to 100000 Gb/s")
    if not 128 <= arguments.mtu_bytes <= 9216:
        raise InputError(f"--mtu-bytes {arguments.mtu_bytes}: give 128 to 9216")
    if not 1 <= arguments.gpus_per_server <= 64:
        raise InputError(f"--gpus-per-server {arguments.gpus_per_server}: give 1 to 64")


def whole_number(text: str) -> int:
    """A whole number, 0 or more; "30e6" is one too."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not value.is_integer() or value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number, 0 or more")
    return int(text) if text.isdigit() else int(value)
