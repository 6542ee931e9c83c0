"""What "auto" comes to: the figures of the reference simulator (uet-htsim), and what overrides them."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import pytest

from controller.errors import InputError
from testbed.experiment import from_mapping
from testbed.parameters import Parameters, derive
from testbed.topology import leaf_spine, wire

MTU = 4096
LOAD = 1_000_000


def parameters(hosts: int = 16, hosts_per_leaf: int = 4, load: int = LOAD, **keys: Any) -> Parameters:
    experiment = from_mapping({"demand": [{"file": "m.csv"}], **keys})
    topo = leaf_spine(
        hosts,
        hosts_per_leaf,
        experiment.link_gbps,
        experiment.link_ns,
        experiment.link_gbps_of,
        experiment.link_ns_of,
    )
    return derive(experiment, wire(topo), load)


def test_two_tiers_at_800_gbps() -> None:
    """4 links of 1 us each way; at each of 4 ports 4096 B and an ACK's 64 B of 0.01 ns a byte."""
    derived = parameters()
    assert derived.rtt_ns == 8 * 1000 + 4 * (4096 + 64) * Fraction(1, 100) == Fraction("8166.4")
    assert derived.bdp_bytes == 816_640
    assert derived.queue_bytes == 200 * MTU == 819_200
    assert derived.ecn_kmin_bytes == 40 * MTU
    assert derived.ecn_kmax_bytes == 160 * MTU
    # A full queue takes 8.192 us.
    assert derived.rto_ns == 15_000 + 6 * 8192
    assert derived.reorder_ns == 8167
    assert derived.probe_ns == 24_500  # 3 x 8166.4, rounded up
    assert derived.tail_probe_ns == 16_333


def test_without_trimming_queues_are_five_times_as_deep() -> None:
    derived, trimmed = parameters(trimming=False), parameters()
    assert derived.queue_bytes == 1000 * MTU == 4_096_000
    assert derived.rto_ns == 15_000 + 6 * 40_960
    for name in ("rtt_ns", "bdp_bytes", "ecn_kmin_bytes", "ecn_kmax_bytes", "reorder_ns", "probe_ns"):
        assert getattr(derived, name) == getattr(trimmed, name), name


@pytest.mark.parametrize(("hosts", "hosts_per_leaf"), [(2, 4), (4, 4), (8, 8)])
def test_a_single_leaf_is_half_as_far(hosts: int, hosts_per_leaf: int) -> None:
    derived = parameters(hosts, hosts_per_leaf)
    assert derived.rtt_ns == Fraction("4083.2")
    assert derived.bdp_bytes == 408_320
    # 99.7 packets, rounded up; the thresholds are fifths of 100.
    assert (derived.queue_bytes, derived.ecn_kmin_bytes, derived.ecn_kmax_bytes) == (100 * MTU, 20 * MTU, 80 * MTU)


def test_one_host_more_than_a_leaf_holds_makes_two_tiers() -> None:
    assert parameters(4, 4).rtt_ns * 2 == parameters(5, 4).rtt_ns


def test_an_unlimited_queue_is_as_deep_as_the_load() -> None:
    derived, finite = parameters(queue_bytes=0), parameters()
    deepest_ns = LOAD // 100
    assert derived.queue_bytes == 0
    assert derived.occupancy_bytes == finite.occupancy_bytes == 200 * MTU
    assert derived.rto_ns == 15_000 + 6 * deepest_ns
    # What waits in it may be overtaken by all that is behind it on another path.
    for name in ("reorder_ns", "probe_ns", "tail_probe_ns"):
        assert getattr(derived, name) == getattr(finite, name) + deepest_ns, name
    assert (derived.ecn_kmin_bytes, derived.ecn_kmax_bytes) == (40 * MTU, 160 * MTU)
    assert parameters(queue_bytes=0, load=2 * LOAD).rto_ns == 15_000 + 12 * deepest_ns


def test_of_a_finite_queue_the_load_says_nothing() -> None:
    assert parameters(load=1) == parameters(load=10**12)


def test_what_is_given_wins_and_leaves_the_rest_alone() -> None:
    automatic = asdict(parameters())
    for key, value in (("queue_bytes", 50_000), ("ecn_kmin_bytes", 0), ("ecn_kmin_bytes", 1), ("ecn_kmax_bytes", 0)):
        given = asdict(parameters(**{key: value}))
        assert given[key] == value
        different = {name for name in given if given[name] != automatic[name]}
        assert different == ({key, "rto_ns", "occupancy_bytes"} if key == "queue_bytes" else {key})
    assert parameters(queue_bytes=50_000).rto_ns == 15_000 + 6 * 500
    both = parameters(ecn_kmin_bytes=5 * MTU, ecn_kmax_bytes=5 * MTU)
    assert (both.ecn_kmin_bytes, both.ecn_kmax_bytes) == (5 * MTU, 5 * MTU)


def test_auto_said_is_auto_unsaid() -> None:
    said: dict[str, Any] = {"queue_bytes": "auto", "ecn_kmin_bytes": "auto", "ecn_kmax_bytes": "auto"}
    assert parameters(**said) == parameters()


@pytest.mark.parametrize("keys", [{"ecn_kmax_bytes": 40 * MTU - 1}, {"ecn_kmin_bytes": 160 * MTU + 1}])
def test_a_threshold_on_the_wrong_side_of_the_automatic_other_is_refused(keys: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"ecn_kmin_bytes is \d+, above ecn_kmax_bytes, \d+: give both") as caught:
        parameters(**keys)
    assert str(next(iter(keys.values()))) in str(caught.value)
    (name,) = keys
    parameters(**{name: keys[name] + (1 if name == "ecn_kmax_bytes" else -1)})


def test_speed_delay_and_packet_size_count() -> None:
    slow = parameters(link_gbps=100)
    assert slow.rtt_ns == 8000 + 4 * 4160 * Fraction(8, 100)
    assert slow.queue_bytes == math.ceil(slow.rtt_ns * Fraction(100, 8) / MTU) * MTU
    assert slow.rto_ns == 15_000 + 6 * math.ceil(slow.queue_bytes * Fraction(8, 100))
    small = parameters(mtu_bytes=1500)
    assert small.rtt_ns == 8000 + 4 * Fraction("15.64")
    assert small.queue_bytes % 1500 == small.ecn_kmin_bytes % 1500 == small.ecn_kmax_bytes % 1500 == 0
    assert small.queue_bytes - 1500 < small.bdp_bytes <= small.queue_bytes
    assert parameters(link_ns=0).rtt_ns == 4 * Fraction("41.6")


def test_of_links_that_differ_the_longest_and_the_nominal_speed_count() -> None:
    assert parameters(link_ns_of={"h3": 5000}).rtt_ns == 8 * 5000 + Fraction("166.4")
    assert parameters(link_ns_of={"leaf1-spine2": 5000}).rtt_ns == 8 * 5000 + Fraction("166.4")
    assert parameters(link_ns_of={"h3": 10}) == parameters()
    slow = parameters(link_gbps_of={"h3": 100})
    assert slow.rto_ns == 15_000 + 6 * 8 * 8192  # a full queue of 819,200 B leaves at an eighth of the speed
    assert replace(slow, rto_ns=parameters().rto_ns) == parameters()


def test_thresholds_stay_within_what_the_fabric_counts() -> None:
    derived = parameters(link_ns=10_000_000)
    assert derived.bdp_bytes > 2**32
    assert derived.ecn_kmin_bytes <= derived.ecn_kmax_bytes <= 2**31
