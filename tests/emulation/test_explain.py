"""Where a last byte's time went: held against the oracle's account, against sums by hand, and against the run's own figures."""

from __future__ import annotations

import argparse
import json
import re
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.errors import CannotRunError, InputError
from testbed.cli import explain as verb
from testbed.engine import BACKGROUND_PSN
from testbed.experiment import from_mapping
from testbed.explain import account
from testbed.explain.account import PhaseAccount, account_of
from testbed.explain.trace import Trace
from testbed.measure.results import RunData
from testbed.runner import prepare_folder, run_schedule
from testbed.scenario import Scenario, prepare
from testbed.workload.zipf import zipf
from tests import oracle_path
from tests.emulation.conftest import CPU, run_once, scenario_of, write_matrix
from tests.emulation.test_oracle_agreement import (
    BACKGROUND,
    MTU,
    eleven_hosts,
    network_of,
    simulate,
    skewed,
    tree,
)


def explained(scenario: Scenario, schedule: str) -> tuple[RunData, list[PhaseAccount]]:
    """A run with its accounts, of which each must add up to what its figures say."""
    accounts: list[PhaseAccount] = []
    scenario = replace(scenario, experiment=replace(scenario.experiment, trace=True))

    def inspect(work: Path) -> None:
        for number in range(len(scenario.demands)):
            trace = Trace(scenario, work, number)
            accounts.append(account_of(scenario, scenario.experiment.run_of(schedule), trace, number))

    data = run_schedule(scenario, schedule, CPU, lambda *_: None, threading.Event(), inspect=inspect)
    for each, measured_ns in zip(accounts, data.figures["phase_cct_ns"], strict=True):
        assert sum(part.kernel_ns for part in each.parts) == each.kernel_ns
        assert all(part.kernel_ns > 0 for part in each.parts)
        assert round(float(each.kernel_ns / scenario.dilation), 3) == measured_ns
        assert all(sum(share.kernel_ns for share in part.shared) <= part.kernel_ns for part in each.parts)
        flows = data.flows
        own = (flows["src"] == each.packet.source) & (flows["dst"] == each.packet.destination)
        own &= flows["phase"] == each.phase
        assert each.sendings - 1 <= flows["retransmissions"][own].sum()
    total_ns = float(sum(each.kernel_ns for each in accounts) / scenario.dilation)
    assert total_ns == pytest.approx(data.figures["cct_ns"], abs=2e-3)
    return data, accounts


def together(found: PhaseAccount, group: str) -> int:
    """Of a group's parts."""
    return sum(part.kernel_ns for part in found.parts if part.group == group)


def some(found: PhaseAccount, pattern: str) -> list[int]:
    """The parts whose text matches."""
    return [part.kernel_ns for part in found.parts if re.search(pattern, part.what)]


OPEN: dict[str, dict[str, Any]] = {
    "sprayed": {},
    "one path": {"lb": "ecmp"},
    "adaptive": {"lb": "ar"},
    "pairs": {"links": "pairs"},
    "background": {"background": BACKGROUND},
}


