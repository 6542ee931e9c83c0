"""``incastfree workload``: makes demand matrices."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import numpy as np

from controller.cli.options import whole_number
from controller.demand import MTU_BYTES
from controller.errors import CannotRunError, InputError
from testbed.workload.zipf import zipf

HELP: Final = "make a demand matrix"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One kind so far."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    options = kinds.add_parser("zipf", help="every sender prefers the same receivers, by a Zipf law")
    options.add_argument("--hosts", type=whole_number, required=True)
    options.add_argument("--s", type=float, required=True, help="skew; 0 is uniform")
    options.add_argument(
        "--bytes",
        type=whole_number,
        required=True,
        help="wire bytes of a sender, its share to itself included, such as 30e6; that share stays local",
    )
    options.add_argument("--mtu-bytes", type=whole_number, default=MTU_BYTES)
    options.add_argument("--seed", type=whole_number, default=0, help="of the order of popularity")
    options.add_argument("--out", type=Path, required=True, metavar="FILE", help="CSV, in wire bytes")


def run(arguments: argparse.Namespace) -> int:
    """Writes the matrix and says how to use it."""
    if not 128 <= arguments.mtu_bytes <= 9216:
        raise InputError(f"--mtu-bytes {arguments.mtu_bytes}: give 128 to 9216")
    if arguments.out.suffix != ".csv":
        raise InputError(f"--out {arguments.out}: the matrix is written as CSV: give a name that ends in .csv")
    if arguments.bytes < arguments.mtu_bytes:
        raise InputError(f"--bytes {arguments.bytes}: give at least one packet of {arguments.mtu_bytes} bytes")
    demand = zipf(arguments.hosts, arguments.s, arguments.bytes, arguments.mtu_bytes, arguments.seed)
    try:
        with arguments.out.open("w", encoding="ascii") as file:
            np.savetxt(file, demand, fmt="%d", delimiter=",")
    except OSError as error:
        raise CannotRunError(f"{arguments.out} cannot be written: {error.strerror}; choose another --out") from None
    print(f"{arguments.out}: {arguments.hosts} hosts, {int(demand.sum())} wire bytes; use it with --unit wire-bytes")
    return 0
