"""Congestion control of a user's own: a file of a few lines, and what is said when something is wrong with it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.errors import CannotRunError
from testbed.experiment import read_toml
from testbed.scenario import prepare
from tests.conftest import REPOSITORY
from tests.emulation.conftest import run_each, run_once, scenario_of, write_matrix

MTU = 4096

AIMD = '''
"""A packet more a window, half of it at a mark, at most once a round trip."""

from testbed.engine.cca import Control


class Aimd(Control):
    def start(self):
        self.window = 100_000.0
        self.halved_ns = 0.0
        return self.window

    def on_ack(self, now_ns, newly_bytes, rtt_ns, marked, in_flight_bytes):
        if not marked:
            self.window += self.network.mtu_bytes * newly_bytes / self.window
        elif now_ns > self.halved_ns + self.path.rtt_ns:
            self.halve(now_ns)
        return self.window

    def on_nack(self, now_ns, size_bytes, rtt_ns, in_flight_bytes):
        if now_ns > self.halved_ns + self.path.rtt_ns:
            self.halve(now_ns)
        return self.window

    def on_timeout(self, now_ns, size_bytes, in_flight_bytes):
        self.window = self.network.mtu_bytes
        return self.window

    def halve(self, now_ns):
        self.window = max(self.network.mtu_bytes, self.window / 2)
        self.halved_ns = now_ns
'''

ALL_THE_SAME = """
from testbed.engine.cca import Control


class Mine(Control):
    kind = "{kind}"

    def start(self):
        return {start}

    def on_ack(self, now_ns, newly_bytes, rtt_ns, marked, in_flight_bytes):
        return {answer}

    def on_nack(self, now_ns, size_bytes, rtt_ns, in_flight_bytes):
        return {answer}

    def on_timeout(self, now_ns, size_bytes, in_flight_bytes):
        return {answer}
"""
"""Answers everything alike."""
ON_SENT = """
    def on_sent(self, now_ns, size_bytes, in_flight_bytes):
        {body}
"""


def one_flow(folder: Path, packets: int = 750) -> Path:
    """From one leaf to the other."""
    counts = np.zeros((8, 8), dtype=int)
    counts[0, 5] = packets * MTU
    return write_matrix(folder / "one.csv", counts)


def control(folder: Path, kind: str = "window", start: str = "1e6", answer: str = "1e6", on_sent: str = "") -> str:
    """The run that uses such a control."""
    more = ON_SENT.format(body=on_sent) if on_sent else ""
    (folder / "mine.py").write_text(ALL_THE_SAME.format(kind=kind, start=start, answer=answer) + more)
    return f"rr+{folder / 'mine.py'}"


def run_file(folder: Path, schedule: list[str], **keys: Any) -> subprocess.CompletedProcess[str]:
    """``incastfree run`` on an experiment file beside the controls."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in {"schedule": schedule, **keys}.items()]
    lines += ["[[demand]]", 'file = "one.csv"', 'unit = "wire-bytes"']
    (folder / "mine.toml").write_text("\n".join(lines))
    command = [str(Path(sys.executable).with_name("incastfree")), "run", str(folder / "mine.toml")]
    return subprocess.run([*command, "--out", str(folder / "out")], capture_output=True, text=True, check=False)


def test_window_on_marks(tmp_path: Path) -> None:
    """Forty lines, named in an experiment file, keep the queue of an incast where round robin alone fills it."""
    assert len(AIMD.strip().splitlines()) < 50
    (tmp_path / "aimd.py").write_text(AIMD)
    counts = np.zeros((8, 8), dtype=int)
    counts[1:, 0] = 500 * MTU
    write_matrix(tmp_path / "incast.csv", counts)
    (tmp_path / "incast.toml").write_text(
        'schedule = ["rr", "rr+aimd.py"]\n[[demand]]\nfile = "incast.csv"\nunit = "wire-bytes"\n'
    )
    scenario = prepare(read_toml(tmp_path / "incast.toml"))
    alone, controlled = (data.figures for data in run_each((scenario, run) for run in scenario.experiment.schedule))
    assert [alone["run"], controlled["run"]] == ["rr", "rr+aimd"]
    for figures in (alone, controlled):
        assert figures["delivered_bytes"] == figures["expected_bytes"]
    assert alone["trims"] > 1000
    assert controlled["trims"] < alone["trims"] / 10
    assert controlled["marks"] > 0
    assert controlled["hot_queue_max_bytes"] < alone["hot_queue_max_bytes"]
    assert controlled["cct_ns"] != alone["cct_ns"]