def assert_as_the_oracle(found: PhaseAccount, scenario: Scenario, schedule: str) -> None:
    """The same packet, way, waits, and flows ahead of it; and of the sender's time as much for each flow."""
    expected = simulate(scenario, schedule)
    network = network_of(scenario)
    key, end = oracle_path.last_packet(expected, BACKGROUND_PSN)
    packet = found.packet
    assert ((packet.source, packet.destination, packet.psn), found.kernel_ns) == (key, end)
    stages = oracle_path.stages(network, expected, key)
    nic, *switches = stages
    waits = {part.where: part for part in found.parts if part.group == account.QUEUE}
    for stage in switches:
        port = scenario.wiring.ports[stage.port]
        part = waits.pop(f"{port.node}-{port.peer_node}", None)
        assert (part.kernel_ns if part else 0) == stage.start - stage.arrival == sum(stage.ahead.values())
        shares: Counter[tuple[int, int]] = Counter()
        for share in part.shared if part else ():
            shares[share.flow.source, share.flow.destination] += share.kernel_ns
        assert shares == stage.ahead
    wires = sum(stage.far_end - stage.start for stage in stages)
    assert together(found, account.WIRE) == wires
    # The oracle's senders give their NICs everything at once: what it calls a queue there is time at the sender here.
    sender = [part for part in found.parts if part.group == account.SENDER]
    at_nic = sum(part.kernel_ns for part in waits.values())
    assert sum(part.kernel_ns for part in sender) + at_nic == nic.start
    assert together(found, account.RETRANSMISSION) == together(found, account.CONTROL) == 0
    if schedule == "rr":
        # Of the time at its sender: its own flow's earlier packets, and those of others, by flow.
        theirs: Counter[tuple[int, int]] = Counter()
        for part in sender:
            for share in part.shared:
                theirs[share.flow.source, share.flow.destination] += share.kernel_ns
        (own,) = some(found, "earlier packets of its own flow")
        assert theirs + Counter({key[:2]: own}) == nic.ahead


@pytest.mark.parametrize("schedule", ["rr", "rate"])
@pytest.mark.parametrize("case", OPEN)
def test_open_loops_against_the_oracle(tmp_path: Path, case: str, schedule: str) -> None:
    """Unequal links and senders that start within a packet's time, so that nothing ties."""
    scenario = eleven_hosts(tmp_path, 4, **OPEN[case])
    _, (found,) = explained(scenario, schedule)
    assert_as_the_oracle(found, scenario, schedule)


@pytest.mark.parametrize("schedule", ["rr", "rate"])
def test_a_fat_tree_against_the_oracle(tmp_path: Path, schedule: str) -> None:
    """Six links."""
    scenario, _ = tree(tmp_path, 16, 4, 6)
    _, (found,) = explained(scenario, schedule)
    assert_as_the_oracle(found, scenario, schedule)


@pytest.mark.parametrize("schedule", ["bvn:barrier", "bvn:clock", "spreadout:free", "spreadout:barrier+nscc"])
def test_stages(tmp_path: Path, schedule: str) -> None:
    """Their sums are as exact; who waits for a stage waits at the sender, and no window is closed where there is none."""
    pytest.importorskip("scipy", reason="needs scipy (extra schedules): bvn finds its matchings with it")
    _, (found,) = explained(sixteen(tmp_path), schedule)
    (staged,) = some(found, re.escape(account.IDLE_STAGED))
    assert staged > 0
    assert (together(found, account.CONTROL) > 0) <= schedule.endswith("+nscc")
    if "barrier" in schedule:
        # All that went before, and the news of it: 15 stages or more, 8.2 us each beside their bytes.
        assert float(staged / sixteen(tmp_path).dilation) > 14 * 4_000


def sixteen(folder: Path, **keys: Any) -> Scenario:
    """Sixteen hosts, most of it to one."""
    return scenario_of(write_matrix(folder / "demand.csv", skewed(16, 2, 60, short=False)), hosts_per_leaf=4, **keys)


def test_trimmed_packets_are_followed(tmp_path: Path) -> None:
    """Round robin without a control: each sending in vain ends with a NACK, which cannot be back before both ways are gone."""
    scenario = sixteen(tmp_path, queue_bytes=10 * MTU)
    data, (found,) = explained(scenario, "rr")
    assert data.figures["nacks"] > 100
    nacks = some(found, "until the NACK was back")
    assert found.sendings == 1 + len(nacks) > 1
    # Equal links of 1 us: the header's last one, and at least two back; no more than the longest way both ways and queues of control.
    assert all(3 * 1000 <= ns / scenario.dilation < 9000 for ns in nacks)
    assert found.notes


