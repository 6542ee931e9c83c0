"""The oracle's finite queues: cases worked out by hand in the comments, then laws on random small incasts.

How far apart the two priority modes can be. Let w and c be the wire times of a full packet and of a header at a port,
and n the headers that the port accepts (n_x of "exact", n_c of "charged"; none is dropped), and X and C the departures
of one packet in "exact" and in "charged", where both modes have it as data, or both as a header. A port that is given
the same arrivals in both modes (a leaf's port in a star, as NICs are the same in both) has

    data:     -(w - c - 1) <= X - C <= w - 1 + (n_x - 1) c
    headers:  -(n_c - 1) c <= X - C <= w - 1 + (n_x - 1) c

and if both modes also take the same decisions, 0 <= X - C <= n c for data and 0 <= X - C <= w - 1 for headers.

* Headers. In "charged" a header waits for headers only: it leaves within c .. n_c c of its arrival. In "exact" it waits
  for the headers before it and for one data packet at most, because none starts while a header waits, and that one
  started at least 1 ns before the oldest of them came: within c .. w - 1 + n_x c. Take the differences. With the same
  decisions, both serve the same headers in the same order, in "exact" up to w - 1 later.
* Data. Let V and W = D + K be all work that is accepted and not done in "charged" (free_at is ahead of now by V) and in
  "exact" (D of data, K of headers). Both shrink at rate 1 down to 0, so that between arrivals W - V only comes closer
  to 0. An arrival of size s changes W - V only where decisions differ. Only "charged" accepts: V + s <= L < D + s, so
  W - V > K >= 0 before it, and s - c less after it. Only "exact" accepts: D + s <= L < V + s, so W - V < K before it,
  and s - c more after it. Hence -(w - c - 1) <= W - V <= w - c - 1 + K', where K' is the most K at such an instant.
  Accepted data leaves s + V after its arrival in "charged", and in "exact" s + W later and another c for each header
  that comes while it waits. The headers of K' came before the packet, those while it waits after it, so together they
  are n_x at most. With the same decisions W = V.

In any network, whatever the arrivals and the decisions, a packet that reaches its host in both modes, whole or cut,
does so at times that differ by less than the sum over the switch ports of its path of limit_ns + n c: in both modes it
is at a port for more than 0 ns, and for limit_ns (data, or the rest of one data packet) and all headers at most.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from tests.oracle import Flow, Network, Priority, Result, entropy_value, path_of, simulate
from tests.oracle_nets import clos, star
from tests.oracle_queue import HEADER_BYTES, Hop

MTU = 1000  # bytes
PRIORITIES: tuple[Priority, ...] = ("charged", "exact")
# Host 0 into host 3 at 1010 and 2010, host 1 at 1310 and 2310, host 2 at 2910; see test_header_overtakes...
INCAST = [Flow(0, 3, 0, 2, MTU), Flow(1, 3, 0, 2, MTU), Flow(2, 3, 0, 1, MTU)]
INCAST_START = [0, 300, 1900, 0]


def run(network: Network, flows: Sequence[Flow], start: Sequence[int] | None = None, **options: Any) -> Result:
    """Simulate with round robin, one path per pair, the seed 9 and the path salt 220, and log the hops."""
    common: dict[str, Any] = {"mtu_bytes": MTU, "discipline": "rr", "spraying": "ecmp", "seed": 9, "path_salt": 220}
    return simulate(network, flows, start_ns=start or [0] * network.hosts, log_hops=True, **common | options)


def with_time(network: Network, port: int, byte_time: Fraction | int) -> Network:
    """The network with another speed of one port (ns per byte)."""
    ports = list(network.ports)
    ports[port] = replace(ports[port], byte_time=byte_time)
    return replace(network, ports=ports)


@pytest.mark.parametrize("priority", PRIORITIES)
@pytest.mark.parametrize(
    ("byte_time", "just_enough"),
    # The second packet comes 300 ns after the first. 1 ns/B: 700 + 1000 = 1700 are just 1700 B. 16/3 ns/B: 5333 - 300 +
    # 5333 = 10366; 1944 B are 10368, 1943 B are 10362 (.67).
    [(1, 1700), (Fraction(16, 3), 1944)],
)
def test_exactly_full_is_accepted(priority: Priority, byte_time: Fraction | int, just_enough: int) -> None:
    network = star(3, leaf_time=[1, 1, byte_time])
    flows, start = [Flow(0, 2, 0, 1, MTU), Flow(1, 2, 0, 1, MTU)], [0, 300, 0]
    full = run(network, flows, start, limit_bytes=just_enough, priority=priority)
    assert (len(full.arrivals), full.drops[5], full.deepest[5]) == (2, 0, 2000)
    over = run(network, flows, start, limit_bytes=just_enough - 1, priority=priority)
    assert (set(over.arrivals), over.drops[5], over.deepest[5]) == ({(0, 2, 0)}, 1, 1000)
    assert (sum(over.drops), sum(over.trims), sum(over.control), over.trimmed_arrivals) == (1, 0, 0, {})


def test_a_dropped_packet_takes_no_time() -> None:
    # 1010 accepted, 1310 dropped (700 + 1000 > 1500), 2010 accepted, 2310 dropped.
    flows = [Flow(0, 2, 0, 2, MTU), Flow(1, 2, 0, 2, MTU)]
    result = run(star(3), flows, [0, 300, 0], limit_bytes=1500)
    assert result.arrivals == {(0, 2, 0): 2020, (0, 2, 1): 3020}
    assert result.drops == [0, 0, 0, 0, 0, 2]


def test_nics_have_no_limit() -> None:
    result = run(star(2), [Flow(0, 1, 0, 20, MTU)], limit_bytes=1000)
    assert (result.deepest[0], len(result.arrivals), sum(result.drops)) == (20000, 20, 0)


def test_header_overtakes_data_and_is_charged_to_later_data_only() -> None:
    # Port 7, 1700 ns. 1010 accepted, until 2010. 1310: 700 + 1000, just full, until 3010. 2010: 1000 + 1000 is cut, its
    # header is sent 2010..2074; data is charged, until 3074. 2310: 764 + 1000 is cut, 2310..2374; until 3138.
    # 2910: 228 + 1000 is accepted, and 128 late: 3138..4138. What came at 1310 still leaves at 3010.
    result = run(star(4), INCAST, INCAST_START, limit_bytes=1700, trimming=True)
    assert result.trimmed_arrivals == {(0, 3, 1): 2084, (1, 3, 1): 2384}
    assert result.arrivals == {(0, 3, 0): 2020, (1, 3, 0): 3020, (2, 3, 0): 4148}
    assert (result.trims[7], result.control[7], sum(result.drops), sum(result.lost)) == (2, 2, 0, 0)
    assert result.control_hops[7] == [(2010, 2074, 64, 0, 3, 1), (2310, 2374, 64, 1, 3, 1)]
    assert result.deepest[7] == 2000  # headers do not count


def test_exact_header_waits_for_the_packet_in_service() -> None:
    # As above, but one server. At 2010 it is free, and knows the header that comes at that instant: 2010..2074, then
    # (1, 0) 2074..3074. 2310: 764 + 1000 is cut, and waits for it: 3074..3138. 2910: 164 + 1000 is accepted, 3138..4138.
    result = run(star(4), INCAST, INCAST_START, limit_bytes=1700, trimming=True, priority="exact")
    assert result.trimmed_arrivals == {(0, 3, 1): 2084, (1, 3, 1): 3148}
    assert result.arrivals == {(0, 3, 0): 2020, (1, 3, 0): 3084, (2, 3, 0): 4148}
    assert [hop.source for hop in result.hops[7]] == [0, 1, 2]
    # The busy period ends with data that comes after all headers: no work is lost or won.
    charged = run(star(4), INCAST, INCAST_START, limit_bytes=1700, trimming=True)
    assert result.hops[7][-1] == charged.hops[7][-1]
    assert (result.trims, result.control) == (charged.trims, charged.control)


def test_exact_limit_counts_data_only() -> None:
    # As above, but what comes at 2910 has 1500 B. In "exact", 164 of data and a header of 64 are ahead of it, and
    # 164 + 1500 <= 1700; in "charged", 228 + 1500 do not fit.
    flows, start = [*INCAST[:2], Flow(2, 3, 0, 1, 1500)], [0, 300, 1400, 0]
    assert run(star(4), flows, start, limit_bytes=1700, trimming=True).trims[7] == 3
    assert run(star(4), flows, start, limit_bytes=1700, trimming=True, priority="exact").trims[7] == 2


@pytest.mark.parametrize("priority", PRIORITIES)
@pytest.mark.parametrize(("limit", "trims"), [(95, 3), (94, 2)])
def test_headers_have_twice_the_limit(priority: Priority, limit: int, trims: int) -> None:
    # Packets of 100 B come at 110, 210, 310, 410 to 100 ns/B, and none fits in 95 B. Headers: 6400 | 6300 + 6400 |
    # 12600 + 6400 = 19000, which is just twice 9500, and is more than twice 9400 | 18900 + 6400 and 12500 + 6400.
    network = star(2, leaf_time=[1, 100])
    options: dict[str, Any] = {"mtu_bytes": 100, "limit_bytes": limit, "trimming": True, "priority": priority}
    result = run(network, [Flow(0, 1, 0, 4, 100)], **options)
    assert (result.trims[3], result.control[3], result.drops[3]) == (trims, trims, 4 - trims)
    assert result.trimmed_arrivals == {(0, 1, psn): 120 + 6400 * (psn + 1) for psn in range(trims)}
    assert result.arrivals == {}


@pytest.mark.parametrize("priority", PRIORITIES)
def test_headers_do_not_share_their_limit_with_data(priority: Priority) -> None:
    # As above with 100 B: the first packet is data, 110..10110, and the headers find only headers ahead of them: 6400 |
    # 6300 + 6400 (or 12800, if they wait for the data) | 12600 + 6400 (19200) in 20000, and the next does not fit.
    network = star(2, leaf_time=[1, 100])
    options: dict[str, Any] = {"mtu_bytes": 100, "limit_bytes": 100, "trimming": True, "priority": priority}
    result = run(network, [Flow(0, 1, 0, 5, 100)], **options)
    assert (result.arrivals, result.trims[3], result.drops[3]) == ({(0, 1, 0): 10120}, 3, 1)
    first = 210 if priority == "charged" else 10110
    assert result.trimmed_arrivals == {(0, 1, psn): first + 6400 * psn + 10 for psn in (1, 2, 3)}


@pytest.mark.parametrize("priority", PRIORITIES)
def test_header_is_control_to_its_host(priority: Priority) -> None:
    # 0 to 2 by 8 (2 ns/B), 13, 6. At port 8, 2998 ns: 1010..3010; 2010: 1000 + 2000 is cut. The header, 128 ns, leaves
    # at 2138; then 10, 64, 10, 64, 10. Data: 3010 + 10 + 1000 + 10 + 1000 + 10. If the header waits for the data, until
    # 3138, it meets it in service at each port, and is just behind it: 5040 + 64.
    network = with_time(clos(), 8, 2)
    result = run(network, [Flow(0, 2, 0, 2, MTU)], limit_bytes=1499, trimming=True, priority=priority)
    assert result.trimmed_arrivals == {(0, 2, 1): 2296 if priority == "charged" else 5104}
    assert result.arrivals == {(0, 2, 0): 5040}
    assert [port for port, count in enumerate(result.control) if count] == [6, 8, 13]
    assert [port for port, count in enumerate(result.trims) if count] == [8]


def test_header_and_data_at_one_instant_are_a_tie() -> None:
    # Port 8 (2 ns/B, limit 2000 ns): 0's packet 1010..3010; 1's comes at 2882, is cut, and also leaves at 3010. At port
    # 13 both are there at 3020; the header is first, 3020..3084; 64 + 1000 does not fit, and is cut, until 3148.
    # At port 6 the headers come at 3094 (until 3158) and 3158 (until 3222).
    network = with_time(clos(), 8, 2)
    flows = [Flow(0, 2, 0, 1, MTU), Flow(1, 2, 0, 1, MTU)]
    result = run(network, flows, [0, 1872, 0, 0], limit_bytes=1000, trimming=True)
    assert result.trimmed_arrivals == {(1, 2, 0): 3168, (0, 2, 0): 3232}
    assert (result.port_ties, result.trims[8], result.trims[13]) == (1, 1, 1)


def marks(kmin: int, kmax: int, **options: Any) -> int:
    """Marks of port 3, 2 ns/B: packets come at 1010, 2010, 3010, 4010, and leave at 3010, 5010, 7010, 9010.

    They leave 2000 (one of which comes at that very instant), 2000, 1000 and 0 bytes behind.
    """
    network = star(2, leaf_time=[1, 2])
    result = run(network, [Flow(0, 1, 0, 4, MTU)], kmin_bytes=kmin, kmax_bytes=kmax, **options)
    assert sum(result.marks) == result.marks[3]  # the NIC, which is given all at once, marks nothing
    return result.marks[3]


@pytest.mark.parametrize("priority", PRIORITIES)
def test_marks_are_certain_above_kmax_and_never_up_to_kmin(priority: Priority) -> None:
    assert [marks(k, k, priority=priority) for k in (999, 1000, 1999, 2000)] == [3, 2, 2, 0]
    assert marks(2000, 2001, priority=priority) == 0
    assert marks(1000, 2000, priority=priority) == 2  # at kmax itself, any draw is below 2**32
    assert marks(0, 0, priority=priority) == 0


def test_draw_between_kmin_and_kmax() -> None:
    # A C program with uint32_t: mix32(mix32(0xfffffffe + 3) + k) is 1492470133 for k = 0 and 3529208806 for k = 1. Above
    # kmin by 1000, k is marked iff kmax - kmin < 1000 * 2**32 / draw, which are 2877.76 and 1216.98.
    spans = (1216, 1217, 2877, 2878)
    assert [marks(1000, 1000 + span, mark_salt=0xFFFFFFFE) for span in spans] == [2, 1, 1, 0]


@pytest.mark.parametrize("priority", PRIORITIES)
def test_packets_that_are_not_accepted_have_no_number(priority: Priority) -> None:
    # Port 3 at 4 ns/B and 8000 ns: of the arrivals at 1010 + 1000 psn it accepts psn 0, 1, 4 and 8 (5010 and 9010 are
    # just full), which leave at 5010, 9010, 13010, 17010 with 2000, 2000, 1000, 0 bytes behind them. Salt 92 draws, by
    # the C program, a9140cbc, f54feadd, 10dafe43 for k = 0, 1, 2, but c61cdb1a for 4. With 0 and 4000, it must be below
    # 2**31, 2**31, 2**30: k = 2 alone.
    options: dict[str, Any] = {"kmin_bytes": 0, "kmax_bytes": 4000, "mark_salt": 92, "priority": priority}
    result = run(star(2, leaf_time=[1, 4]), [Flow(0, 1, 0, 9, MTU)], limit_bytes=2000, **options)
    assert [hop.psn for hop in result.hops[3]] == [0, 1, 4, 8]
    assert (result.drops[3], result.marks[3]) == (5, 1)


@pytest.mark.parametrize(
    ("down", "up", "lost"),
    [(2010, 9000, 0), (2009, 9000, 1), (0, 1010, 0), (0, 1011, 1), (1500, 1501, 1), (1009, 1010, 0), (2010, 2011, 0)],
)
@pytest.mark.parametrize("priority", PRIORITIES)
def test_packet_on_a_failed_link_is_lost(down: int, up: int, lost: int, priority: Priority) -> None:
    # One packet, 1010..2010 on port 3.
    result = run(star(2), [Flow(0, 1, 0, 1, MTU)], failures=[(3, down, up), (2, 0, 9000)], priority=priority)
    assert (result.lost, len(result.arrivals)) == ([0, 0, 0, lost], 1 - lost)


def test_lost_packets_take_their_time() -> None:
    # 0's 1010..2010 is lost, 1's (1310) is still sent 2010..3010, and there is still one packet behind 0's.
    flows = [Flow(0, 2, 0, 1, MTU), Flow(1, 2, 0, 1, MTU)]
    result = run(star(3), flows, [0, 300, 0], failures=[(5, 1500, 1501)], kmin_bytes=999, kmax_bytes=999)
    assert result.arrivals == {(1, 2, 0): 3020}
    assert (result.lost[5], result.marks[5], result.drops[5], len(result.hops[5])) == (1, 1, 0, 2)


def test_headers_are_lost_too_and_nics_may_fail() -> None:
    # Of the incast by hand, 2050..2060 hits the header 2010..2074 and the data 2010..3010.
    result = run(star(4), INCAST, INCAST_START, limit_bytes=1700, trimming=True, failures=[(7, 2050, 2060)])
    assert result.trimmed_arrivals == {(1, 3, 1): 2384}
    assert result.arrivals == {(0, 3, 0): 2020, (2, 3, 0): 4148}
    assert (result.lost[7], result.control[7]) == (2, 2)
    # NIC 0: 0..1000 is lost, so that 1 (1310) and then 0's second (2010) both find room.
    result = run(star(4), INCAST[:2], INCAST_START, limit_bytes=1700, trimming=True, failures=[(0, 500, 600)])
    assert result.arrivals == {(1, 3, 0): 2320, (0, 3, 1): 3320}
    assert (result.lost[0], result.trimmed_arrivals) == (1, {(1, 3, 1): 2384})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": "none"}, "unknown"),
        ({"limit_bytes": -1}, "bad limit"),
        ({"kmin_bytes": 2, "kmax_bytes": 1}, "thresholds"),
        ({"failures": [(4, 0, 1)]}, "bad failures"),
        ({"failures": [(3, 1, 1)]}, "bad failures"),
        ({"trimming": True, "mtu_bytes": 63}, "header"),
    ],
)
def test_undefined_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(star(2), [Flow(0, 1, 0, 1, MTU)], **options)


def stars() -> Iterator[tuple[Network, list[Flow], list[int], dict[str, Any]]]:
    """Random incasts into host 0 of a star, whose leaf port is at 1 or 2 ns/B."""
    draw = random.Random(11)
    for _ in range(150):
        hosts = draw.randint(3, 7)
        network = with_time(star(hosts), hosts, draw.choice((1, 1, 2, Fraction(4, 3))))
        flows = [Flow(h, 0, 0, draw.randint(1, 25), draw.randint(HEADER_BYTES, MTU)) for h in range(1, hosts)]
        start = [draw.randrange(draw.choice((3000, 20000))) for _ in range(hosts)]
        yield network, flows, start, {"limit_bytes": draw.randint(1000, 6000)}


def backlog(log: Sequence[Hop], end: int, now: int) -> int:
    """What is not serialised of a log's first `end` packets (ns at 1 ns/B)."""
    return sum(min(hop.size, hop.departure - now) for hop in log[:end] if hop.departure > now)


