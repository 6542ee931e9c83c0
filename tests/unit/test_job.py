"""From an experiment to what the engine is given."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from controller.errors import InputError
from controller.schedule import make_plan
from testbed.experiment import from_mapping
from testbed.job import Scenario, flow_table, prepare, prepare_job

MTU = 4096
pytestmark = pytest.mark.filterwarnings("error")


def scenario(folder: Path, *rows: str, **keys: Any) -> Scenario:
    path = folder / "m.csv"
    path.write_text("\n".join(rows))
    return prepare(from_mapping({"demand": [{"file": str(path), "unit": "wire-bytes"}], **keys}))


def uniform(hosts: int, amount: int = MTU) -> list[str]:
    return [",".join(str(0 if i == j else amount) for j in range(hosts)) for i in range(hosts)]


def flows(prepared: Scenario, schedule: str) -> NDArray[np.void]:
    demand = prepared.demands[0]
    return flow_table(prepared, demand, make_plan(schedule, demand, prepared.speeds_bps))


def test_a_sender_begins_with_the_flow_after_its_own_index(tmp_path: Path) -> None:
    table = flows(scenario(tmp_path, *uniform(4)), "rr")
    pairs = list(zip(table["source"].tolist(), table["destination"].tolist(), strict=True))
    assert pairs == [(i, (i + k) % 4) for i in range(4) for k in (1, 2, 3)]


def test_flows_without_demand_are_left_out(tmp_path: Path) -> None:
    table = flows(scenario(tmp_path, "0,0,100", "0,0,0", "4096,0,0"), "rr")
    assert list(zip(table["source"].tolist(), table["destination"].tolist(), strict=True)) == [(0, 2), (2, 0)]


@pytest.mark.parametrize(
    ("amount", "packets", "last"), [(64, 1, 64), (4096, 1, 4096), (4160, 2, 64), (8191, 2, 4095), (8192, 2, 4096)]
)
def test_packets_and_the_last_of_them(tmp_path: Path, amount: int, packets: int, last: int) -> None:
    table = flows(scenario(tmp_path, f"0,{amount}", "0,0"), "rr")
    assert (table["packets"].tolist(), table["last_bytes"].tolist()) == ([packets], [last])


def test_round_robin_flows_are_ready_at_once_and_unpaced(tmp_path: Path) -> None:
    table = flows(scenario(tmp_path, *uniform(4)), "rr")
    assert not table["ready_ns"].any()
    assert not table["steps"].any()


def first_gaps_ns(prepared: Scenario, table: NDArray[np.void]) -> NDArray[np.float64]:
    byte_ns = float(8 * prepared.dilation / 800)
    size = np.where(table["packets"] > 1, prepared.experiment.mtu_bytes, table["last_bytes"])
    return size * byte_ns / (table["steps"] / 2.0**32)


@pytest.mark.parametrize("phase", ["random", "golden"])
def test_paced_flows_start_within_their_first_gap(tmp_path: Path, phase: str) -> None:
    prepared = scenario(tmp_path, *uniform(16, 3 * MTU + 100), phase=phase)
    table = flows(prepared, "rate")
    share = table["ready_ns"] / first_gaps_ns(prepared, table)
    assert share.min() >= 0
    assert share.max() < 1
    # Spread over it evenly, as 240 flows can be.
    counts, _ = np.histogram(share, bins=4, range=(0, 1))
    assert counts.min() > 35


def test_a_flow_of_one_short_packet_starts_within_its_own_time(tmp_path: Path) -> None:
    prepared = scenario(tmp_path, "0,64,1000000", "0,0,0", "0,0,0")
    table = flows(prepared, "rate")
    assert table["ready_ns"][0] < first_gaps_ns(prepared, table)[0]


def test_golden_phases_follow_their_formula(tmp_path: Path) -> None:
    prepared = scenario(tmp_path, *uniform(8), phase="golden")
    table = flows(prepared, "rate")
    places = (0.618033988749895 * table["source"] + 0.754877666246693 * table["destination"]) % 1
    assert np.abs(table["ready_ns"] - places * first_gaps_ns(prepared, table)).max() < 2


def test_zero_phases_are_zero(tmp_path: Path) -> None:
    assert not flows(scenario(tmp_path, *uniform(4), phase="zero"), "rate")["ready_ns"].any()


def test_phases_hang_on_the_seed_alone(tmp_path: Path) -> None:
    def starts(seed: int) -> list[int]:
        return flows(scenario(tmp_path, *uniform(8), seed=seed), "rate")["ready_ns"].tolist()  # type: ignore[no-any-return]

    assert starts(1) == starts(1)
    assert starts(1) != starts(2)


@pytest.mark.parametrize(("hosts", "leaf"), [(2, 4), (16, 4), (17, 8), (20, 8)])
def test_hosts_per_leaf_by_default(tmp_path: Path, hosts: int, leaf: int) -> None:
    assert scenario(tmp_path, *uniform(hosts)).hosts_per_leaf == leaf


def test_hosts_that_do_not_fill_the_last_leaf(tmp_path: Path) -> None:
    prepared = scenario(tmp_path, *uniform(10))
    assert len(prepared.wiring.hosts) == 10
    assert [name for name in prepared.wiring.switches if name.startswith("leaf")] == ["leaf1", "leaf2", "leaf3"]


def test_the_lower_bound_with_unequal_speeds(tmp_path: Path) -> None:
    prepared = scenario(tmp_path, *uniform(4, 10_000), link_gbps_of={"h3": 200})
    (bottleneck,) = prepared.bottlenecks
    assert str(bottleneck) == "receiver 2"
    assert bottleneck.time_s == Fraction(8 * 30_000, 200 * 10**9)
    assert prepared.dilation == 100


def test_a_number_of_hosts_that_is_not_the_matrix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"hosts is 8, but .* has 4"):
        scenario(tmp_path, *uniform(4), hosts=8)
    assert len(scenario(tmp_path, *uniform(4), hosts=4).wiring.hosts) == 4


def test_phases_of_different_sizes_are_refused(tmp_path: Path) -> None:
    for hosts in (3, 4):
        (tmp_path / f"{hosts}.csv").write_text("\n".join(uniform(hosts)))
    tables = [{"file": str(tmp_path / "3.csv")}, {"file": str(tmp_path / "4.csv"), "after": ["1"]}]
    with pytest.raises(InputError, match=r"4\.csv has 4 hosts, .*3\.csv has 3"):
        prepare(from_mapping({"demand": tables}))


def test_more_packets_than_can_be_counted_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="packets"):
        scenario(tmp_path, f"0,{2**31 * MTU}", "0,0")


# Times that the fabric's fields do not hold: a link's delay in 32 bits, a packet's time in 31.
TOO_LONG: dict[str, dict[str, Any]] = {
    "delay": {"link_ns": 10_000_000, "dilation": 2000},
    "delay of one link": {"link_ns_of": {"h1": 10_000_000}, "dilation": 2000},
    "packet": {"link_gbps": 0.001, "dilation": 1000},
    "packet of one link": {"link_gbps_of": {"h1": 0.001}},
}


@pytest.mark.parametrize("keys", TOO_LONG.values(), ids=TOO_LONG)
def test_times_that_do_not_fit_are_refused(tmp_path: Path, keys: dict[str, Any]) -> None:
    try:
        prepared = scenario(tmp_path, *uniform(2), **keys)
        prepare_job(prepared, "rate", tmp_path)
    except InputError:
        return
    # Else a dilation was chosen with which they do fit.
    assert "dilation" not in keys
    assert all(port.ns * prepared.dilation < 2**32 for port in prepared.wiring.ports)
    assert all(MTU * 8 * prepared.dilation / port.gbps < 2**31 for port in prepared.wiring.ports)


def test_what_the_guest_is_given(tmp_path: Path) -> None:
    prepared = scenario(tmp_path, *uniform(4, 10_000), link_gbps_of={"h3": 200}, link_ns_of={"h2": 500}, seed=3)
    job = prepare_job(prepared, "rate", tmp_path)
    assert job.packets == 12 * 3
    given = json.loads((tmp_path / "job.json").read_text())
    assert given["network"]["hosts"] == 4
    assert given["dilation"] == "100"
    byte_ns = np.fromfile(tmp_path / "byte_ns.bin", dtype="<u8") / 2**32
    assert byte_ns.tolist() == [1, 1, 4, 1]
    delays = np.fromfile(tmp_path / "propagation_ns.bin", dtype="<u4").tolist()
    assert delays == [port.ns * 100 for port in prepared.wiring.ports]
    assert delays[1] == 50_000
    steps = np.fromfile(tmp_path / "rates-0.bin", dtype="<u4").reshape(4, 4)
    assert (steps == make_plan("rate", prepared.demands[0], prepared.speeds_bps).steps).all()
    assert not np.fromfile(tmp_path / "start-0.bin", dtype="<u8").any()


def test_senders_start_within_the_jitter_and_by_the_seed(tmp_path: Path) -> None:
    def starts(seed: int) -> list[int]:
        prepared = scenario(tmp_path, *uniform(8), start_jitter_ns=40, seed=seed)
        prepare_job(prepared, "rr", tmp_path)
        return np.fromfile(tmp_path / "start-0.bin", dtype="<u8").tolist()  # type: ignore[no-any-return]

    assert starts(1) == starts(1) != starts(2)
    assert len(set(starts(1))) == 8
    assert max(starts(1)) < 40 * 100


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"dilation": 0.001}, "dilation is 0.001"),
        ({"dilation": 1}, "give 100 or more"),
        ({"queue_bytes": 4095}, "queue_bytes is 4095"),
    ],
)
def test_what_cannot_be_emulated_is_refused(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        scenario(tmp_path, *uniform(4), **keys)


def test_a_slow_uplink_is_said(tmp_path: Path) -> None:
    """4 hosts on 2 leaves: 4 packets cross each way, 2 on each of the 2 uplinks; at 100 Gb/s they take 0.66 us."""
    slow = scenario(tmp_path, *uniform(4), hosts_per_leaf=2, link_gbps_of={"leaf1-spine1": 100})
    assert any("leaf1-spine1 needs 0.66 us" in note or "spine1-leaf1 needs 0.66 us" in note for note in slow.notes)
    assert not scenario(tmp_path, *uniform(4), hosts_per_leaf=2).notes
