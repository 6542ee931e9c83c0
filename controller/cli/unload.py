"""``incastfree unload``: takes the pacer off a NIC."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from controller.nic.ebpf import take_off

HELP: Final = "take the pacer off an interface, and leave it as it was"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See HELP."""
    parser.add_argument("--dev", required=True, metavar="IFACE")


def run(arguments: argparse.Namespace) -> int:
    """Says that it is done."""
    remarks = take_off(arguments.dev)
    print(f"{arguments.dev}: not paced any more")
    for remark in remarks:
        print(f"note: {arguments.dev}: {remark}", file=sys.stderr)
    return 0
