"""The DPU's own code in the virtual-time loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.errors import InputError
from controller.nic.doca_message import Binding
from testbed import dpu_model
from testbed.experiment import from_mapping
from testbed.scenario import Scenario, prepare
from testbed.workload.zipf import zipf
from tests.emulation.conftest import assert_all_arrived, run_each, run_once, write_matrix

MTU = 4096
DEMAND = np.array([[0, 400, 100, 50], [300, 0, 200, 0], [50, 250, 0, 300], [10, 20, 30, 0]]) * MTU
OTHER = np.array([[0, 100, 300, 50], [0, 0, 500, 100], [200, 50, 0, 300], [100, 0, 30, 0]]) * MTU


def scenario(folder: Path, *matrices: Any, **keys: Any) -> Scenario:
    phases: list[dict[str, Any]] = []
    for number, matrix in enumerate(matrices):
        file = write_matrix(folder / f"{number}.csv", np.asarray(matrix))
        phases.append({"file": str(file), "unit": "wire-bytes", "name": str(number)})
        if number:
            phases[number]["after"] = [str(number - 1)]
    return prepare(from_mapping({"demand": phases, "hosts_per_leaf": 2, "nic": "doca-model", **keys}))


def test_without_its_delay_a_dpu_paces_as_the_ebpf_nic_to_within_20_bits(tmp_path: Path) -> None:
    """Rates are rounded up to 2^-20 of the line after lambda has taken as much off for each host."""
    matrix = zipf(16, 0.5, 2_000_000, MTU, 3)
    keys: dict[str, Any] = {"hosts_per_leaf": 4, "seed": 2}
    ebpf = scenario(tmp_path, matrix, nic="ebpf", **keys)
    dpu = scenario(tmp_path, matrix, control_delay_ns=0, **keys)
    first, second = run_each([(ebpf, "rate"), (dpu, "rate")])
    for data, each in ((first, ebpf), (second, dpu)):
        assert_all_arrived(data, each)
    bound_ns = first.figures["lower_bound_ns"]
    assert second.figures["cct_ns"] == pytest.approx(first.figures["cct_ns"], abs=17 / 2**20 * bound_ns + 100)
    assert second.figures["hot_queue_max_bytes"] == pytest.approx(first.figures["hot_queue_max_bytes"], abs=4 * MTU)
    assert (second.figures["dpu_messages"], second.figures["dpu_unknown"]) == (32, 0)
    assert first.figures["dpu_messages"] == 0


def test_the_mailbox_costs_its_delay(tmp_path: Path) -> None:
    """To the nanosecond: nobody sends before the message has been parsed."""
    at_once, delayed = scenario(tmp_path, DEMAND, control_delay_ns=0), scenario(tmp_path, DEMAND)
    first, second = (data.figures for data in run_each([(at_once, "rate"), (delayed, "rate")]))
    assert second["control_delay_ns"] == 13_200_000
    assert second["cct_ns"] - first["cct_ns"] == pytest.approx(13_200_000, abs=1e-3)
    assert second["dpu_unknown"] == first["dpu_unknown"] == 0


def test_what_is_not_bound_has_the_bounded_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate is the DPU's word alone: with QPs that it was told nothing of, each flow has 1/256 of the line."""
    prepared = scenario(tmp_path, [[0, 40 * MTU], [20 * MTU, 0]], control_delay_ns=0)
    monkeypatch.setattr(dpu_model, "Binding", lambda qpn, slot: Binding(qpn + 0x1000, slot))
    figures = run_once(prepared, "rate").figures
    gap_ns = MTU * 8 / 800 * 256
    assert figures["cct_ns"] == pytest.approx(39 * gap_ns, abs=gap_ns)
    assert figures["dpu_unknown"] == 60


def test_old_rates_stay_until_the_message_comes(tmp_path: Path) -> None:
    """The same demand twice costs nothing more; another one ends sooner than if all had waited."""
    same = scenario(tmp_path, DEMAND, DEMAND, control_delay_ns=10_000, meanwhile="old")
    first, second = run_once(same, "rate").figures["phase_cct_ns"]
    assert first - second == pytest.approx(10_000, abs=1)
    keys: dict[str, Any] = {"control_delay_ns": 10_000}
    waiting, old = scenario(tmp_path, DEMAND, OTHER, **keys), scenario(tmp_path, DEMAND, OTHER, meanwhile="old", **keys)
    data = run_each([(waiting, "rate"), (old, "rate")])
    for each, prepared in zip(data, (waiting, old), strict=True):
        assert_all_arrived(each, prepared)
    assert data[1].figures["phase_cct_ns"][1] < data[0].figures["phase_cct_ns"][1]


def test_the_dpus_fallback_gives_way_and_comes_back(tmp_path: Path) -> None:
    """Beside a load that takes 30 % of the hottest port: nothing is lost, and it ends about as soon as it can."""
    matrix = zipf(16, 0.5, 10_000_000, MTU, 1)
    hot = int(matrix.sum(axis=0).argmax())
    source = int(matrix.sum(axis=0).argmin())
    background = [{"source": f"h{source + 1}", "destination": f"h{hot + 1}", "bytes": 10**8, "rate_gbps": 240}]
    keys: dict[str, Any] = {"hosts_per_leaf": 4, "seed": 1, "background": background, "control_delay_ns": 0}
    prepared = scenario(tmp_path, matrix, **keys)
    plain, fallback = (data.figures for data in run_each([(prepared, "rate"), (prepared, "rate+fallback")]))
    assert plain["trims"] > 0
    assert plain["dpu_nacks"] == plain["nacks"] > 0
    assert fallback["trims"] == 0
    assert 0 < fallback["dpu_cnps"] <= fallback["marks"]
    assert fallback["inflation"] < 1 / 0.7 - 1 + 0.08
    # Without the load it is as if it were not there.
    alone = scenario(tmp_path, matrix, hosts_per_leaf=4, seed=1, control_delay_ns=0)
    before, after = (data.figures for data in run_each([(alone, "rate"), (alone, "rate+fallback")]))
    assert after["cct_ns"] == pytest.approx(before["cct_ns"], abs=1)


def test_losses(tmp_path: Path) -> None:
    """Without trimming or a fallback, with random losses and timeouts: all arrives."""
    prepared = scenario(tmp_path, DEMAND, control_delay_ns=1000, trimming=False, loss_data=0.02, loss_ack=0.02)
    assert_all_arrived(run_once(prepared, "rate"), prepared)
    open_loop = scenario(tmp_path, DEMAND, control_delay_ns=1000, loss_recovery="none", queue_bytes=0)
    figures = run_once(open_loop, "rate").figures
    assert figures["delivered_bytes"] == figures["expected_bytes"]


RATES = """
from testbed.engine.cca import Control

class Own(Control):
    kind = "rate"

    def start(self, *heard):
        return self.path.ceiling_bps

    on_ack = on_nack = on_timeout = start
"""


def test_a_file_that_sets_rates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(RATES)
    prepared = scenario(tmp_path, DEMAND, schedule=[f"rate+{tmp_path / 'own.py'}"])
    with pytest.raises(InputError, match=r"nic doca-model: .*own\.py sets rates, and a DPU runs one program"):
        run_once(prepared, prepared.experiment.schedule[0])