def test_a_closed_window_is_told_from_a_turn(tmp_path: Path) -> None:
    """Stop and wait between two hosts on one switch, by hand: 40.96 ns a packet, 0.64 ns an ACK, two links of 1 us each way."""
    control = tmp_path / "one.py"
    control.write_text(
        "from testbed.engine.cca import Control\n"
        "class One(Control):\n"
        "    kind = 'window'\n"
        "    def start(self): return 4096\n"
        "    def on_ack(self, *_): return 4096\n"
        "    def on_nack(self, *_): return 4096\n"
        "    def on_timeout(self, *_): return 4096\n"
    )
    demand = write_matrix(tmp_path / "demand.csv", np.array([[0, 10 * MTU], [0, 0]]))
    scenario = scenario_of(demand, schedule=[f"rr+{control}"])
    _, (found,) = explained(scenario, scenario.experiment.schedule[0])
    round_trip = 2 * (4096 + 100_000) + 2 * (64 + 100_000)
    assert some(found, "window was closed") == [9 * (round_trip - 4096)]
    assert some(found, "earlier packets of its own flow") == [9 * 4096]
    assert together(found, account.WIRE) == 2 * (4096 + 100_000)
    assert found.kernel_ns == 9 * round_trip + 2 * (4096 + 100_000)


def test_a_control_holds_packets(tmp_path: Path) -> None:
    """NSCC closes the windows of an incast, and under rates, where no queue grows, none."""
    demand = write_matrix(tmp_path / "demand.csv", zipf(16, 1.0, 2_000_000, MTU, 0))
    for schedule in ("rr+nscc", "rate+nscc"):
        _, (found,) = explained(scenario_of(demand), schedule)
        assert (together(found, account.CONTROL) > 0) == (schedule == "rr+nscc")


def test_timeouts(tmp_path: Path) -> None:
    """Dropped packets that nobody reports: no timeout is shorter than what it is set to."""
    scenario = sixteen(tmp_path, queue_bytes=10 * MTU, trimming=False, loss_recovery="timeout")
    data, (found,) = explained(scenario, "rr")
    assert data.figures["timeouts"] > 100
    waits = [
        sum(part.kernel_ns for part in found.parts if part.what.startswith(f"sending {number}:"))
        for number in range(1, found.sendings)
    ]
    assert waits
    assert all(ns >= scenario.parameters.rto_ns * scenario.dilation for ns in waits)
    assert len(some(found, "until its timeout")) == len(waits)
    assert len(some(found, "found no room, was dropped")) == len(waits)


def test_losses_on_links(tmp_path: Path) -> None:
    """By chance, where no record tells, and on a link that failed, where the times do."""
    by_chance = [
        explained(sixteen(tmp_path, loss_data=0.3, seed=seed), schedule)[1][0]
        for seed, schedule in ((1, "rate"), (2, "rr+nscc"))
    ]
    assert any(some(found, "lost by chance, or found no room") for found in by_chance)
    down = [{"link": "h3", "down_ns": 20e3, "up_ns": 60e3}]
    demand = np.zeros((4, 4), dtype=np.int64)
    demand[0, 2] = 1000 * MTU
    scenario = scenario_of(write_matrix(tmp_path / "one.csv", demand), link_failure=down)
    data, (found,) = explained(scenario, "rate")
    assert data.figures["lost"] > 100
    assert found.sendings > 1
    assert some(found, "lost on a link that failed")


def test_phases_each_have_a_last_byte(tmp_path: Path) -> None:
    """A second all-to-all after the first: its account begins where the first one's ended; rates come late, senders as well."""
    first = write_matrix(tmp_path / "a.csv", skewed(8, 1, 40, short=True))
    second = write_matrix(tmp_path / "b.csv", skewed(8, 2, 40, short=True))
    keys: dict[str, Any] = {"control_delay_ns": 3000, "start_jitter_ns": 500, "seed": 3}
    demand = [
        {"file": str(first), "name": "out", "unit": "wire-bytes"},
        {"file": str(second), "name": "back", "unit": "wire-bytes", "after": ["out"]},
    ]
    for schedule in ("rate", "rr+nscc"):
        _, accounts = explained(prepare(from_mapping({"demand": demand, **keys})), schedule)
        assert [each.name for each in accounts] == ["out", "back"]
        for each in accounts:
            late, delayed = some(each, "starts late"), some(each, "until its rate was in force")
            assert sum(late + delayed) == (300_000 if schedule == "rate" else sum(late))
            assert 0 <= sum(late) <= 50_000


