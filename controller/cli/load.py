"""``incastfree load``: writes one NIC's rates."""

from __future__ import annotations

import argparse
import ipaddress
import sys
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np

from controller.cli.load_doca import add_doca_arguments, refuse_doca_arguments, run_doca
from controller.cli.options import add_demand_options, check_demand_options, demands_of, whole_number
from controller.cli.toml_file import read_toml
from controller.errors import InputError
from controller.nic.ebpf import Address, EbpfNic, line_rate_bps
from controller.nic.rate_table import RATE_ONE
from controller.rates import compute_rates

HELP: Final = "compute this rank's rates and write them to its NIC"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See HELP."""
    add_demand_options(parser)
    parser.add_argument("--nic", default="ebpf", choices=("ebpf", "doca"), help="kind of NIC (default: ebpf)")
    parser.add_argument("--dev", required=True, metavar="IFACE", help="interface to pace")
    parser.add_argument("--rank", required=True, type=whole_number, help="row of the matrix that this host sends")
    parser.add_argument("--peers", type=Path, metavar="TOML", help='NIC ebpf: lines such as 0 = "10.0.0.1"')
    parser.add_argument("--link-gbps", type=float, help="line rate of every NIC (default: what the interface says)")
    add_doca_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Loads the pacer if it is not there, then writes peers and rates."""
    check_demand_options(arguments)
    sequence = demands_of(arguments)
    if len(sequence) != 1:
        raise InputError(f"{arguments.file} holds {len(sequence)} demands: choose one with --steps and --layers")
    for note in sequence.trace.notes:
        print(f"note: {note}", file=sys.stderr)
    (demand,) = sequence.read()
    if arguments.nic == "doca":
        return run_doca(arguments, demand)
    refuse_doca_arguments(arguments)
    if arguments.peers is None:
        raise InputError('--nic ebpf needs --peers: a TOML file with lines such as 0 = "10.0.0.1"')
    if arguments.rank >= demand.hosts:
        raise InputError(f"--rank {arguments.rank}: {arguments.file} has ranks 0 to {demand.hosts - 1}")
    row = demand.wire_bytes[arguments.rank]
    peers = read_peers(arguments.peers, demand.hosts)
    missing = [rank for rank in np.flatnonzero(row).tolist() if rank not in peers]
    if missing:
        raise InputError(f"{arguments.peers}: rank {missing[0]} has no address, but rank {arguments.rank} sends to it")
    if arguments.link_gbps is None:
        line_rate = line_rate_bps(arguments.dev)
    else:
        line_rate = Fraction(str(arguments.link_gbps)) * 10**9
    steps = compute_rates(demand, rank=arguments.rank)
    with EbpfNic.load(arguments.dev, line_rate) as nic:
        nic.write_peers({rank: address for rank, address in peers.items() if rank != arguments.rank})
        nic.write_rates(steps.astype("<u4").tobytes())
        generation, _ = nic.read_rates()
    share = float(steps.sum(dtype=np.float64)) / RATE_ONE
    print(
        f"{arguments.dev}: {np.count_nonzero(steps)} rates written, {100 * share:.3f} % of "
        f"{float(line_rate) / 1e9:g} Gb/s together, generation {generation}"
    )
    return 0


def read_peers(path: Path, hosts: int) -> dict[int, Address]:
    """Rank to address. Raises InputError that names the line's key."""
    table = read_toml(path, 'lines such as 0 = "10.0.0.1"')
    peers: dict[int, Address] = {}
    lines = table.get("peers", table)
    if not isinstance(lines, dict):
        raise InputError(f'{path}: peers is {lines!r}: give a table of lines such as 0 = "10.0.0.1"')
    for key, value in lines.items():
        if not key.isdecimal() or int(key) >= hosts:
            raise InputError(f"{path}: {key!r} is not a rank: ranks are 0 to {hosts - 1}")
        try:
            address = ipaddress.ip_address(str(value))
        except ValueError:
            raise InputError(f"{path}: rank {key}: {value!r} is not an IP address") from None
        address = getattr(address, "ipv4_mapped", None) or ipaddress.ip_address(address.packed)  # as a packet has it
        if address.is_multicast or address.is_unspecified:
            raise InputError(f"{path}: rank {key}: {value} is the address of no host")
        if int(key) in peers:
            raise InputError(f"{path}: rank {int(key)} has two addresses")
        if address in peers.values():
            raise InputError(f"{path}: rank {key}: {value} is the address of another rank already")
        peers[int(key)] = address
    return peers
