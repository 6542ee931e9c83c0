"""The fluid model against sums done by hand and against what must hold of any matrix; the closed forms against both."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from controller.errors import InputError
from testbed.report.saved import read_saved
from testbed.theory import closed
from testbed.theory.fluid import Ingress, Profile, fluid_rate, fluid_rr
from testbed.theory.measured import Theory, hot_port
from testbed.workload.zipf import zipf
from tests.unit.test_report import figures

Floats = NDArray[np.float64]
PAPER = np.array([[0, 1000, 2000], [800, 0, 2000], [2000, 1000, 0]])
"""The matrix of its equation 2."""


@st.composite
def collectives(draw: st.DrawFn) -> tuple[NDArray[np.int64], Floats]:
    """A matrix of up to six hosts with zeros and equal flows in it, and speeds in bytes/ns."""
    hosts = draw(st.integers(2, 6))
    amounts = st.one_of(st.just(0), st.sampled_from([4096, 8192]), st.integers(1, 10**6))
    entries = draw(st.lists(amounts, min_size=hosts * hosts, max_size=hosts * hosts))
    demand = np.array(entries, dtype=np.int64).reshape(hosts, hosts)
    np.fill_diagonal(demand, 0)
    speeds = draw(st.lists(st.sampled_from([12.5, 50.0, 100.0, 37.3]), min_size=hosts, max_size=hosts))
    return demand, np.array(speeds)


def bound_ns(demand: NDArray[np.int64], speeds: Floats) -> float:
    """T*."""
    return float(max((demand.sum(axis=0) / speeds).max(), (demand.sum(axis=1) / speeds).max()))


def assert_sound(profile: Profile, total: float, speed: float) -> None:
    """Bytes in are bytes out, no queue is negative, and none is left."""
    assert (np.diff(profile.times_ns) >= 0).all()
    assert (profile.queue_bytes >= 0).all()
    assert profile.queue_bytes[-1] == pytest.approx(0, abs=1e-6 * max(1.0, total))
    assert float(profile.arrived_at(np.array([profile.done_ns]))[0]) == pytest.approx(total, rel=1e-9)
    # Between two breakpoints a port that holds something sends at line rate, and else what comes.
    dt = np.diff(profile.times_ns)
    busy = (profile.queue_bytes[:-1] > 1e-6 * total) | (profile.queue_bytes[1:] > 1e-6 * total)
    sent = profile.arrival[:-1] * dt - np.diff(profile.queue_bytes)
    assert sent[busy] == pytest.approx(speed * dt[busy], rel=1e-6, abs=1e-5 * max(1.0, total))
    assert sent.sum() == pytest.approx(total, rel=1e-9, abs=1e-6)


@given(collectives())
@settings(max_examples=150, deadline=None)
def test_round_robin_conserves_bytes_and_ends_no_earlier_than_the_bound(
    given_: tuple[NDArray[np.int64], Floats],
) -> None:
    """For any matrix and speeds; a sender is busy until it has sent all."""
    demand, speeds = given_
    fluid = fluid_rr(demand, speeds)
    for host, total in enumerate(demand.sum(axis=0).tolist()):
        assert_sound(fluid.receiver(host), total, speeds[host])
    assert fluid.end_ns >= bound_ns(demand, speeds) * (1 - 1e-9)
    assert fluid.sent_ns.max(axis=1) == pytest.approx(demand.sum(axis=1) / speeds)
    # Of two flows of a sender the larger ends last, or both at once.
    for row, ends in zip(demand, fluid.sent_ns, strict=True):
        assert (np.diff(ends[np.argsort(row, kind="stable")]) >= -1e-6).all()


@given(collectives())
@settings(max_examples=150, deadline=None)
def test_rates_end_at_the_bound_with_empty_queues(given_: tuple[NDArray[np.int64], Floats]) -> None:
    """Whatever the matrix: equation 4."""
    demand, speeds = given_
    fluid = fluid_rate(demand, speeds)
    bound = bound_ns(demand, speeds)
    assert fluid.end_ns == pytest.approx(bound, rel=1e-9)
    for host, total in enumerate(demand.sum(axis=0).tolist()):
        profile = fluid.receiver(host)
        assert_sound(profile, total, speeds[host])
        assert profile.peak_bytes <= 1e-9 * max(1, total)


@given(collectives())
@settings(max_examples=60, deadline=None)
def test_links_into_a_switch_conserve_bytes_too(given_: tuple[NDArray[np.int64], Floats]) -> None:
    """Half of the hosts behind links that are too narrow, or wide enough to make no difference."""
    demand, speeds = given_
    fluid = fluid_rr(demand, speeds)
    near = tuple(range(len(speeds) // 2))
    for host in near:
        total = int(demand[:, host].sum())
        assert_sound(fluid.behind(host, Ingress(near, 10.0, 0.0)), total, speeds[host])
        wide, free = fluid.behind(host, Ingress(near, 1e6, 0.0)), fluid.receiver(host)
        times = np.linspace(0, free.done_ns, 50)
        assert wide.queue_at(times) == pytest.approx(free.queue_at(times), abs=1e-6 * max(1, total))


def at(profile: Profile, *times: float) -> list[float]:
    """Queue at some times."""
    return [round(float(q), 6) for q in profile.queue_at(np.array(times))]


def test_two_hosts_by_hand() -> None:
    """One sends 1000 bytes at 2 bytes/ns to one that takes 1 byte/ns: 500 are left when it is done, and gone 500 ns later."""
    fluid = fluid_rr(np.array([[0, 1000], [300, 0]]), np.array([2.0, 1.0]))
    assert at(fluid.receiver(1), 0, 250, 500, 750, 1000) == [0, 250, 500, 250, 0]
    assert fluid.receiver(1).peak_bytes == 500
    assert (fluid.done_ns.tolist(), fluid.end_ns) == ([300, 1000], 1000)
    assert at(fluid.receiver(0), 100, 300) == [0, 0]


def test_the_paper_s_three_hosts_by_hand() -> None:
    """Line rate 1. Each sender serves two flows at 1/2.

    Sender 1 ends its 800 at 1600, the others their 1000 at 2000; what is left of 2000 goes out at 1. So to receiver 2 come
    1/2 + 1/2 until 1600, 1 1/2 until 2000, 2 until sender 1 is done at 2800, 1 until sender 0 is at 3000: the queue is 0,
    200, 1000 and 1000, and is empty at 4000, which is T* = M = 4000.
    """
    fluid = fluid_rr(PAPER, np.ones(3))
    assert fluid.sent_ns.tolist() == [[0, 2000, 3000], [1600, 0, 2800], [3000, 2000, 0]]
    hot = fluid.receiver(2)
    assert hot.rate_at(np.array([0.0, 1599, 1600, 1999, 2000, 2799, 2800, 2999, 3000])).tolist() == [
        *(1, 1, 1.5, 1.5, 2, 2, 1, 1, 0),
    ]
    assert at(hot, 1600, 2000, 2400, 2800, 3000, 3500, 4000) == [0, 200, 600, 1000, 1000, 500, 0]
    assert fluid.end_ns == 4000
    # To receiver 1 come 1/2 + 1/2 until 2000: no queue.
    assert fluid.receiver(1).peak_bytes == 0
    assert fluid.total_queue_bytes(3000) == 1000
    assert fluid.total_queue_bytes(3500) == 500
    assert fluid.most_queued_bytes == 1000


def test_delays_and_a_narrow_switch_by_hand() -> None:
    """Senders 1 and 2, 10 ns away, send 100 bytes each at 1; their link takes 1/2: it leaves at 1/2 until 410, to a port that takes 1."""
    demand = np.array([[0, 0, 0], [100, 0, 0], [100, 0, 0]])
    delays = np.full((3, 3), 10.0)
    fluid = fluid_rr(demand, np.ones(3), delay_ns=delays)
    assert at(fluid.receiver(0), 10, 60, 110, 210) == [0, 50, 100, 0]
    behind = fluid.behind(0, Ingress((0,), 0.5, 4.0))
    assert behind.peak_bytes == 0
    assert behind.done_ns == pytest.approx(410)
    assert behind.rate_at(np.array([9.0, 11, 409, 411])) == pytest.approx([0, 0.5, 0.5, 0])


def test_bad_shapes_are_refused() -> None:
    """Rather than broadcast."""
    with pytest.raises(ValueError, match="shapes"):
        fluid_rr(PAPER, np.ones(2))
    with pytest.raises(ValueError, match="negative"):
        fluid_rr(-PAPER, np.ones(3))
    with pytest.raises(ValueError, match="above 0"):
        fluid_rate(PAPER, np.ones(3), rates=np.zeros((3, 3)))


def test_the_closed_forms_against_the_fluid_of_zipf() -> None:
    """N senders with their own share, as in the paper: a receiver more that takes nothing of its own would be the only difference."""
    hosts, sent = 64, 1e6
    shares = sent / closed.harmonic(hosts) / np.arange(1, hosts + 1)
    # Senders 0..63 to receivers 64..127, so that none is without its own share.
    demand = np.zeros((2 * hosts, 2 * hosts))
    demand[:hosts, hosts:] = shares
    fluid = fluid_rr(demand, np.ones(2 * hosts))
    ends = closed.flow_ends_ns(hosts, sent)
    assert fluid.sent_ns[0, hosts:] == pytest.approx(ends, rel=1e-9)
    assert ends[0] == pytest.approx(sent)
    alpha = closed.harmonic(hosts)
    assert ends[-1] == pytest.approx(sent / alpha)
    # Nothing ends before T / alpha, of which the paper knows nothing; from then on k falls as the corrected form has it.
    corrected = closed.Corrected(hosts, sent, alpha)
    assert corrected.first_end_ns == pytest.approx(float(ends.min()))
    ranks = np.arange(1, hosts + 1)
    assert np.abs(corrected.active(ends) / ranks - 1)[8:].max() < 0.06
    assert np.abs(closed.Paper(hosts, sent, alpha).active(ends) / ranks - 1)[1:].min() > 0.4
    assert fluid.total_queue_bytes(sent) == pytest.approx(closed.stranded_sum_bytes(hosts, sent), rel=1e-9)


@pytest.mark.parametrize("form", [closed.Paper, closed.Corrected])
def test_the_closed_forms_send_the_hot_flow_and_no_more(form: type[closed.Paper]) -> None:
    """The integral of 1/k is the hot flow, T / alpha; the paper's lacks the N-th part that was sent before anything ended."""
    hosts, sent, alpha = 50, 1000.0, closed.harmonic(50)
    law = form(hosts, sent, alpha)
    times = np.linspace(0, law.last_ns, 200_001)
    inverse = 1 / law.active(times)
    area = float(((inverse[1:] + inverse[:-1]) / 2 * np.diff(times)).sum())
    missing = 0.0 if form is closed.Corrected else 1 / hosts
    assert area == pytest.approx(sent / alpha * (1 - missing), rel=1e-6)
    # And the queue is what came less what went.
    queue = law.queue(np.array([law.last_ns, law.last_ns + 10, 1e9]))
    assert queue[0] == pytest.approx(hosts * area - law.last_ns, rel=1e-6)
    assert queue[:2] - queue[1] == pytest.approx([10, 0])
    assert queue[2] == 0