@pytest.mark.parametrize("cc", ["dcqcn", "fallback"])
def test_rates_that_a_control_sets(tmp_path: Path, cc: str) -> None:
    """Their pace is the control's."""
    _, (found,) = explained(sixteen(tmp_path), f"rate+{cc}")
    assert some(found, "set by the control")
    assert together(found, account.CONTROL) > together(found, account.SENDER)
    assert found.notes


@pytest.mark.parametrize("lb", ["reps", "ecmp"])
def test_other_balancing(tmp_path: Path, lb: str) -> None:
    """In closed loops."""
    explained(sixteen(tmp_path, lb=lb), "rr+nscc")


def saved(folder: Path, scenario: Scenario, schedule: str) -> tuple[Path, dict[str, Any]]:
    """As compare leaves it."""
    out = folder / "results"
    prepare_folder(scenario, out)
    figures = run_once(scenario, schedule).figures
    (out / "result.json").write_text(json.dumps({"runs": [figures]}))
    return out, figures


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It repeats the saved run to the nanosecond, or says what is another one here."""
    scenario = sixteen(tmp_path, schedule=["rr+nscc"], queue_bytes=30 * MTU)
    out, figures = saved(tmp_path, scenario, "rr+nscc")
    assert verb.run(argparse.Namespace(folder=out, run="rr+nscc", json=True)) == 0
    found = json.loads(capsys.readouterr().out)
    (phase,) = found["phases"]
    assert sum(part["kernel_ns"] for part in phase["parts"]) == found["kernel_ns"] == phase["kernel_ns"]
    assert found["ns"] == figures["cct_ns"]
    assert verb.run(argparse.Namespace(folder=out, run="1", json=False)) == 0
    printed = capsys.readouterr().out
    (total,) = re.findall(r"CCT of rr\+nscc +([0-9.]+) +100.00", printed)
    assert float(total) == pytest.approx(figures["cct_ns"] / 1000, abs=1e-6)

    changed = {**figures, "marks": figures["marks"] + 1, "kernel_version": "6.12.0"}
    (out / "result.json").write_text(json.dumps({"runs": [changed]}))
    with pytest.raises(CannotRunError, match=r"another run here \(marks \d+, here \d+\).*kernel_version 6.12.0, here"):
        verb.run(argparse.Namespace(folder=out, run=None, json=True))
    assert not capsys.readouterr().out


def test_what_cannot_be_explained(tmp_path: Path) -> None:
    """One line each."""
    scenario = sixteen(tmp_path, schedule=["rr"], queue_bytes=4 * MTU, loss_recovery="none")
    out, figures = saved(tmp_path, scenario, "rr")
    assert figures["cct_ns"] is None
    arguments = argparse.Namespace(folder=out, run=None, json=True)
    with pytest.raises(CannotRunError, match="lost bytes"):
        verb.run(arguments)
    whole = {**figures, "cct_ns": 1.0}
    (out / "result.json").write_text(json.dumps({"runs": [whole]}))
    text = (out / "experiment.toml").read_text()
    for key, value, match in (("stage", "host", "in real time"), ("fabric", "bmv2", "BMv2")):
        (out / "experiment.toml").write_text(re.sub(f'{key} = ".*"', f'{key} = "{value}"', text))
        with pytest.raises(CannotRunError, match=match):
            verb.run(arguments)
    (out / "experiment.toml").write_text(text.replace('["rr"]', '["rate"]'))
    with pytest.raises(InputError, match="has no run rr"):
        verb.run(arguments)
    with pytest.raises(InputError, match="give one of these"):
        verb.run(argparse.Namespace(folder=out, run="2", json=True))