def test_exact_is_strict_priority_of_one_server() -> None:
    checked = 0
    for network, flows, start, options in stars():
        port = network.hosts
        result = run(with_time(network, port, 1), flows, start, trimming=True, priority="exact", **options)
        data, control, limit = result.hops[port], result.control_hops[port], options["limit_bytes"]
        if result.ties:
            continue
        begun = {hop: hop.departure - hop.size for hop in (*data, *control)}
        served = sorted(begun, key=lambda hop: hop.departure)
        free = 0
        for index, hop in enumerate(served):  # one at a time, never idle while something waits, and nothing too early
            assert begun[hop] == max(free, min(other.arrival for other in served[index:])) >= hop.arrival
            free = hop.departure
        for hop in data:  # no header waits while data starts
            assert not any(header.arrival <= begun[hop] < begun[header] for header in control)
        for log in (data, control):
            assert all(a.arrival <= b.arrival and a.departure <= begun[b] for a, b in pairwise(log))
        for index, hop in enumerate(data):
            assert backlog(data, index, hop.arrival) + hop.size <= limit
        for hop in control:
            flow = next(f for f in flows if f.source == hop.source)
            size = flow.last_bytes if hop.psn == flow.packets - 1 else MTU
            earlier = sum(other.arrival < hop.arrival for other in data)
            assert backlog(data, earlier, hop.arrival) + size > limit
        checked += bool(control)
    assert checked > 50