def test_the_paper_s_bound_of_what_is_stranded() -> None:
    """Its closed form is near the sum that it stands for only where N is large; both approach N T."""
    assert closed.harmonic(3) == pytest.approx(11 / 6)
    shares = [closed.stranded_bytes(n, 1.0) / n for n in (16, 64, 512, 10**6)]
    assert shares == sorted(shares)
    assert shares[1] == pytest.approx(1 - (math.log(math.log(64)) + 1) / math.log(64))
    assert closed.stranded_sum_bytes(64, 1.0) / 64 > shares[1]


def test_a_large_matrix_takes_no_time() -> None:
    """N = 512: 261,632 flows, one receiver; the Zipf demand of the figures."""
    demand = zipf(512, 1.0, 30_000_000, 4096, 1)
    fluid = fluid_rr(demand, np.full(512, 100.0))
    hot = int(demand.sum(axis=0).argmax())
    profile = fluid.receiver(hot)
    assert_sound(profile, float(demand[:, hot].sum()), 100.0)
    assert profile.peak_bytes > 0.9 * demand[:, hot].sum()


def test_the_hot_port_s_table() -> None:
    """A queue that rises to 300 in the second interval and is gone in the fourth; what is of other ports or phases is not it."""
    columns = {
        "phase": np.array([0, 0, 0, 0, 0, 1]),
        "toward": np.array(["h1", "h1", "h1", "h1", "h2", "h1"]),
        "begin_ns": np.array([0.0, 10, 20, 30, 0, 40]),
        "bucket_ns": np.full(6, 10.0),
        "queue_max_bytes": np.array([100, 300, 280, 90, 999, 999]),
        "sent_bytes": np.array([50, 100, 190, 80, 999, 999]),
    }
    port = hot_port(columns, "h1", 0)
    assert port.edges_ns.tolist() == [0, 10, 20, 30, 40]
    assert port.queue_bytes.tolist() == [0, 100, 280, 90, 0]
    assert port.arrived_bytes.tolist() == [150, 280, 0, -10]
    with pytest.raises(KeyError):
        hot_port(columns, "h3", 0)


def test_a_folder_without_round_robin_is_refused(tmp_path: Path) -> None:
    """Before anything is read of it."""
    (tmp_path / "result.json").write_text(json.dumps({"runs": [{**figures("rr+nscc"), "cc": "nscc"}]}))
    with pytest.raises(InputError, match="no run of rr without a control"):
        Theory.of(read_saved(tmp_path), 0)
