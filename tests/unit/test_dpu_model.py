"""nic = doca-model: what hosts send to their DPUs, read back by the DPU's own parser."""

from __future__ import annotations

import ctypes
import json
import struct
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.errors import InputError
from controller.nic.doca_message import RATE_ONE
from controller.schedule import Plan
from testbed import dpu_model
from testbed.engine import FLOW_FIELDS
from testbed.experiment import from_mapping
from testbed.job import prepare_job
from testbed.scenario import Scenario, prepare
from tests.conftest import REPOSITORY
from tests.unit.conftest import Compile
from tests.unit.doca import TX, Dpu, Flow, compile_plain

MTU = 4096
LAYOUT = f"""
#include <stdio.h>
#include "{REPOSITORY}/dpu/message.h"
#include "dpus.h"
int main(void) {{
    size_t at_ns = offsetof(struct dpu_send, at_ns), host = offsetof(struct dpu_send, host);
    printf("%zu %zu %zu %zu\\n", sizeof(struct dpu_send), at_ns, host, offsetof(struct dpu_send, bytes));
    printf("%u %u %u\\n", dpu_steps(1), dpu_steps(PCC_RATE_ONE - 1), dpu_steps(PCC_RATE_ONE));
    printf("%u %u\\n", DPU_FIRST_STEPS, DPU_FIRST_QPN);
    return 0;
}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_plain(tmp_path_factory.mktemp("dpu"))


def scenario(folder: Path, *matrices: Any, **keys: Any) -> Scenario:
    phases: list[dict[str, Any]] = []
    for number, matrix in enumerate(matrices):
        np.savetxt(folder / f"{number}.csv", matrix, fmt="%d", delimiter=",")
        phases.append({"file": str(folder / f"{number}.csv"), "unit": "wire-bytes", "name": str(number)})
        if number:
            phases[number]["after"] = [str(number - 1)]
    return prepare(from_mapping({"demand": phases, "nic": "doca-model", **keys}))


def skewed(hosts: int, seed: int) -> Any:
    """Every flow from one packet to a million."""
    demand = np.random.default_rng(seed).lognormal(5, 3, (hosts, hosts)).astype(np.int64) * MTU + MTU
    np.fill_diagonal(demand, 0)
    return demand


def sends(folder: Path, number: int = 0) -> list[tuple[int, int, bytes]]:
    """(at_ns, host, message), in their order."""
    data = (folder / f"mailbox-{number}.bin").read_bytes()
    found, at = [], 0
    while at < len(data):
        at_ns, host, size = struct.unpack_from("<QII", data, at)
        found.append((at_ns, host, data[at + 16 : at + 16 + size]))
        at += 16 + -(-size // 8) * 8
    assert at == len(data)
    return found


def given(folder: Path, prepared: Scenario, run: str = "rate") -> dict[str, Any]:
    prepare_job(prepared, prepared.experiment.run_of(run), folder)
    return dict(json.loads((folder / "job.json").read_text()))


def test_sizes_and_layouts(compile_c: Compile, library: ctypes.CDLL) -> None:
    program = compile_c(LAYOUT)
    lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0] == f"{dpu_model._SEND.size} 0 8 12"
    assert lines[1] == f"{1 << 12} {(RATE_ONE - 1) << 12} {2**32 - 1}"
    assert lines[2] == f"{2**32 // 256} {dpu_model.FIRST_QPN}"
    assert 0 <= dpu_model.STATE_BYTES - library.pcc_state_bytes() < 4000


@pytest.mark.parametrize("hosts", [2, 16, 64])
def test_the_dpu_paces_what_the_plan_says(tmp_path: Path, library: ctypes.CDLL, hosts: int) -> None:
    """Read by the DPU's parser and asked by QP number. No demand is at rate 0, no port above its speed, none ends late."""
    demand = skewed(hosts, hosts)
    prepared = scenario(tmp_path, demand, control_delay_ns=0)
    given(tmp_path, prepared)
    dpus = [Dpu(library) for _ in range(hosts)]
    for at_ns, host, message in sends(tmp_path):
        assert at_ns == 0
        assert dpus[host].send(message, room=64).status == 0
    flows = np.frombuffer((tmp_path / "flows-0.bin").read_bytes(), dtype=FLOW_FIELDS)
    rates = np.zeros((hosts, hosts), dtype=np.int64)
    for flow in flows:
        rates[flow["source"], flow["destination"]] = dpus[flow["source"]].rate(
            Flow(), TX, qpn=dpu_model.FIRST_QPN + int(flow["destination"]), bytes=MTU
        )
    assert (rates[demand > 0] > 0).all()
    assert rates.sum(axis=0).max() <= RATE_ONE
    assert rates.sum(axis=1).max() <= RATE_ONE
    largest = max(demand.sum(axis=0).max(), demand.sum(axis=1).max())
    share = 1 - Fraction(hosts + 1, RATE_ONE)
    for size, rate in zip(demand[demand > 0].tolist(), rates[demand > 0].tolist(), strict=True):
        assert Fraction(size * RATE_ONE, rate) <= largest / share
    assert (flows["steps"] == np.minimum(rates[flows["source"], flows["destination"]] << 12, 2**32 - 1)).all()


