"""``incastfree rates``: M, the bottleneck port and R of a demand."""

from __future__ import annotations

import argparse
import itertools
import sys
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from controller.cli.options import add_demand_options, check_demand_options, demands_of
from controller.demand import Demand, DemandSequence, payload_bytes
from controller.errors import CannotRunError, InputError
from controller.formats import htsim
from controller.formats.trace import counted
from controller.schedule import rate

HELP: Final = "print M, the bottleneck port and the rates R of a demand matrix, or how they move over a trace"
_SHOWN: Final = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See HELP."""
    add_demand_options(parser)
    parser.add_argument("--link-gbps", type=float, default=800.0, help="line rate of every NIC (default: 800)")
    parser.add_argument("--out", type=Path, help="write R, as fractions of the sender's line rate, to .csv or .npy")
    parser.add_argument(
        "--demand-out",
        type=Path,
        metavar="FILE",
        help="write the demand, in payload bytes, to .csv, .npy or htsim's .cm",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the figures of a demand, or a line for each of a sequence."""
    check_demand_options(arguments)
    for option, path, known in (
        ("--out", arguments.out, (".csv", ".npy")),
        ("--demand-out", arguments.demand_out, (".csv", ".npy", ".cm")),
    ):
        if path and path.suffix not in known:
            raise InputError(f"{option} {path}: give a name that ends in {' or '.join(known)}")
    _check_places(arguments.file, arguments.out, arguments.demand_out)
    sequence = demands_of(arguments)
    if len(sequence) > 1:
        for option, path in (("--out", arguments.out), ("--demand-out", arguments.demand_out)):
            if path:
                raise InputError(
                    f"{option}: {arguments.file} holds {len(sequence)} demands: choose one with --steps and --layers"
                )
        return _print_sequence(sequence, arguments.link_gbps)
    (demand,) = sequence.read()
    for note in demand.notes:
        print(f"note: {note}", file=sys.stderr)
    if arguments.demand_out:
        _write_demand(arguments.demand_out, demand, arguments.mtu_bytes)
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


def _check_places(file: Path, out: Path | None, demand_out: Path | None) -> None:
    """Raises InputError where one file would overwrite another."""
    for option, path, other, what in (
        ("--out", out, file, "the demand itself"),
        ("--demand-out", demand_out, file, "the demand itself"),
        ("--demand-out", demand_out, out, "that of --out"),
    ):
        if path and other and path.resolve() == other.resolve():
            raise InputError(f"{option} {path} is {what}: choose another name")


def _print_sequence(sequence: DemandSequence, link_gbps: float) -> int:
    """How M and its port move over steps and layers, and how far M is above the mean port's load."""
    for note in sequence.trace.notes:
        print(f"note: {note}", file=sys.stderr)
    parts = max(len(sequence.place(index).part) for index in range(len(sequence)))
    head = f"{'part':{parts}} " if parts else ""
    print(
        f"{'step':>8} {'layer':>5} {head}{'total [B]':>14} {'M [B]':>12} {'M over mean':>11} {'bound [us]':>11}  bottleneck"
    )
    largest: list[int] = []
    ports: list[str] = []
    local_bytes = hosts = 0
    for index, demand in enumerate(sequence):
        place = sequence.place(index)
        hosts, local_bytes = demand.hosts, local_bytes + demand.local_bytes
        speed = Fraction(str(link_gbps)) * 10**9
        bottleneck = demand.bottleneck([speed] * hosts)
        most, total = bottleneck.load_bytes, demand.total_bytes
        port = str(bottleneck) if most else "none"
        largest.append(most)
        ports.append(port)
        step, layer = ("-" if value is None else value for value in place[:2])
        part = f"{place.part:{parts}} " if parts else ""
        over = f"{most * hosts / total:.3f}" if total else "-"
        print(
            f"{step:>8} {layer:>5} {part}{total:>14} {most:>12} {over:>11} {float(bottleneck.time_s) * 1e6:>11.3f}  {port}"
        )
    moves = sum(before != after for before, after in itertools.pairwise(ports))
    bound_us = sum(largest) * 8 / (link_gbps * 1e3)
    print(f"hosts             {hosts}")
    print(f"M                 {min(largest)} to {max(largest)} B, in {len(largest)} demands")
    over = counted(len(set(ports)), "port")
    print(f"bottleneck        moves {counted(moves, 'time')} of {len(ports) - 1}, over {over} (counted from 0)")
    print(f"lower bound       {bound_us:.3f} us at {link_gbps:g} Gb/s, one after the other")
    if local_bytes:
        print(f"local             {local_bytes} B do not enter the network")
    return 0


def _write_demand(path: Path, demand: Demand, mtu_bytes: int) -> None:
    payload = payload_bytes(demand, mtu_bytes)
    text = htsim.written(str(path), payload) if path.suffix == ".cm" else ""
    try:
        if path.suffix == ".npy":
            np.save(path, payload)
        elif path.suffix == ".cm":
            path.write_text(text, encoding="ascii")
        else:
            np.savetxt(path, payload, delimiter=",", fmt="%d")
    except OSError as error:
        raise CannotRunError(f"{path} cannot be written: {error.strerror}; choose another --demand-out") from None
    print(f"demand            {path}, payload bytes")


def _write(path: Path, shares: NDArray[np.float64]) -> None:
    try:
        if path.suffix == ".npy":
            np.save(path, shares)
        else:
            np.savetxt(path, shares, delimiter=",", fmt="%.10g")
    except OSError as error:
        raise CannotRunError(f"{path} cannot be written: {error.strerror}; choose another --out") from None