def test_nothing_is_lost_from_the_books() -> None:
    draw = random.Random(12)
    totals = [0, 0, 0, 0]
    for round_ in range(80):
        network = clos(300)
        for port in (6, 8, 13, 15):
            network = with_time(network, port, draw.choice((1, 2, 3)))
        flows = [Flow(s, d, 0, draw.randint(1, 40), draw.randint(64, MTU)) for s in range(4) for d in {2, 3} - {s}]
        start = [draw.randrange(3000) for _ in range(4)]
        failures = [(draw.randrange(16), down := draw.randrange(20000), down + draw.randint(1, 9000)) for _ in range(2)]
        options: dict[str, Any] = {"limit_bytes": draw.randint(1000, 5000), "trimming": round_ % 4 > 0}
        options |= {"priority": PRIORITIES[round_ % 2], "failures": failures, "spraying": "ops"}
        result = run(network, flows, start, **options)
        sent = {(flow.source, flow.destination, psn) for flow in flows for psn in range(flow.packets)}
        assert not result.arrivals.keys() & result.trimmed_arrivals.keys()
        assert result.arrivals.keys() | result.trimmed_arrivals.keys() <= sent
        gone = sum(result.drops) + sum(result.lost)
        assert len(sent) == len(result.arrivals) + len(result.trimmed_arrivals) + gone
        for switch in network.switches:  # all that comes in is accepted, as data or as control, or dropped
            served = [len(hops) + count for hops, count in zip(result.hops, result.control, strict=True)]
            ins = sum(served[p] - result.lost[p] for p, port in enumerate(network.ports) if port.peer_node == switch)
            assert ins == sum(served[p] + result.drops[p] for p, at in enumerate(network.ports) if at.node == switch)
        counts = (result.drops, result.trims, result.lost, result.control)
        totals = [total + sum(count) for total, count in zip(totals, counts, strict=True)]
        assert all(trims <= control for trims, control in zip(result.trims, result.control, strict=True))
        assert not any(trims for trims in result.trims if not options["trimming"])
    assert min(totals) > 50


