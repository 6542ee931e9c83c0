"""The oracle against small cases that are worked out by hand in the comments."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from tests.oracle import (
    Discipline,
    Flow,
    Network,
    Result,
    Spraying,
    entropy_value,
    mix32,
    pacer_departures,
    path_hash,
    path_of,
    simulate,
)
from tests.oracle_nets import clos, star

MTU = 1000  # bytes
HALF = 1 << 31  # half of the line rate


def run(
    network: Network,
    flows: Sequence[Flow],
    start: Sequence[int] | None = None,
    discipline: Discipline = "rr",
    spraying: Spraying = "ops",
) -> Result:
    """Simulate with the seed 9 and the path salt 7, and log the hops."""
    return simulate(
        network,
        flows,
        start_ns=start or [0] * network.hosts,
        mtu_bytes=MTU,
        discipline=discipline,
        spraying=spraying,
        seed=9,
        path_salt=220,
        log_hops=True,
    )


def value_of(flow: Flow, psn: int) -> int:
    """The entropy value that run() gives a packet."""
    return entropy_value(flow.source, flow.destination, psn, 9, "ops")


def test_two_hosts_one_packet() -> None:
    # start 100; NIC at 2 ns/B: 100..2100; 500 ns on: leaf at 2600; leaf port at 2 ns/B: 2600..4600; host at 5100.
    result = run(star(2, [2, 2], [2, 2], [500, 500]), [Flow(0, 1, 0, 1, MTU)], [100, 0])
    assert result.arrivals == {(0, 1, 0): 5100}
    assert result.hops[0] == [(100, 2100, 1000, 0, 1, 0)]
    assert result.hops[3] == [(2600, 4600, 1000, 0, 1, 0)]
    assert result.deepest == [1000, 0, 0, 1000]
    assert (result.deepest_total, result.ties) == (1000, 0)


def test_packet_time_is_rounded_down_on_each_port() -> None:
    # 1000 B at 16/3 ns/B are 5333.33: 5333 on the NIC, and 5333 again on the leaf's port: 0 + 5333 + 5333 = 10666.
    network = star(2, [Fraction(16, 3)] * 2, [Fraction(16, 3)] * 2, [0, 0])
    assert run(network, [Flow(0, 1, 0, 1, MTU)]).arrivals == {(0, 1, 0): 10666}


def test_departure_at_the_instant_of_an_arrival_has_left() -> None:
    # NIC 0..1000, 1000..2000. Leaf: the first 1010..2010; the second comes at 2010, and finds the port empty.
    result = run(star(2), [Flow(0, 1, 0, 2, MTU)])
    assert result.arrivals == {(0, 1, 0): 2020, (0, 1, 1): 3020}
    assert result.deepest == [2000, 0, 0, 1000]  # the NIC is given both at once


def test_short_last_packet_waits_for_the_long_one_before_it() -> None:
    # NIC 0..1000, 1000..1100. Leaf: 1010..2010; the short one comes at 1110 and is served 2010..2110; 1100 B queued.
    result = run(star(2), [Flow(0, 1, 0, 2, 100)])
    assert result.arrivals == {(0, 1, 0): 2020, (0, 1, 1): 2120}
    assert result.deepest[3] == 1100


def test_two_senders_into_one_receiver() -> None:
    # At the leaf's port 5: host 0's at 1010 and 2010, host 1's (start 300) at 1310 and 2310. Service, 1000 each:
    # 1010..2010 (0,0), 2010..3010 (1,0), 3010..4010 (0,1), 4010..5010 (1,1); then 10 ns to the host.
    # Queue: 1000 at 1010, 2000 at 1310, at 2010 one has left: 2000, at 2310: 3000.
    result = run(star(3), [Flow(0, 2, 0, 2, MTU), Flow(1, 2, 0, 2, MTU)], [0, 300, 0])
    assert result.arrivals == {(0, 2, 0): 2020, (1, 2, 0): 3020, (0, 2, 1): 4020, (1, 2, 1): 5020}
    assert result.deepest == [2000, 2000, 0, 0, 0, 3000]
    assert (result.deepest_total, result.ties) == (3000, 0)


def test_total_adds_the_queues_of_different_ports() -> None:
    # Host 0 sends to 2 (leaf 1010..2010), host 1 from 300 to 3 (leaf 1310..2310): both are queued from 1310 to 2010.
    result = run(star(4), [Flow(0, 2, 0, 1, MTU), Flow(1, 3, 0, 1, MTU)], [0, 300, 0, 0])
    assert result.deepest[4:] == [0, 0, 1000, 1000]
    assert result.deepest_total == 2000


def test_fast_nic_into_a_slow_port() -> None:
    # NIC at 1 ns/B: at the leaf at 1000 and 2000 (no delay). Port at 3 ns/B: 1000..4000, 4000..7000; 2000 B at 2000.
    result = run(star(2, [1, 1], [1, 3], [0, 0]), [Flow(0, 1, 0, 2, MTU)])
    assert result.arrivals == {(0, 1, 0): 4000, (0, 1, 1): 7000}
    assert result.deepest[3] == 2000


def test_slow_nic_into_a_fast_port() -> None:
    # NIC at 3 ns/B: at the leaf at 3000 and 6000. Port at 1 ns/B: 3000..4000, 6000..7000; never more than one.
    result = run(star(2, [3, 1], [1, 1], [0, 0]), [Flow(0, 1, 0, 2, MTU)])
    assert result.arrivals == {(0, 1, 0): 4000, (0, 1, 1): 7000}
    assert result.deepest[3] == 1000


def test_unequal_delays() -> None:
    # Host 0 is first to send (0..1000) but 5000 ns away: at the leaf at 6000. Host 1 (400..1400, 10 ns): at 1410.
    # Leaf to host 2 takes 700 ns: 1410..2410 + 700 = 3110, and 6000..7000 + 700 = 7700.
    result = run(star(3, delay=[5000, 10, 700]), [Flow(0, 2, 0, 1, MTU), Flow(1, 2, 0, 1, MTU)], [0, 400, 0])
    assert result.arrivals == {(1, 2, 0): 3110, (0, 2, 0): 7700}
    assert [hop.source for hop in result.hops[5]] == [1, 0]


def test_round_robin_order() -> None:
    # Packets left to 1, 2, 3: 1, 3, 2. Rounds: 1 2 3 | 2 3 | 2; one packet per 1000 ns from 50 on.
    flows = [Flow(0, 1, 0, 1, MTU), Flow(0, 2, 0, 3, MTU), Flow(0, 3, 0, 2, MTU)]
    nic = run(star(4), flows, [50, 0, 0, 0]).hops[0]
    assert [(hop.destination, hop.psn) for hop in nic] == [(1, 0), (2, 0), (3, 0), (2, 1), (3, 1), (2, 2)]
    assert [hop.arrival for hop in nic] == [50] * 6
    assert [hop.departure for hop in nic] == [1050, 2050, 3050, 4050, 5050, 6050]


def test_round_robin_starts_with_the_flow_given_first() -> None:
    flows = [Flow(1, 2, 0, 2, MTU), Flow(1, 0, 0, 2, MTU)]
    assert [hop.destination for hop in run(star(3), flows).hops[1]] == [2, 0, 2, 0]


def test_paced_departures_at_half_rate() -> None:
    # A packet of 1000 ns earns 2000 ns, the last one, of 100 ns, 200 ns: 120, 2120, 4120, 4320.
    assert pacer_departures(Flow(0, 1, 70, 4, 100, HALF), star(2).ports[0], 120, MTU) == [120, 2120, 4120, 4320]


def test_paced_gaps_add_up_exactly() -> None:
    # At 3/4 rate, in units of 2**30: 4000 / 3 = 1333 and 1 over (packet 0, which waits for none of it);
    # 4001 / 3 = 1333 and 2 over; 4002 / 3 = 1334 and 0 over; 4000 / 3 = 1333: 0, 1333, 2667, 4000.
    assert pacer_departures(Flow(0, 1, 0, 4, MTU, 3 << 30), star(2).ports[0], 0, MTU) == [0, 1333, 2667, 4000]


def test_steps_of_zero_is_unpaced() -> None:
    assert pacer_departures(Flow(0, 1, 0, 3, MTU, 0), star(2).ports[0], 5, MTU) == [5, 5, 5]


def test_paced_flows_share_the_nic() -> None:
    # To 1: from 100 + 0 every 2000: 100, 2100. To 2: from 100 + 500: 600, 2600. The NIC serves in that order:
    # 100..1100, 600 waits: 1100..2100, 2100..3100, 2600 waits: 3100..4100. Two packets at most: 2000 B.
    # Each is 10 ns later at a leaf port, alone: +1000 + 10 more: 1020 after the NIC.
    flows = [Flow(0, 1, 0, 2, MTU, HALF), Flow(0, 2, 500, 2, MTU, HALF)]
    result = run(star(3), flows, [100, 0, 0], "rate")
    nic = [(hop.destination, hop.arrival, hop.departure) for hop in result.hops[0]]
    assert nic == [(1, 100, 1100), (2, 600, 2100), (1, 2100, 3100), (2, 2600, 4100)]
    assert result.arrivals == {(0, 1, 0): 2120, (0, 2, 0): 3120, (0, 1, 1): 4120, (0, 2, 1): 5120}
    assert (result.deepest[0], result.ties) == (2000, 0)


def test_tie_at_an_output_port_is_reported() -> None:
    # Hosts 2, 1, 0 all reach port 7 at 1010: two undefined orders; the lowest input port goes first.
    flows = [Flow(source, 3, 0, 1, MTU) for source in (2, 1, 0)]
    result = run(star(4), flows)
    assert (result.port_ties, result.pacer_ties, result.ties) == (2, 0, 2)
    assert [hop.source for hop in result.hops[7]] == [0, 1, 2]
    assert run(star(4), flows, [0, 1, 2, 0]).ties == 0


def test_same_instant_at_different_ports_is_no_tie() -> None:
    assert run(star(4), [Flow(0, 2, 0, 1, MTU), Flow(1, 3, 0, 1, MTU)]).ties == 0


def test_tie_in_the_pacer_is_reported() -> None:
    # Both flows leave at 0 and at 2000: two ties; 1 ns apart: none.
    flows = [Flow(0, 1, 0, 2, MTU, HALF), Flow(0, 2, 0, 2, MTU, HALF)]
    assert run(star(3), flows, discipline="rate").pacer_ties == 2
    assert run(star(3), [flows[0], replace(flows[1], ready_ns=1)], discipline="rate").ties == 0
    # Unpaced, 2 packets each, all at 0: one flow's own packets are in order, so there is one tie of two flows.
    assert run(star(3), [replace(flow, steps=0) for flow in flows], discipline="rate").pacer_ties == 1


def test_mix32() -> None:
    # 1 >> 16 is 0; * 0x7feb352d; ^ its >> 15, 0xffd6: 0x7febcafb; * 0x846ca68b: 0x6889f849; ^ its >> 16, 0x6889.
    assert (mix32(0), mix32(1), mix32(1 + 2**32)) == (0, 0x688990C0, 0x688990C0)
    assert mix32(0xDEADBEEF) == 0xE628C683  # this and the values below: a C program with uint32_t throughout


def test_entropy_values() -> None:
    seed = 0xFFFFFFF0  # seed + (2 << 16 | 1) does not fit 32 bits
    assert [entropy_value(2, 1, psn, seed, "ops") for psn in (0, 1, 63, 64, 65, 1000)] == [32, 49, 15, 43, 58, 32]
    assert {entropy_value(2, 1, psn, seed, "ecmp") for psn in range(200)} == {32}
    for cycle in range(5):  # an odd multiplier makes a permutation of 64
        assert len({entropy_value(3, 4, 64 * cycle + turn, 5, "ops") for turn in range(64)}) == 64


def test_path_hash() -> None:
    assert path_hash(0, 1, 0, 0, 0) == 0x0B822089
    assert path_hash(3, 2, 63, 1, 0x12345678) == 0x75CBE5FF
    assert path_hash(15, 0, 17, 5, 0xFFFFFFFF) == 0xA1716F41


def test_paths() -> None:
    # The C program's choice of 2 at switch 0 (salt 7) for 0 to 2 and the values 0..7: 1 0 0 1 1 1 1 1.
    paths = [path_of(clos(), 0, 2, value, 7) for value in range(8)]
    one, zero = (0, 9, 15, 6), (0, 8, 13, 6)
    assert paths == [one, zero, zero, one, one, one, one, one]
    assert path_of(clos(), 0, 1, 3, 7) == (0, 5)


def test_spraying_reorders_over_unequal_paths() -> None:
    # The C program's ways for psn 0..7 (seed 9, salt 220): 0 0 1 1 1 1 1 0. Packet k leaves the NIC at 1000 (k + 1) and
    # reaches l1 three times 1010 after 1000 k by s0, 2500 later by s1: 3030 4030 | 7530 8530 9530 10530 11530 | 10030.
    # Port 6 of l1 serves 0 from 3030, 1 from 4030, 2 from 7530, 3 from 8530, 4 from 9530, then 7 (come at 10030) from
    # 10530, 5 (10530) from 11530, 6 (11530) from 12530; each is at the host 1010 after its start.
    # Deepest: 7 behind 4. All ports: from 7530 to 9010 one packet at l0, one at s1, one at l1: 3000.
    result = run(clos(2510), [Flow(0, 2, 0, 8, MTU)])
    assert [hop.psn for hop in result.hops[6]] == [0, 1, 2, 3, 4, 7, 5, 6]
    assert [result.arrivals[0, 2, k] for k in range(8)] == [4040, 5040, 8540, 9540, 10540, 12540, 13540, 11540]
    assert (len(result.hops[8]), len(result.hops[9])) == (3, 5)
    # 5 and 6 come at the instant at which the packet in service departs, so they find one less.
    assert (result.deepest[6], result.deepest_total, result.ties) == (2000, 3000, 0)


def test_ecmp_keeps_one_path() -> None:
    # One value, that of psn 0: way 0, so port 8, then 13; packet k arrives at 4 * 1010 + 1000 k.
    result = run(clos(2510), [Flow(0, 2, 0, 8, MTU)], spraying="ecmp")
    assert [result.arrivals[0, 2, k] for k in range(8)] == [4040 + 1000 * k for k in range(8)]
    assert (len(result.hops[8]), len(result.hops[13]), len(result.hops[9])) == (8, 8, 0)


def test_everything_sent_arrives_once() -> None:
    flows = [Flow(s, (s + k) % 4, 0, 40 + s, 300 + s) for s in range(4) for k in (1, 2, 3)]
    result = run(clos(), flows, [0, 13, 29, 47])
    assert set(result.arrivals) == {(f.source, f.destination, psn) for f in flows for psn in range(f.packets)}
    for log in result.hops:  # no port serves two at once, or one that it does not have yet
        assert all(hop.departure - hop.size >= hop.arrival for hop in log)
        assert all(b.departure - b.size >= a.departure for a, b in pairwise(log))


def test_defaults_are_plain_queues_without_limit() -> None:
    # Port by port in the direction of the traffic: sort what arrives by time and input port, and serve it in turn.
    draw, network = random.Random(4), clos(300)
    for _ in range(20):
        flows = [Flow(s, draw.choice([d for d in range(4) if d != s]), 0, 70, draw.randint(1, MTU)) for s in range(4)]
        start = [draw.randrange(3) * draw.randrange(500) for _ in range(4)]
        waiting: dict[int, list[tuple[int, int, int, int, tuple[int, ...]]]] = defaultdict(list)
        for flow in flows:
            for psn in range(flow.packets):
                path = path_of(network, flow.source, flow.destination, value_of(flow, psn), 220)
                waiting[flow.source].append((start[flow.source], 0, psn, flow.source, path))
        arrivals: dict[tuple[int, int, int], int] = {}
        services: list[list[tuple[int, int]]] = [[] for _ in network.ports]
        for port in (*range(4), *range(8, 16), *range(4, 8)):
            free = 0
            for time, _, psn, source, path in sorted(waiting[port]):
                flow = flows[source]
                free = max(free, time) + (flow.last_bytes if psn == flow.packets - 1 else MTU)
                services[port].append((time, free))
                far = free + network.ports[port].propagation
                if path[-1] == port:
                    arrivals[source, flow.destination, psn] = far
                else:
                    onward = path[path.index(port) + 1]
                    waiting[onward].append((far, network.ports[port].peer_port, psn, source, path))
        result = run(network, flows, start)
        assert result.arrivals == arrivals
        assert [[(hop.arrival, hop.departure) for hop in log] for log in result.hops] == services
        for counts in (result.drops, result.trims, result.marks, result.lost, result.control):
            assert counts == [0] * 16
        assert not result.trimmed_arrivals


@pytest.mark.parametrize(
    ("flows", "message"),
    [
        ([Flow(0, 0, 0, 1, MTU)], "not a pair"),
        ([Flow(0, 2, 0, 1, MTU)], "not a pair"),
        ([Flow(0, 1, 0, 0, MTU)], "bad flow"),
        ([Flow(0, 1, 0, 1, 0)], "takes no time"),
        ([Flow(0, 1, 0, 1, MTU), Flow(0, 1, 0, 1, MTU)], "one pair"),
    ],
)
def test_undefined_flows_are_refused(flows: list[Flow], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(star(2), flows)


def test_round_robin_needs_flows_that_are_ready_at_once() -> None:
    with pytest.raises(ValueError, match="at once"):
        run(star(3), [Flow(0, 1, 0, 1, MTU), Flow(0, 2, 5, 1, MTU)])


def test_bad_wiring_is_refused() -> None:
    good = star(2)
    with pytest.raises(ValueError, match="disagree"):
        Network(2, [replace(good.ports[0], peer_port=3), *good.ports[1:]], good.routes, good.switches)
    with pytest.raises(ValueError, match="bad route"):
        Network(2, good.ports, {("leaf", 0): (0,)}, good.switches)
    wrong = Network(2, good.ports, {("leaf", 0): (2,), ("leaf", 1): (2,)}, good.switches)
    with pytest.raises(ValueError, match="ends at host 0"):
        run(wrong, [Flow(0, 1, 0, 1, MTU)])


def adaptive(flows: Sequence[Flow], occupancy_bytes: int, start: Sequence[int] | None = None) -> Result:
    """As run(), on two uplinks a leaf."""
    return simulate(
        clos(),
        flows,
        start_ns=start or [0] * 4,
        mtu_bytes=MTU,
        discipline="rr",
        spraying="ar",
        seed=9,
        path_salt=220,
        log_hops=True,
        occupancy_bytes=occupancy_bytes,
    )


def test_adaptive_routing_takes_the_emptier_way() -> None:
    # Hosts 0 and 1 send 8 packets each, 1 from 100 on: packets come to l0 at 1010, 1110, 2010, 2110, ... A port's queue is
    # of level 0 with up to 49 ns of work of 1000, and of level 3 from 200 on. The first packet keeps its way busy till 2010,
    # so the second one finds 900 there and takes the other, till 2110; the third finds 0 and 100 (level 2), and so on: each
    # host keeps the way of its first packet, and nothing waits but in the NICs.
    result = adaptive([Flow(0, 2, 0, 8, MTU), Flow(1, 3, 0, 8, MTU)], 1000, [0, 100, 0, 0])
    by_port = [{hop.source for hop in result.hops[port]} for port in (8, 9)]
    assert sorted(map(sorted, by_port)) == [[0], [1]]
    assert [result.arrivals[0, 2, k] for k in range(8)] == [4040 + 1000 * k for k in range(8)]
    assert [result.arrivals[1, 3, k] for k in range(8)] == [4140 + 1000 * k for k in range(8)]
    assert (max(result.deepest[4:]), result.ties) == (MTU, 0)


def test_adaptive_routing_draws_where_the_levels_are_equal() -> None:
    # Of a queue of 10^9 bytes all that is there is under 5 %: way by way the smaller draw.
    flows = [Flow(0, 2, 0, 200, MTU)]
    result = adaptive(flows, 10**9)

    def way(psn: int) -> int:
        drawn = mix32(path_hash(0, 2, value_of(flows[0], psn), 0, 220) + psn)
        return min((0, 1), key=lambda number: mix32(drawn + number))

    assert [{hop.psn for hop in result.hops[port]} for port in (8, 9)] == [
        {psn for psn in range(200) if way(psn) == number} for number in (0, 1)
    ]
    assert 70 < len(result.hops[8]) < 130


@pytest.mark.parametrize(("spraying", "occupancy_bytes"), [("ar", 0), ("ops", 1)])
def test_adaptive_routing_needs_a_queue_to_compare_with(spraying: Spraying, occupancy_bytes: int) -> None:
    with pytest.raises(ValueError, match="occupancy_bytes"):
        simulate(
            clos(),
            [Flow(0, 2, 0, 1, MTU)],
            start_ns=[0] * 4,
            mtu_bytes=MTU,
            discipline="rr",
            spraying=spraying,
            seed=9,
            path_salt=220,
            occupancy_bytes=occupancy_bytes,
        )


def test_a_background_flow_between_the_demand() -> None:
    """First come, first served at the NIC: a paced packet comes when it is due, in round robin one when the port is free."""
    network = star(3)  # 1 ns/B, 10 ns a link: a packet takes 1000 ns
    load = Flow(0, 2, 1500, 2, 500, HALF)  # due at 1500 and, half as fast as the line, 2 * 500 ns later
    keys: dict[str, Any] = {"mtu_bytes": MTU, "spraying": "ops", "seed": 9, "path_salt": 220, "log_hops": True}

    def left(discipline: Discipline, *flows: Flow) -> list[tuple[int, int]]:
        result = simulate(network, flows, start_ns=[0, 0, 0], discipline=discipline, background=[load], **keys)
        return [(hop.departure, hop.psn) for hop in result.hops[0]]

    # Round robin: the port is free at 2000, when one is waiting; at 3000 the other one, due at 2500.
    own = Flow(0, 1, 0, 4, MTU)
    first, second = 2**31, 2**31 + 1
    assert left("rr", own) == [(1000, 0), (2000, 1), (3000, first), (3500, second), (4500, 2), (5500, 3)]
    # Paced at half the line rate: packets at 0, 2000, 4000, 6000. The short one is due at 2500, behind the second.
    paced = Flow(0, 1, 0, 4, MTU, HALF)
    assert left("rate", paced) == [(1000, 0), (2500, first), (3500, 1), (4000, second), (5000, 2), (7000, 3)]
    with pytest.raises(ValueError, match="must be paced"):
        simulate(network, [own], start_ns=[0, 0, 0], discipline="rr", background=[replace(load, steps=0)], **keys)