def test_the_control_of_the_documentation(tmp_path: Path) -> None:
    """docs/congestion-control.md: as it stands there it runs, and gives way at marks."""
    (source,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/congestion-control.md").read_text(), re.DOTALL)
    (tmp_path / "aimd.py").write_text(source)
    counts = np.zeros((8, 8), dtype=int)
    counts[1:, 0] = 500 * MTU
    scenario = scenario_of(write_matrix(tmp_path / "incast.csv", counts))
    alone, controlled = (data.figures for data in run_each((scenario, run) for run in ("rr", f"rr+{tmp_path}/aimd.py")))
    assert controlled["delivered_bytes"] == controlled["expected_bytes"]
    assert controlled["trims"] < alone["trims"] / 3
    assert controlled["marks"] > 0


@pytest.mark.parametrize("schedule", ["rr", "rate"])
def test_constant_rate(tmp_path: Path, schedule: str) -> None:
    """A third of the line rate takes three times as long."""
    third = control(tmp_path, "rate", "self.path.line_rate_bps / 3", "self.start()").replace("rr", schedule, 1)
    scenario = scenario_of(one_flow(tmp_path, 10_000), phase="zero")
    full, slow = (data.figures for data in run_each((scenario, run) for run in (schedule, third)))
    assert slow["cct_ns"] == pytest.approx(3 * full["cct_ns"], rel=0.01)
    # Exactly: the first packet's way, and then a packet every three packet times.
    assert slow["cct_ns"] == pytest.approx(4000 + 4 * 40.96 + 9999 * 3 * 40.96, rel=1e-6)
    assert slow["hot_queue_max_bytes"] == MTU
    assert slow["packets"] == 10_000


@pytest.mark.parametrize("schedule", ["rr", "rate"])
def test_unlike_rates_at_one_host(tmp_path: Path, schedule: str) -> None:
    """A slow flow does not hold up a fast one."""
    rates = "self.path.line_rate_bps / (10 if self.path.destination == 5 else 2)"
    run = control(tmp_path, "rate", rates, "self.start()").replace("rr", schedule, 1)
    counts = np.zeros((8, 8), dtype=int)
    counts[0, 5:7] = 1000 * MTU
    data = run_once(scenario_of(write_matrix(tmp_path / "two.csv", counts), phase="zero"), run)
    own = {"rr": 1.0, "rate": 0.5}[schedule]  # a control goes no faster than the schedule
    assert data.flows["last_arrival_ns"].tolist() == [
        pytest.approx(4163.84 + 999 * 40.96 / min(share, own), abs=100) for share in (0.1, 0.5)
    ]


RTT_NS = 4 * (1000 + 40.96) + 4 * (1000 + 0.64)
"""Of a packet and its ACK across the spines."""


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (4e11, 8e11),
        (1e10, 8e11),
        (1e9, 8e11),
        (1e10, 4e11),
        (1e9, 2e11),
    ],
)
def test_rising_rate(tmp_path: Path, first: float, then: float) -> None:
    """A slow start, and a rise at the first ACK, however long the pause before the next packet was to be.

    What a flow could have sent meanwhile at the new rate it has not earned.
    """
    data = run_once(scenario_of(one_flow(tmp_path)), control(tmp_path, "rate", f"{first}", f"{then}"))
    gap_ns = MTU * 8e9 / first
    slow = 1 + int(RTT_NS / gap_ns)  # packets that have left by then
    next_ns = max(RTT_NS, (slow - 1) * gap_ns + MTU * 8e9 / then)
    assert data.figures["cct_ns"] == pytest.approx(next_ns + (749 - slow) * MTU * 8e9 / then + 4 * 1040.96, abs=1)


