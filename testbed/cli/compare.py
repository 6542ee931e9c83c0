"""``incastfree compare``: runs several schedules on one demand and sets them side by side."""

from __future__ import annotations

import argparse
from typing import Final

from testbed.cli.execute import execute
from testbed.cli.experiment_options import add_experiment_options, add_output_options, experiment_mapping
from testbed.experiment import from_mapping

HELP: Final = "run schedules on one demand, and set them side by side"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every key of an experiment file is an option."""
    add_experiment_options(parser)
    add_output_options(parser, required=True)


def run(arguments: argparse.Namespace) -> int:
    """See testbed/cli/execute.py."""
    return execute(from_mapping(experiment_mapping(arguments)), arguments.out, as_json=arguments.json)