def test_a_rate_of_the_whole_line(tmp_path: Path, library: ctypes.CDLL) -> None:
    """One flow alone: R is what lambda leaves of it, and survives both ways of counting."""
    prepared = scenario(tmp_path, [[0, MTU], [0, 0]], control_delay_ns=0)
    given(tmp_path, prepared)
    dpu = Dpu(library)
    for _, host, message in sends(tmp_path):
        if host == 0:
            dpu.send(message)
    assert RATE_ONE - 4 <= dpu.rate(Flow(), TX, qpn=dpu_model.FIRST_QPN + 1) <= RATE_ONE
    assert dpu_model._dpu_steps(
        Plan(dpu_model.plan(prepared.demands[0], prepared).discipline, np.array([0, 1 << 12, 2**32 - 1], np.uint32))
    ).tolist() == [0, 1, RATE_ONE]


def test_messages_come_after_the_mailboxs_delay_unless_another_is_given(tmp_path: Path) -> None:
    demand = skewed(4, 1)
    prepared = scenario(tmp_path, demand)
    assert prepared.experiment.control_delay_ns == 13_200_000
    job = given(tmp_path, prepared)
    delay_ns = 13_200_000 * prepared.dilation
    assert job["phases"][0]["rates_ns"] == delay_ns
    assert [at_ns for at_ns, _, _ in sends(tmp_path)] == [0] * 4 + [delay_ns] * 4
    flows = np.frombuffer((tmp_path / "flows-0.bin").read_bytes(), dtype=FLOW_FIELDS)
    assert flows["ready_ns"].min() >= delay_ns
    assert scenario(tmp_path, demand, control_delay_ns=0).experiment.control_delay_ns == 0
    assert scenario(tmp_path, demand, nic="ebpf").experiment.control_delay_ns == 0


def test_with_old_rates_the_phase_before_comes_first(tmp_path: Path, library: ctypes.CDLL) -> None:
    prepared = scenario(tmp_path, skewed(3, 1), skewed(3, 2), control_delay_ns=500, meanwhile="old")
    given(tmp_path, prepared)
    assert [at_ns for at_ns, _, _ in sends(tmp_path, 0)] == [0] * 3 + [500 * prepared.dilation] * 3
    second = sends(tmp_path, 1)
    assert [at_ns for at_ns, _, _ in second] == [0] * 6 + [500 * prepared.dilation] * 3
    dpu, rates = Dpu(library), []
    for _, host, message in second:
        if host == 1:
            assert dpu.send(message).status == 0
            rates.append(dpu.rate(Flow(), TX, qpn=dpu_model.FIRST_QPN + 2))
    expected = [dpu_model.plan(demand, prepared).steps[1, 2] >> 12 for demand in prepared.demands]
    assert rates[1:] == expected
    assert expected[0] != expected[1]


def test_the_dpu_has_the_fallback(tmp_path: Path) -> None:
    """And the engine no control."""
    prepared = scenario(
        tmp_path, skewed(3, 1), schedule=["rate", "rate+fallback", "rr", "rr+fallback"], control_delay_ns=0
    )
    for run, flag, control in (("rate", 0, "none"), ("rate+fallback", 1, "none")):
        assert given(tmp_path, prepared, run)["control"]["cc"] == control
        assert struct.unpack_from("<I", sends(tmp_path)[0][2], 32 + 16) == (flag,)
    for run, control in (("rr", "none"), ("rr+fallback", "fallback")):
        assert given(tmp_path, prepared, run)["control"]["cc"] == control
        assert sends(tmp_path) == []


def test_another_program_that_sets_rates_is_refused(tmp_path: Path) -> None:
    for cc in ("dcqcn", "dcqcn-paper"):
        with pytest.raises(InputError, match=rf"nic doca-model: rate\+{cc} sets rates by a program of its own"):
            scenario(tmp_path, skewed(3, 1), schedule=["rate", f"rate+{cc}"])
    scenario(tmp_path, skewed(3, 1), schedule=["rr+dcqcn", "rate+nscc"])
