"""``incastfree run``: one experiment file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from controller.errors import InputError
from testbed.cli.execute import execute
from testbed.cli.experiment_options import add_output_options, schema
from testbed.experiment import read_toml

HELP: Final = "run one experiment file (TOML)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FILE, or --print-schema alone."""
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE", help="experiment in TOML")
    parser.add_argument("--print-schema", action="store_true", help="print all keys with units and defaults, as JSON")
    add_output_options(parser, required=False)


def run(arguments: argparse.Namespace) -> int:
    """See testbed/cli/execute.py."""
    if arguments.print_schema:
        print(schema())
        return 0
    if arguments.file is None:
        raise InputError("no experiment: give a TOML file, or --print-schema to see its keys")
    if arguments.out is None:
        raise InputError("no folder for the results: give --out DIR")
    return execute(read_toml(arguments.file), arguments.out, as_json=arguments.json)
