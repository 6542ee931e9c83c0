"""From an experiment to what the engine is given."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from controller.errors import InputError
from controller.schedule import make_plan
from controller.schedule.plan import Discipline
from testbed.engine import FLOW_FIELDS, RECEIVED_WORDS, Balancing, LossRecovery
from testbed.experiment import from_mapping
from testbed.job import background_table, flow_table, prepare_job, start_offsets
from testbed.scenario import Scenario, prepare

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
    assert scenario(tmp_path, *uniform(hosts)).shape == {"hosts_per_leaf": leaf}


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
        prepare_job(prepared, prepared.experiment.run_of("rate"), tmp_path)
    except InputError:
        return
    # Else a dilation was chosen with which they do fit.
    assert "dilation" not in keys
    assert all(port.ns * prepared.dilation < 2**32 for port in prepared.wiring.ports)
    assert all(MTU * 8 * prepared.dilation / port.gbps < 2**31 for port in prepared.wiring.ports)


def test_what_the_guest_is_given(tmp_path: Path) -> None:
    prepared = scenario(tmp_path, *uniform(4, 10_000), link_gbps_of={"h3": 200}, link_ns_of={"h2": 500}, seed=3)
    job = prepare_job(prepared, prepared.experiment.run_of("rate"), tmp_path)
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
        prepare_job(prepared, prepared.experiment.run_of("rr"), tmp_path)
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


def given_to_the_guest(folder: Path, prepared: Scenario, run: str = "rr") -> dict[str, Any]:
    prepare_job(prepared, prepared.experiment.run_of(run), folder)
    return dict(json.loads((folder / "job.json").read_text()))


def test_the_fabrics_constants(tmp_path: Path) -> None:
    constants = given_to_the_guest(tmp_path, scenario(tmp_path, *uniform(16), loss_data=0.25, loss_ack=0.5))[
        "constants"
    ]
    salts = [constants.pop(name) for name in ("mark_salt", "loss_salt")]
    assert constants == {
        "acknowledging": True,
        "trimming": True,
        "ecn_kmin_bytes": 40 * MTU,
        "ecn_kmax_bytes": 160 * MTU,
        "tolerance_ns": 1024,
        "loss_data": 2**30,
        "loss_control": 2**31,
        "failing": False,
        "adaptive": False,
        "spraying": True,
    }
    assert len(set(salts)) == 2
    assert all(0 <= salt < 2**32 for salt in salts)


CHANGED: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "no trimming": ({"trimming": False}, {"trimming": False}),
    "open loop": ({"loss_recovery": "none"}, {"acknowledging": False}),
    "timeouts alone": ({"loss_recovery": "timeout"}, {}),
    "no marks": ({"ecn_kmax_bytes": 0}, {"ecn_kmax_bytes": 0}),
    "a threshold": ({"ecn_kmin_bytes": 7}, {"ecn_kmin_bytes": 7}),
    "a link that fails": (
        {"link_failure": [{"link": "h1", "down_ns": 1, "up_ns": 2}]},
        {"failing": True},
    ),
}


@pytest.mark.parametrize(("keys", "different"), CHANGED.values(), ids=CHANGED)
def test_a_key_changes_its_own_constant_alone(tmp_path: Path, keys: dict[str, Any], different: dict[str, int]) -> None:
    plain = given_to_the_guest(tmp_path, scenario(tmp_path, *uniform(16)))["constants"]
    changed = given_to_the_guest(tmp_path, scenario(tmp_path, *uniform(16), **keys))["constants"]
    assert {name: value for name, value in changed.items() if value != plain[name]} == different
    assert set(changed) == set(plain)


def test_marks_losses_and_paths_are_drawn_from_the_seed(tmp_path: Path) -> None:
    def drawn(seed: int) -> list[int]:
        given = given_to_the_guest(tmp_path, scenario(tmp_path, *uniform(4), seed=seed))
        constants = given["constants"]
        return [given["path_salt"], given["entropy_seed"], constants["mark_salt"], constants["loss_salt"]]

    assert drawn(1) == drawn(1)
    assert len({*drawn(1), *drawn(2)}) == 8


def test_times_of_the_transport_are_kernel_times(tmp_path: Path) -> None:
    transport = given_to_the_guest(tmp_path, scenario(tmp_path, *uniform(16)))["transport"]
    assert transport == {
        "recovery": LossRecovery.SACK,
        "rto_ns": 6_415_200,
        "reorder_ns": 816_700,
        "probe_ns": 2_450_000,
        "tail_probe_ns": 1_633_300,
    }
    for name in ("sack", "timeout", "none"):
        given = given_to_the_guest(tmp_path, scenario(tmp_path, *uniform(16), loss_recovery=name, dilation=250))
        assert given["transport"]["recovery"] == LossRecovery[name.upper()]
        assert given["transport"]["rto_ns"] == 64_152 * 250
    # With a dilation of 12.5, half nanoseconds are cut.
    slow = scenario(tmp_path, *uniform(16), link_gbps=100)
    assert slow.dilation == Fraction(25, 2)
    times = given_to_the_guest(tmp_path, slow)["transport"]
    assert times["rto_ns"] == int(slow.parameters.rto_ns * slow.dilation)
    assert all(isinstance(value, int) for value in times.values())


def test_what_congestion_controls_are_told(tmp_path: Path) -> None:
    prepared = scenario(tmp_path, *uniform(16), link_gbps_of={"h3": 200}, trimming=False, seed=7)
    control = given_to_the_guest(tmp_path, prepared, "rr+nscc")["control"]
    speeds = control.pop("line_rate_bps")
    assert speeds == [200e9 if host == 2 else 800e9 for host in range(16)]
    assert control == {"cc": "nscc", "header_bytes": 64, "trimming": False, "seed": 7, "rtt_ns": 8166.4}
    assert given_to_the_guest(tmp_path, prepared, "rr")["control"]["cc"] == "none"
    assert given_to_the_guest(tmp_path, scenario(tmp_path, *uniform(2)))["control"]["rtt_ns"] == 4083.2


def test_a_control_of_the_users_own_is_taken_along(tmp_path: Path) -> None:
    source = "# as it was when the run began\r\nx = '\u00e4'\n".encode()
    (tmp_path / "mine.py").write_bytes(source)
    work = tmp_path / "work"
    work.mkdir()
    prepared = scenario(tmp_path, *uniform(4), schedule=["rr"], cc=str(tmp_path / "mine.py"))
    assert given_to_the_guest(work, prepared)["control"]["cc"] == str(tmp_path / "mine.py")
    assert (work / "control.py").read_bytes() == source
    (work / "control.py").unlink()
    given_to_the_guest(work, prepared, "rate+nscc")
    assert not (work / "control.py").exists()


def test_the_runs_schedule_and_balancing(tmp_path: Path) -> None:
    for schedule, discipline in (("rr", Discipline.ROUND_ROBIN), ("rate", Discipline.PACED)):
        for run in (schedule, f"{schedule}+nscc"):
            prepared = scenario(tmp_path, *uniform(4), lb="ecmp")
            given = given_to_the_guest(tmp_path, prepared, run)
            assert (given["phases"][0]["discipline"], given["balancing"]) == (discipline, Balancing.ECMP)
            steps = np.fromfile(tmp_path / "flows-0.bin", dtype=flows(prepared, schedule).dtype)["steps"]
            assert steps.tolist() == flows(prepared, schedule)["steps"].tolist()


def test_who_balances(tmp_path: Path) -> None:
    for lb, balancing in (("ops", 0), ("ecmp", 1), ("reps", 2), ("ar", 3)):
        given = given_to_the_guest(tmp_path, scenario(tmp_path, *uniform(4), lb=lb))
        assert given["balancing"] == balancing
        assert given["constants"]["adaptive"] == (lb == "ar")
        assert given["freeze_ns"] == 10_000_000 * 100


def test_the_queue_is_the_derived_one(tmp_path: Path) -> None:
    for keys, expected in (({}, 819_200), ({"trimming": False}, 4_096_000), ({"queue_bytes": 0}, 0)):
        assert (
            given_to_the_guest(tmp_path, scenario(tmp_path, *uniform(16), **keys))["network"]["queue_bytes"] == expected
        )


def test_a_link_fails_in_both_directions_in_kernel_time(tmp_path: Path) -> None:
    failures = [
        {"link": "h3", "down_ns": 100, "up_ns": 2000.5},
        {"link": "leaf2-spine1", "down_ns": 0, "up_ns": 1},
    ]
    prepared = scenario(tmp_path, *uniform(16), link_failure=failures)
    given = given_to_the_guest(tmp_path, prepared)["failures"]
    ends = [(prepared.wiring.ports[port].node, prepared.wiring.ports[port].peer_node, *times) for port, *times in given]
    assert sorted(ends) == [
        ("h3", "leaf1", 10_000, 200_050),
        ("leaf1", "h3", 10_000, 200_050),
        ("leaf2", "spine1", 0, 100),
        ("spine1", "leaf2", 0, 100),
    ]


@pytest.mark.parametrize("link", ["h17", "h0", "leaf1", "spine1", "leaf1-spine5", "leaf5-spine1", "H1", "", "h1-h2"])
def test_a_failure_of_what_is_no_link_is_refused(tmp_path: Path, link: str) -> None:
    with pytest.raises(InputError, match=r"link_failure: .* is not a link of this topology") as caught:
        scenario(tmp_path, *uniform(16), link_failure=[{"link": link, "down_ns": 1, "up_ns": 2}])
    assert repr(link) in str(caught.value)


BACKGROUND = {"source": "h2", "destination": "h3", "bytes": 2 * MTU + 100, "rate_gbps": 200, "start_ns": 12.5}


def test_the_background_as_the_engine_gets_it(tmp_path: Path) -> None:
    """In kernel time, in steps of the sender's own line rate, by source; no packet without a header."""
    flows = [
        BACKGROUND,
        {"source": "h1", "destination": "h2", "bytes": MTU + 1, "rate_gbps": 100},
        {"source": "h2", "destination": "h3", "bytes": 64, "rate_gbps": 800},
    ]
    table = background_table(scenario(tmp_path, *uniform(4), background=flows, link_gbps_of={"h1": 400}))
    assert table.tolist() == [
        (0, 1, 0, 2, 64, 2**30, 0),
        (1, 2, 1250, 3, 100, 2**30, 2),
        (1, 2, 0, 1, 64, 2**32 - 1, 5),
    ]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"source": "h5"}, "background 1: 'h5' is no host: there are h1 to h4"),
        ({"destination": "leaf1"}, "background 1: 'leaf1' is no host"),
        ({"rate_gbps": 800.001}, "background 1: rate_gbps is 800.001, and h2 sends 800 Gb/s at most"),
        ({"bytes": 2**50}, "background: .* packets of 1 flows: .* are too many"),
    ],
)
def test_a_background_that_cannot_be_is_refused(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        scenario(tmp_path, *uniform(4), background=[{**BACKGROUND, **changed}])


def test_a_background_may_hold_a_run_up(tmp_path: Path) -> None:
    """The limit of virtual time grows by as long as it lasts."""
    load = {**BACKGROUND, "bytes": 10**8, "rate_gbps": 100, "start_ns": 500}
    plain = given_to_the_guest(tmp_path, scenario(tmp_path, *uniform(4)))
    loaded = given_to_the_guest(tmp_path, scenario(tmp_path, *uniform(4), background=[load]))
    assert loaded["phases"][0]["limit_ns"] - plain["phases"][0]["limit_ns"] == 100 * (500 + 8 * 10**6)


def test_each_flow_has_words_of_its_own(tmp_path: Path) -> None:
    """ceil(packets / 64) of them, in no other flow's, and one after the other."""
    amounts = [1, 63, 64, 65, 127, 128, 129, 1000, 64 * 64, 64 * 64 + 1, 2, 7]
    amount = iter(amounts)
    rows = [",".join(str(0 if i == j else next(amount) * MTU - 100) for j in range(4)) for i in range(4)]
    table = flows(scenario(tmp_path, *rows), "rr")
    assert sorted(table["packets"].tolist()) == sorted(amounts)
    taken: list[int] = []
    for flow in table:
        taken += range(int(flow["word"]), int(flow["word"]) + math.ceil(int(flow["packets"]) / 64))
    assert taken == list(range(len(taken)))
    assert len(taken) == sum(math.ceil(amount / 64) for amount in amounts)


def test_more_packets_than_receivers_keep_account_of_are_refused(tmp_path: Path) -> None:
    most = (RECEIVED_WORDS - 2) * 64
    table = flows(scenario(tmp_path, f"0,{most * MTU}", "0,0"), "rr")
    assert table["word"][-1] + math.ceil(table["packets"][-1] / 64) <= RECEIVED_WORDS
    with pytest.raises(InputError, match="more than receivers keep account of"):
        scenario(tmp_path, f"0,{(most + 128) * MTU}", "0,0")


# Link delay in ns, and what else is there.
LOOKAHEAD: dict[str, dict[str, Any]] = {
    "default": {},
    "one short link": {"link_ns_of": {"h2": 300}},
    "short links": {"link_ns": 200},
    "long links": {"link_ns": 5000},
    "slow links": {"link_gbps": 100},
    "other dilation": {"dilation": 333},
    "large packets": {"mtu_bytes": 9216},
}


@pytest.mark.parametrize("keys", LOOKAHEAD.values(), ids=LOOKAHEAD)
def test_every_ack_is_known_in_time(tmp_path: Path, keys: dict[str, Any]) -> None:
    """Period and lead together are no longer than a host's link, or an ACK would take effect too late."""
    prepared = scenario(tmp_path, *uniform(16, 3_000_000), **keys)
    (phase,) = given_to_the_guest(tmp_path, prepared)["phases"]
    shortest_ns = min(int(port.ns * prepared.dilation) for port in prepared.wiring.ports[:16])
    assert phase["period_ns"] + phase["lead_ns"] <= shortest_ns
    assert phase["lead_ns"] > 0
    # And not much shorter than it must be, since each wake costs.
    assert phase["period_ns"] >= min(0.8 * shortest_ns, 0.99 * 1000 * prepared.dilation)


def test_a_link_between_switches_does_not_shorten_the_period(tmp_path: Path) -> None:
    def period(**keys: Any) -> int:
        prepared = scenario(tmp_path, *uniform(16, 3_000_000), **keys)
        return int(given_to_the_guest(tmp_path, prepared)["phases"][0]["period_ns"])

    assert period(link_ns_of={"leaf1-spine1": 10}) == period()
    # Nor does a host's that is very short: ACKs then take effect up to a period late.
    assert period(link_ns_of={"h1": 199}) >= 0.99 * 100_000
    assert period(link_ns_of={"h1": 0}) >= 0.99 * 100_000


def test_a_sender_that_starts_late_waits_only_for_what_is_left_of_the_control_delay(tmp_path: Path) -> None:
    """With 2 us of delay and up to 4 us of jitter, in kernel time at dilation 100: each starts at the later of both."""
    keys = {"start_jitter_ns": 4000, "phase": "zero", "seed": 3}
    delayed = scenario(tmp_path, *uniform(8), control_delay_ns=2000, **keys)
    given_to_the_guest(tmp_path, delayed, "rate")
    flows_given = np.frombuffer((tmp_path / "flows-0.bin").read_bytes(), dtype=FLOW_FIELDS)
    late = start_offsets(delayed).astype(int)
    assert late.min() < 200_000 < late.max()
    starts = late[flows_given["source"]] + flows_given["ready_ns"].astype(int)
    assert starts.tolist() == np.maximum(late, 200_000)[flows_given["source"]].tolist()
