"""``incastfree agree``: runs an experiment on both fabrics, and sets their figures side by side."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from controller.errors import CannotRunError, InputError
from testbed.cli.execute import Meter, check_output, report_losses
from testbed.cli.experiment_options import add_experiment_options, add_output_options, experiment_mapping
from testbed.experiment import from_mapping
from testbed.measure.store import alone_in, write_atomically
from testbed.report.agreement import agreement, agreement_table, as_rows
from testbed.runner import run_experiment
from testbed.scenario import Scenario, prepare

_TABLES: Final = ("agreement.csv", "agreement.json")
HELP: Final = "run schedules on the kernel's fabric and on BMv2, and set both side by side"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of compare; --fabric is both."""
    add_experiment_options(parser)
    add_output_options(parser, required=True)


def run(arguments: argparse.Namespace) -> int:
    """Writes DIR/kernel and DIR/bmv2 as compare does, and DIR/agreement.csv and .json. 1 if a run lost bytes."""
    data = experiment_mapping(arguments)
    if data.setdefault("fabric", "bmv2") != "bmv2":
        raise InputError("--fabric: agree runs both of them; leave it out")
    check_output(arguments.out)
    scenario = prepare(from_mapping(data))
    if not scenario.expected_bytes:
        print("[]" if arguments.json else "nothing to send: CCT 0")
        return 0
    for note in scenario.notes:
        print(f"note: {note}", file=sys.stderr)
    with alone_in(arguments.out):
        return _run_both(scenario, arguments)


def _run_both(scenario: Scenario, arguments: argparse.Namespace) -> int:
    _clear(arguments.out)
    runs: dict[str, list[dict[str, Any]]] = {}
    for fabric in ("kernel", "bmv2"):
        # In the same time, so that nothing but the switches differs.
        experiment = replace(scenario.experiment, fabric=fabric, dilation=scenario.dilation)
        meter = Meter(quiet=arguments.json)
        try:
            runs[fabric] = run_experiment(prepare(experiment), arguments.out / fabric, meter.update)
        finally:
            meter.close()
    found = agreement(runs["kernel"], runs["bmv2"])
    rows = as_rows(found)
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys())
    writer.writeheader()
    writer.writerows(rows)
    try:
        write_atomically(arguments.out / _TABLES[0], text.getvalue().encode())
        write_atomically(arguments.out / _TABLES[1], (json.dumps(rows, indent=1) + "\n").encode())
    except OSError as error:
        raise CannotRunError(f"{error.filename or arguments.out} cannot be written: {error.strerror}") from None
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        print(agreement_table(found))
        print(f"results           {arguments.out / _TABLES[0]}")
    return report_losses([run for both in runs.values() for run in both])


def _clear(out: Path) -> None:
    """Takes away what an earlier comparison left: before anything was run."""
    try:
        for name in _TABLES:
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        raise CannotRunError(
            f"{error.filename or out} cannot be written: {error.strerror}; choose another --out"
        ) from None
