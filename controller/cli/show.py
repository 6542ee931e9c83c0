"""``incastfree show``: the rates that are in force on a NIC."""

from __future__ import annotations

import argparse
import sys
from typing import Final

import numpy as np

from controller.errors import CannotRunError
from controller.nic.ebpf import EbpfNic, loaded_interfaces, why_unpaced
from controller.nic.rate_table import RATE_ONE
from controller.nic.state import FlowState, read_flows

HELP: Final = "print the rates that are in force on the NICs of this host"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See HELP."""
    parser.add_argument("--dev", metavar="IFACE", help="one interface (default: all that are loaded)")


def run(arguments: argparse.Namespace) -> int:
    """One block an interface, one line a peer."""
    interfaces = [arguments.dev] if arguments.dev else loaded_interfaces()
    if not interfaces:
        raise CannotRunError("no interface has rates loaded: run incastfree load first")
    without_counters = ""
    for interface in interfaces:
        with EbpfNic.attach(interface) as nic:
            generation, body = nic.read_rates()
            peers = nic.read_peers()
        steps = np.frombuffer(body, dtype="<u4")
        flows: dict[int, FlowState] = {}
        try:
            flows = {flow.slot: flow for flow in read_flows(interface)}
        except CannotRunError as error:
            without_counters = str(error)
        print(f"{interface}: generation {generation}, {100 * steps.sum(dtype=np.float64) / RATE_ONE:.3f} % in all")
        reason = why_unpaced(interface)
        if reason:
            print(f"{interface} is not paced: {reason}; unload it, and load it again")
        print(
            f"{'rank':>6}  {'address':<24} {'rate [% of line]':>18} {'steps':>12} {'packets':>10} {'wire bytes':>15} "
            f"{'ahead [us]':>12} {'drops':>8}"
        )
        for slot, address in peers.items():
            own = int(steps[slot])
            share = f"{100 * own / RATE_ONE:.6f}" if own else "not paced"
            print(f"{slot:>6}  {address!s:<24} {share:>18} {own:>12} {_counters(flows.get(slot))}")
    if without_counters:
        print(f"note: {without_counters}", file=sys.stderr)
    return 0


def _counters(flow: FlowState | None) -> str:
    if flow is None:
        return f"{'-':>10} {'-':>15} {'-':>12} {'-':>8}"
    return f"{flow.packets:>10} {flow.wire_bytes:>15} {flow.ahead_ns / 1000:>12.1f} {flow.drops:>8}"