def test_charged_is_near_exact_at_one_port() -> None:
    """The bounds of this module's docstring for a port with the same arrivals."""
    same = 0
    for network, flows, start, options in stars():
        port = network.hosts
        charged, exact = (run(network, flows, start, trimming=True, priority=p, **options) for p in PRIORITIES)
        for result in (charged, exact):
            assert (result.drops[port], result.trims[port]) == (0, result.control[port])
            assert len(result.hops[port]) + result.trims[port] == sum(flow.packets for flow in flows)
        w, c = (network.ports[port].packet_ns(size) for size in (MTU, HEADER_BYTES))
        n_c, n_x = charged.control[port], exact.control[port]
        data = [exact.arrivals[key] - at for key, at in charged.arrivals.items() if key in exact.arrivals]
        cut = charged.trimmed_arrivals.keys() & exact.trimmed_arrivals.keys()
        headers = [exact.trimmed_arrivals[key] - charged.trimmed_arrivals[key] for key in cut]
        latest = w - 1 + max(n_x - 1, 0) * c
        assert all(-(w - c - 1) <= late <= latest for late in data)
        assert all(-(n_c - 1) * c <= late <= latest for late in headers)
        if charged.arrivals.keys() == exact.arrivals.keys():
            assert all(0 <= late <= n_x * c for late in data)
            assert all(0 <= late <= w - 1 for late in headers)
            same += bool(n_x)
    assert same > 10


def test_charged_is_not_far_from_exact_in_a_network() -> None:
    """The bound of this module's docstring for any network."""
    draw = random.Random(13)
    compared = 0
    for _ in range(60):
        network = with_time(with_time(clos(), 6, draw.choice((1, 2))), 8, draw.choice((1, 2)))
        flows = [Flow(s, 2, 0, draw.randint(1, 30), draw.randint(64, MTU)) for s in (0, 1, 3)]
        start = [draw.randrange(3000) for _ in range(4)]
        limit = draw.randint(1000, 5000)
        both = [run(network, flows, start, limit_bytes=limit, trimming=True, priority=p) for p in PRIORITIES]
        allowed = [
            port.packet_ns(limit) + port.packet_ns(HEADER_BYTES) * max(result.control[index] for result in both)
            for index, port in enumerate(network.ports)
        ]
        charged, exact = (result.arrivals | result.trimmed_arrivals for result in both)
        for key in charged.keys() & exact.keys():
            path = path_of(network, key[0], key[1], entropy_value(*key, 9, "ecmp"), 220)
            assert abs(charged[key] - exact[key]) < sum(allowed[port] for port in path[1:])
            compared += bool(sum(both[0].control))
    assert compared > 500
