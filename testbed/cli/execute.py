"""What ``run`` and ``compare`` do with a checked experiment."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any, Final

from controller.errors import CannotRunError, InputError
from testbed.experiment import Experiment
from testbed.measure.store import alone_in, write_atomically
from testbed.report.table import comparison
from testbed.runner import nothing_to_send, prepare_folder, run_experiment
from testbed.scenario import Scenario, prepare
from testbed.status import StatusLine

__all__ = ["Meter", "check_output", "execute", "report_losses"]

_EVERY_S: Final = 5.0


class Meter:
    """Progress of one run after the other."""

    def __init__(self, *, quiet: bool) -> None:
        self._line = StatusLine(_EVERY_S, quiet=quiet)
        self.close = self._line.close
        self._first: dict[str, tuple[float, int]] = {}
        """Wall time and packets of each run's first record: what was before them was its start."""

    def update(self, run: str, fabric_ns: float, wall_s: float, delivered: int, expected: int) -> None:
        """Called from the run's thread."""
        first_s, before = self._first.setdefault(run, (wall_s, delivered))
        if not self._line.due():
            return
        left_s = (wall_s - first_s) * (expected - delivered) / max(1, delivered - before)
        self._line.show(
            f"{run}: {100 * delivered // expected} %, {delivered} of {expected} packets, "
            f"{fabric_ns / 1000:.0f} us of fabric time, {wall_s:.0f} s, about {left_s:.0f} s left"
        )


def check_output(out: Path) -> None:
    """Before anything is run. Raises InputError or CannotRunError where results could not be written."""
    if str(out) in ("", "."):
        raise InputError("--out names no folder of its own: give one for the results, such as results/mine")
    for module in ("pyarrow", "matplotlib"):
        if importlib.util.find_spec(module) is None:
            raise CannotRunError(f"{module} is missing, which results are written with: run make setup")


def execute(experiment: Experiment, out: Path, *, as_json: bool) -> int:
    """Runs, writes tables and pictures to ``out``, prints the comparison. 1 if a run lost bytes."""
    check_output(out)
    scenario = prepare(experiment)
    for note in scenario.notes:
        print(f"note: {note}", file=sys.stderr)
    with alone_in(out):
        return _execute(scenario, out, as_json=as_json)


def _execute(scenario: Scenario, out: Path, *, as_json: bool) -> int:
    if not scenario.expected_bytes:
        result = {"runs": [nothing_to_send(scenario, schedule) for schedule in scenario.experiment.schedule]}
        prepare_folder(scenario, out)
        write_atomically(out / "result.json", (json.dumps(result, indent=1) + "\n").encode())
        print(json.dumps(result, indent=1) if as_json else "nothing to send: CCT 0")
        return 0
    meter = Meter(quiet=as_json)
    try:
        runs = run_experiment(scenario, out, meter.update)
    finally:
        meter.close()
    from testbed.report.plots import draw_all

    pictures = draw_all(scenario, out, runs)
    if as_json:
        print((out / "result.json").read_text(), end="")
    else:
        print(comparison(scenario, runs))
        print(f"results           {out / 'result.json'}")
        for name, picture in pictures.items():
            print(f"{name:17} {picture}")
    return report_losses(runs)


def report_losses(runs: list[dict[str, Any]]) -> int:
    """A line on stderr for each run that did not deliver all. Returns 1 if there is one, else 0."""
    lost = [run for run in runs if run["delivered_bytes"] != run["expected_bytes"]]
    for run in lost:
        print(
            f"incastfree: {run['run']}: {run['expected_bytes'] - run['delivered_bytes']} bytes were not delivered "
            f"({run['drops']} packets dropped and {run['trims']} trimmed at full queues, {run['lost']} lost on links): "
            "with loss_recovery none nothing is sent again, so give sack or timeout",
            file=sys.stderr,
        )
    return 1 if lost else 0
