"""``incastfree rates``: M, the bottleneck port and R of a demand."""

from __future__ import annotations

import argparse
import sys
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from controller.cli.options import add_demand_options, check_demand_options
from controller.demand import load_demand
from controller.errors import CannotRunError, InputError
from controller.schedule import rate

HELP: Final = "print M, the bottleneck port and the rates R of a demand matrix"
_SHOWN: Final = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See HELP."""
    add_demand_options(parser)
    parser.add_argument("--link-gbps", type=float, default=800.0, help="line rate of every NIC (default: 800)")
    parser.add_argument("--out", type=Path, help="write R, as fractions of the sender's line rate, to .csv or .npy")


def run(arguments: argparse.Namespace) -> int:
    """Prints the figures; a matrix of more than 16 hosts is written, not printed."""
    check_demand_options(arguments)
    if arguments.out and arguments.out.suffix not in (".csv", ".npy"):
        raise InputError(f"--out {arguments.out}: give a name that ends in .csv or .npy")
    demand = load_demand(
        arguments.file,
        unit=arguments.unit,
        token_bytes=arguments.token_bytes,
        mtu_bytes=arguments.mtu_bytes,
        hosts_per_server=arguments.gpus_per_server,
    )
    for note in demand.notes:
        print(f"note: {note}", file=sys.stderr)
    if not demand.total_bytes:
        print(f"{arguments.file}: nothing to send: M is 0")
        return 0
    speeds = [Fraction(str(arguments.link_gbps)) * 10**9] * demand.hosts
    bottleneck = demand.bottleneck(speeds)
    plan = rate.plan(demand, speeds)
    shares = rate.step_share(plan.steps)
    print(f"hosts             {demand.hosts}")
    print(f"total             {demand.total_bytes} B on the wire, {demand.local_bytes} B local")
    print(f"M                 {demand.max_port_bytes} B")
    print(f"bottleneck        {bottleneck} (counted from 0)")
    print(f"lower bound       {float(bottleneck.time_s) * 1e6:.3f} us at {arguments.link_gbps:g} Gb/s")
    print(f"largest rate      {shares.max():.6f} of the line rate")
    print(f"smallest rate     {shares[shares > 0].min():.3e} of the line rate, of {np.count_nonzero(shares)} flows")
    if arguments.out:
        _write(arguments.out, shares)
        print(f"R                 {arguments.out}")
    elif demand.hosts <= _SHOWN:
        print("R, row = sender:")
        for row in shares:
            print(" ".join(f"{share:.4f}" for share in row))
    else:
        print(f"R                 {demand.hosts} x {demand.hosts}: give --out FILE to have it written")
    return 0


def _write(path: Path, shares: NDArray[np.float64]) -> None:
    try:
        if path.suffix == ".npy":
            np.save(path, shares)
        else:
            np.savetxt(path, shares, delimiter=",", fmt="%.10g")
    except OSError as error:
        raise CannotRunError(f"{path} cannot be written: {error.strerror}; choose another --out") from None
