"""``incastfree show``: the rates that are in force on a NIC."""

from __future__ import annotations

import argparse
from typing import Final

import numpy as np

from controller.errors import CannotRunError
from controller.nic.ebpf import EbpfNic, loaded_interfaces
from controller.nic.rate_table import RATE_ONE
from controller.nic.state import read_flows

HELP: Final = "print the rates that are in force on the NICs of this host"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See HELP."""
    parser.add_argument("--dev", metavar="IFACE", help="one interface (default: all that are loaded)")


def run(arguments: argparse.Namespace) -> int:
    """One block an interface, one line a peer."""
    interfaces = [arguments.dev] if arguments.dev else loaded_interfaces()
    if not interfaces:
        raise CannotRunError("no interface has rates loaded: run incastfree load first")
    for interface in interfaces:
        nic = EbpfNic.attach(interface)
        generation, body = nic.read_rates()
        nic.close()
        steps = np.frombuffer(body, dtype="<u4")
        print(f"{interface}: generation {generation}, {100 * steps.sum(dtype=np.float64) / RATE_ONE:.3f} % in all")
        print(f"{'rank':>6}  {'address':<24} {'rate [% of line]':>18} {'steps':>12} {'packets':>10}")
        for flow in read_flows(interface):
            own = int(steps[flow.slot])
            share = f"{100 * own / RATE_ONE:.6f}" if own else "not paced"
            print(f"{flow.slot:>6}  {flow.address!s:<24} {share:>18} {own:>12} {flow.packets:>10}")
    return 0
