"""``incastfree load --nic doca``: a DPU's rates, as long as the command runs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np

from controller.cli.toml_file import read_toml
from controller.demand import Demand
from controller.errors import CannotRunError, InputError
from controller.nic.doca import DocaNic, State, default_settings, line_rate_bps
from controller.nic.doca_message import MAX_BINDINGS, QPN_MAX, QPN_MIN, RATE_ONE, Binding
from controller.nic.rate_table import RATE_SLOTS
from controller.rates import compute_rates

__all__ = ["add_doca_arguments", "read_bindings", "refuse_doca_arguments", "run_doca"]

_LOOK_S: Final = 1.0
_RTT_US: Final = 10.0
_FUNCTIONS: Final = 1 << 16
_EXAMPLE: Final = "lines such as 0x1a4 = 3: the QP and the rank of its receiver"


def add_doca_arguments(parser: argparse.ArgumentParser) -> None:
    """Of --nic doca alone."""
    group = parser.add_argument_group("NIC doca")
    group.add_argument("--bindings", type=Path, metavar="TOML", help=_EXAMPLE)
    group.add_argument("--rtt-us", type=float, help=f"round trip without queues (default: {_RTT_US:g})")
    group.add_argument("--fallback", action="store_true", help="rates give way to CNPs and NACKs")


def refuse_doca_arguments(arguments: argparse.Namespace) -> None:
    """Of another NIC. Raises InputError for an option that it would not heed."""
    for option, given in (
        ("--bindings", arguments.bindings is not None),
        ("--rtt-us", arguments.rtt_us is not None),
        ("--fallback", arguments.fallback),
    ):
        if given:
            raise InputError(f"{option} is for --nic doca, but the NIC is {arguments.nic}: leave it out")


def run_doca(arguments: argparse.Namespace, demand: Demand) -> int:
    """Loads the program, writes bindings and rates, and waits; whoever ends the command ends the pacing."""
    if arguments.rank >= demand.hosts:
        raise InputError(f"--rank {arguments.rank}: {arguments.file} has ranks 0 to {demand.hosts - 1}")
    if arguments.bindings is None:
        raise InputError(f"--nic doca needs --bindings: a TOML file with {_EXAMPLE}")
    if arguments.peers is not None:
        raise InputError("--peers is for --nic ebpf, but the NIC is doca: leave it out")
    rtt_us = _RTT_US if arguments.rtt_us is None else arguments.rtt_us
    if not 0.1 <= rtt_us <= 1e6:
        raise InputError(f"--rtt-us {rtt_us:g}: give 0.1 to 1000000")
    bindings = read_bindings(arguments.bindings, demand.hosts)
    row = demand.wire_bytes[arguments.rank]
    bound = {binding.slot for binding in bindings}
    missing = [rank for rank in np.flatnonzero(row).tolist() if rank not in bound]
    if missing:
        raise InputError(f"{arguments.bindings}: no QP to rank {missing[0]}, but rank {arguments.rank} sends to it")
    line_rate = (
        line_rate_bps(arguments.dev) if arguments.link_gbps is None else Fraction(str(arguments.link_gbps)) * 10**9
    )
    steps = compute_rates(demand, steps=RATE_ONE, rank=arguments.rank)
    settings = default_settings(line_rate, rtt_ns=round(1000 * rtt_us), fallback=arguments.fallback)
    try:
        with DocaNic.load(arguments.dev, line_rate, bindings=bindings, settings=settings) as nic:
            nic.write_rates(steps)
            generation, in_force = nic.read_rates()
            share = float(np.frombuffer(in_force, dtype="<u4").sum(dtype=np.float64)) / RATE_ONE
            print(
                f"{arguments.dev}: {np.count_nonzero(steps)} rates written for {len(bindings)} QPs, {100 * share:.3f} % of "
                f"{float(line_rate) / 1e9:g} Gb/s together, generation {generation}; in force until this command ends",
                flush=True,
            )
            while (state := nic.state) is State.ACTIVE:
                time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        print(f"{arguments.dev}: not paced any more")
        return 0
    raise CannotRunError(
        f"{arguments.dev}: the DPU's program is not active any more ({state.name.lower()}): nothing is paced"
    )


def read_bindings(path: Path, hosts: int) -> list[Binding]:
    """QP number to rank, of function 0, or of others in tables: ``[1]``. Raises InputError that names the line's key."""
    table = read_toml(path, _EXAMPLE)
    found: dict[tuple[int, int], Binding] = {}
    functions: list[tuple[int, Mapping[str, Any]]] = [
        (0, {key: value for key, value in table.items() if not isinstance(value, dict)})
    ]
    for key, value in table.items():
        if isinstance(value, dict):
            functions.append((_whole(path, key, "function", 0, _FUNCTIONS - 1), value))
    for function, lines in functions:
        for key, value in lines.items():
            qpn = _whole(path, key, "QP number", QPN_MIN, QPN_MAX)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < min(hosts, RATE_SLOTS):
                raise InputError(f"{path}: QP {key}: {value!r} is not a rank: ranks are 0 to {hosts - 1}")
            if (function, qpn) in found:
                raise InputError(f"{path}: QP {key} of function {function} is bound twice: leave one line out")
            found[function, qpn] = Binding(qpn, value, function)
    if len(found) > MAX_BINDINGS:
        raise InputError(
            f"{path}: {len(found)} QPs are more than the DPU's {MAX_BINDINGS}: leave out those that are idle"
        )
    return list(found.values())


def _whole(path: Path, text: str, what: str, least: int, most: int) -> int:
    try:
        number = int(text, 0)
    except ValueError:
        number = -1
    if not least <= number <= most:
        raise InputError(f"{path}: {text!r} is not a {what}: give {least} to {most}, or in hexadecimal 0x1a4")
    return number