def test_on_sent_counts_every_packet(tmp_path: Path) -> None:
    """Once a packet, also those that are sent again."""
    keys = {"loss_data": 0.05, "loss_ack": 0.05, "seed": 3}
    scenario = scenario_of(one_flow(tmp_path), **keys)
    expected = run_once(scenario, control(tmp_path)).figures
    assert expected["packets"] > 750
    count = "self.sent = getattr(self, 'sent', 0) + 1"
    assert run_once(scenario, control(tmp_path, on_sent=count)).figures["cct_ns"] == expected["cct_ns"]
    last = f"{count}; assert self.sent < {{}}, f'packet {{{{self.sent}}}} of {{{{size_bytes}}}} bytes, {{{{in_flight_bytes}}}} in flight'"
    with pytest.raises(
        CannotRunError, match=rf"AssertionError: packet {expected['packets']} of 4096 bytes, \d+ in flight$"
    ):
        run_once(scenario, control(tmp_path, on_sent=last.format(expected["packets"])))
    run_once(scenario, control(tmp_path, on_sent=last.format(expected["packets"] + 1)))


def test_on_sent_sets_the_window(tmp_path: Path) -> None:
    """Its answer counts from that packet on: a window of one packet is opened by the first."""
    full = run_once(scenario_of(one_flow(tmp_path)), "rr").figures
    figures = run_once(
        scenario_of(one_flow(tmp_path)), control(tmp_path, start="4096", answer="1e9", on_sent="return 1e9")
    ).figures
    assert figures["cct_ns"] == full["cct_ns"]


@pytest.mark.parametrize(
    ("kind", "method", "value"),
    [
        ("window", "start", "float('nan')"),
        ("window", "start", "-2"),
        ("rate", "start", "-1"),
        ("rate", "start", "float('nan')"),
        ("window", "on_ack", "-1"),
        ("rate", "on_ack", "float('inf')"),
        ("window", "on_sent", "-2.0"),
        ("rate", "on_sent", "float('nan')"),
    ],
)
def test_senseless_answers(tmp_path: Path, kind: str, method: str, value: str) -> None:
    """Neither a window nor a rate: the file and the method are named."""
    keys = {"start": {"start": value}, "on_ack": {"answer": value}, "on_sent": {"on_sent": f"return {value}"}}[method]
    with pytest.raises(CannotRunError, match=rf"mine\.py: .*{method} returned {eval(value)}"):
        run_once(scenario_of(one_flow(tmp_path, 20)), control(tmp_path, kind, **keys))


def test_an_exception_names_file_and_line(tmp_path: Path) -> None:
    """One line on standard error, exit code 1, and no traceback; the other run's result is kept."""
    one_flow(tmp_path)
    control(tmp_path, answer="1 / 0")
    line = 1 + (tmp_path / "mine.py").read_text().splitlines().index("        return 1 / 0")
    done = run_file(tmp_path, ["rr", "rr+mine.py"])
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert lines == [
        f"incastfree: rr+mine: {tmp_path / 'mine.py'} (line {line}, in on_ack): ZeroDivisionError: division by zero"
    ]
    assert [run["run"] for run in json.loads((tmp_path / "out" / "result.json").read_text())["runs"]] == ["rr"]


def test_nan_is_refused_in_one_line(tmp_path: Path) -> None:
    """By the command as well."""
    one_flow(tmp_path, 20)
    control(tmp_path, answer="float('nan')")
    done = run_file(tmp_path, ["rr+mine.py"])
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"incastfree: {tmp_path / 'mine.py'}: ")
    assert "on_ack returned nan" in lines[0]
