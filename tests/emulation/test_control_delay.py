"""The control plane in the account: rates that come into force some time after the demand is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.errors import InputError
from testbed.experiment import from_mapping
from testbed.scenario import Scenario, prepare
from tests.emulation.conftest import assert_all_arrived, run_each, write_matrix

MTU = 4096
DELAY_NS = 10_000
DEMAND = np.array([[0, 400, 100, 50], [300, 0, 200, 0], [50, 250, 0, 300], [10, 20, 30, 0]]) * MTU
OTHER = np.array([[0, 100, 300, 50], [0, 0, 500, 100], [200, 50, 0, 300], [100, 0, 30, 0]]) * MTU


def scenario(folder: Path, *matrices: Any, **keys: Any) -> Scenario:
    phases: list[dict[str, Any]] = []
    for number, matrix in enumerate(matrices):
        file = write_matrix(folder / f"{number}.csv", matrix)
        phases.append({"file": str(file), "unit": "wire-bytes", "name": str(number)})
        if number:
            phases[number]["after"] = [str(number - 1)]
    return prepare(from_mapping({"demand": phases, "hosts_per_leaf": 2, **keys}))


def test_senders_that_wait_end_later_by_the_delay(tmp_path: Path) -> None:
    """Paced ones, to the nanosecond; round robin waits for nobody."""
    at_once, delayed = scenario(tmp_path, DEMAND), scenario(tmp_path, DEMAND, control_delay_ns=DELAY_NS)
    runs = [(each, run) for run in ("rate", "rate+nscc", "rr+nscc") for each in (at_once, delayed)]
    figures = [data.figures for data in run_each(runs)]
    for (before, after), delay_ns in zip(
        zip(figures[::2], figures[1::2], strict=True), (DELAY_NS, DELAY_NS, 0), strict=True
    ):
        assert after["cct_ns"] - before["cct_ns"] == pytest.approx(delay_ns, abs=1e-3)
        assert after["hot_queue_max_bytes"] == before["hot_queue_max_bytes"]
        assert after["delivered_bytes"] == after["expected_bytes"]
        assert after["lower_bound_ns"] == before["lower_bound_ns"]


def test_old_rates_that_are_the_new_ones_cost_nothing(tmp_path: Path) -> None:
    """The same demand twice: the second phase is as if its rates had been there from its start."""
    at_once = scenario(tmp_path, DEMAND, DEMAND)
    delayed = scenario(tmp_path, DEMAND, DEMAND, control_delay_ns=DELAY_NS, meanwhile="old")
    before, after = (data.figures["phase_cct_ns"] for data in run_each([(at_once, "rate"), (delayed, "rate")]))
    assert after[0] - before[0] == pytest.approx(DELAY_NS, abs=1e-3)
    assert after[1] == pytest.approx(before[1], abs=1e-3)


def test_old_rates_for_another_demand(tmp_path: Path) -> None:
    """Every byte arrives; what is sent meanwhile makes up for a part of the delay, or fills queues, and flows that the phase
    before did not have wait."""
    waiting = scenario(tmp_path, DEMAND, OTHER, control_delay_ns=DELAY_NS)
    old = scenario(tmp_path, DEMAND, OTHER, control_delay_ns=DELAY_NS, meanwhile="old")
    first, second = run_each([(waiting, "rate"), (old, "rate")])
    for data, each in ((first, waiting), (second, old)):
        assert_all_arrived(data, each)
    new = {(1, 3), (2, 0)} - {(int(s), int(d)) for s, d in zip(*np.nonzero(DEMAND), strict=True)}
    assert new == {(1, 3)}
    flows = second.flows
    begun_ns = second.figures["phase_cct_ns"][0]
    for source, destination, phase, arrival_ns in zip(
        flows["src"], flows["dst"], flows["phase"], flows["first_arrival_ns"], strict=True
    ):
        if phase == 1:
            waited = arrival_ns - begun_ns > DELAY_NS
            # Of a slow flow the first packet may come after the delay in any case.
            assert waited or (source, destination) not in new
    came_early = (flows["phase"] == 1) & (flows["first_arrival_ns"] - begun_ns < DELAY_NS)
    assert came_early.sum() >= 5
    assert second.figures["phase_cct_ns"][1] < first.figures["phase_cct_ns"][1]


def test_a_control_and_old_rates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"meanwhile is old: rate.nscc has a control"):
        scenario(tmp_path, DEMAND, schedule=["rate+nscc"], control_delay_ns=1, meanwhile="old")
