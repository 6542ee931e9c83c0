"""The API's rates: every backend's steps, every shape of matrix, from the whole demand and from sums, in C and NumPy."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import controller
from controller import InputError, compute_rates, load_demand, port_loads, rank_rates, steps
from controller.nic.rate_table import RATE_ONE
from controller.schedule import rate
from tests.conftest import REPOSITORY
from tests.unit.conftest import Compile
from tests.unit.test_rate import GBPS, LARGEST_TOTAL, SPEEDS, check

pytestmark = pytest.mark.usefixtures("part")

BACKEND_STEPS = [RATE_ONE, 2**20]
"""Of ebpf, and of DOCA PCC (20-bit fixed point)."""


def scaled_to_fit(wire: NDArray[np.float64], largest: int) -> NDArray[np.int64]:
    whole: NDArray[np.int64] = np.floor(wire / max(1e-300, wire.max()) * largest).astype(np.int64)
    np.fill_diagonal(whole, 0)
    return whole


@st.composite
def shaped(draw: st.DrawFn) -> NDArray[np.int64]:
    """Random, skewed, sparse, huge and asymmetric matrices of up to 24 hosts, with at least one flow."""
    hosts = draw(st.integers(2, 24))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.sampled_from(["random", "zipf", "sparse", "one column", "one row", "triangle", "uniform"]))
    weights = rng.random((hosts, hosts))
    if shape == "zipf":
        weights = np.broadcast_to(1 / np.arange(1, hosts + 1) ** draw(st.floats(0.2, 3)), weights.shape).copy()
        weights = weights[:, rng.permutation(hosts)]
    elif shape == "sparse":
        weights *= rng.random(weights.shape) < 2 / hosts
    elif shape == "one column":
        weights[:, 1:] *= 2.0**-40
    elif shape == "one row":
        weights[1:] *= 2.0**-40
    elif shape == "triangle":
        weights = np.triu(weights)
    elif shape == "uniform":
        weights[:] = 1
    wire = scaled_to_fit(weights, draw(st.sampled_from([1, 1000, 10**6, 2**31, 2**45, LARGEST_TOTAL // hosts**2])))
    if not wire.any():
        wire[0, 1] = 1
    return wire


@settings(max_examples=200, deadline=None, derandomize=True)
@given(shaped(), st.sampled_from(BACKEND_STEPS))
def test_equal_line_rates(wire: NDArray[np.int64], one: int) -> None:
    """No port above 1, no demand at rate 0, none ends after T* / lambda; and each rank finds its row from sums."""
    rates = compute_rates(wire, steps=one)
    check(wire, [GBPS] * len(wire), rates, one)
    loads = port_loads(wire)
    for rank in range(len(wire)):
        assert compute_rates(wire, steps=one, rank=rank).tolist() == rates[rank].tolist()
        for sent in (loads.sent, int(loads.sent.max())):
            own = rank_rates(wire[rank], loads.received, sent, steps=one, rank=rank)
            assert own.tolist() == rates[rank].tolist()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(shaped(), st.sampled_from(BACKEND_STEPS), st.data())
def test_unequal_line_rates(wire: NDArray[np.int64], one: int, data: st.DataObject) -> None:
    speeds = data.draw(st.lists(st.sampled_from(SPEEDS), min_size=len(wire), max_size=len(wire)))
    rates = compute_rates(wire, steps=one, line_rates_bps=speeds)
    check(wire, speeds, rates, one)
    loads = port_loads(wire)
    rank = data.draw(st.integers(0, len(wire) - 1))
    own = rank_rates(wire[rank], loads.received, loads.sent, steps=one, line_rates_bps=speeds, rank=rank)
    assert own.tolist() == rates[rank].tolist()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 2**62), min_size=1, max_size=40),
    st.integers(1, 2**100),
    st.sampled_from([3, 2**20, 2**32 - 1]),
    st.data(),
)
def test_rounding_up_is_exact(amounts: list[int], numerator: int, one: int, data: st.DataObject) -> None:
    """Against whole numbers of Python, with quotients of up to ``one``, many of them whole or next to whole."""
    least = -(-max(*amounts, 1) * numerator // one)
    denominator = data.draw(st.sampled_from([1, 3])) * least + data.draw(st.integers(0, 3))
    near = data.draw(st.lists(st.integers(0, one - 1), max_size=10))
    amounts = amounts + [k * denominator // numerator + offset for k in near for offset in (0, 1)]
    amounts = [amount for amount in amounts if amount <= 2**62 and amount * numerator <= one * denominator]
    found = np.empty(len(amounts), dtype=np.uint32)
    steps.ceil_into(found, np.array(amounts, dtype=np.int64), numerator, denominator)
    assert found.tolist() == [-(-amount * numerator // denominator) for amount in amounts]


@pytest.mark.parametrize("denominator", [2**40, 2**70])
def test_what_does_not_fit_is_refused(denominator: int) -> None:
    amounts = np.array([5, 2**50], dtype=np.int64)
    for numerator in (denominator >> 18, denominator >> 17, denominator):
        with pytest.raises(ValueError, match="above the line rate"):
            steps.ceil_into(np.empty(2, dtype=np.uint32), amounts, numerator, denominator)
    found = np.empty(2, dtype=np.uint32)
    steps.ceil_into(found, amounts, (denominator >> 18) * 4095 // 4096, denominator)
    assert found.tolist() == [1, 2**32 // 4096 * 4095]


def exact_sums(matrix: NDArray[Any]) -> tuple[list[int], list[int]]:
    cells = [[int(cell) * (i != j) for j, cell in enumerate(row)] for i, row in enumerate(matrix.tolist())]
    return [sum(row) for row in cells], [sum(column) for column in zip(*cells, strict=True)]


@pytest.mark.parametrize("hosts", [*range(1, 20), 67, 257])
@pytest.mark.parametrize("dtype", ["<u4", "<i8", "<i4", "<u2", "<u8"])
def test_port_loads_are_exact(hosts: int, dtype: str) -> None:
    """Of every number of rows and columns that a vector leaves over, and of the largest entries."""
    rng = np.random.default_rng(hosts)
    most = min(int(np.iinfo(dtype).max), LARGEST_TOTAL // hosts**2)
    largest = np.full((hosts, hosts), most, dtype=dtype)
    for matrix in (rng.integers(0, most, (hosts, hosts), dtype=dtype, endpoint=True), largest):
        sent, received = exact_sums(matrix)
        for laid in (matrix, np.asfortranarray(matrix), np.repeat(matrix, 2, axis=1)[:, ::2]):
            loads = port_loads(laid)
            assert loads.sent.tolist() == sent
            assert loads.received.tolist() == received
            assert loads.largest == max(*sent, *received)


def test_port_loads_of_a_matrix_at_any_address() -> None:
    memory = np.arange(9 * 9 + 8, dtype=np.uint32) * np.uint32(48_000_000)
    for start in range(8):
        matrix = memory[start : start + 81].reshape(9, 9)
        loads = port_loads(matrix)
        assert (loads.sent.tolist(), loads.received.tolist()) == exact_sums(matrix)


PLAIN_SUMS = """
#pragma GCC target("TARGET")
#undef __gnu_linux__
#include "NATIVE/loads.c"
#include <stdio.h>

int main(void)
{
	static uint32_t narrow[70 * 70];
	static int64_t wide[70 * 70];
	static uint64_t sent[3][70], received[3][70];

	for (size_t hosts = 1; hosts <= 70; hosts++) {
		memset(sent, 0, sizeof sent);
		memset(received, 0, sizeof received);
		for (size_t at = 0; at < hosts * hosts; at++) {
			narrow[at] = ~(uint32_t)(at * 2654435761u >> 7);
			wide[at] = (int64_t)narrow[at];
			if (at % (hosts + 1))
				sent[2][at / hosts] += narrow[at], received[2][at % hosts] += narrow[at];
		}
		if (loads_32(narrow, hosts, sent[0], received[0]) || loads_64(wide, hosts, sent[1], received[1]) < 0)
			return 2;
		for (int width = 0; width < 2; width++)
			if (memcmp(sent[width], sent[2], sizeof sent[2]) || memcmp(received[width], received[2], sizeof sent[2]))
				return printf("%zu hosts, %d\\n", hosts, width), 1;
	}
	return 0;
}
"""


@pytest.mark.parametrize("target", ["sse2", "avx2"])
def test_port_loads_for_processors_with_less(compile_c: Compile, target: str) -> None:
    """What another processor than this one would run."""
    if platform.machine() != "x86_64" or (target == "avx2" and "avx2" not in Path("/proc/cpuinfo").read_text()):
        pytest.skip(f"needs a processor with {target}")
    source = PLAIN_SUMS.replace("TARGET", target).replace("NATIVE", str(REPOSITORY / "controller/native"))
    done = subprocess.run([compile_c(source)], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("matrix", "complaint"),
    [
        (np.zeros((2, 3), dtype=np.int64), "2 x 3, but must be square"),
        (np.zeros((0, 0), dtype=np.int64), "0 x 0, but must be square"),
        (np.zeros(4, dtype=np.int64), "is 4, but must be square"),
        (np.zeros((2, 2)), "holds float64, but must hold whole bytes"),
        (np.array([[0, 5], [-1, 0]]), "negative"),
        (np.array([[0, 5], [-1, 0]], dtype=np.int32), "negative"),
        (np.full((3, 3), 2**61), "above 2\\^63"),
        (np.full((2, 2), 2**63, dtype=np.uint64), "above 2\\^63"),
    ],
)
def test_what_is_no_demand_is_refused(matrix: NDArray[Any], complaint: str) -> None:
    for function in (port_loads, compute_rates):
        with pytest.raises(InputError, match=complaint):
            function(matrix)


def test_a_total_of_almost_2_to_63_is_not_refused() -> None:
    matrix = np.array([[0, 2**62], [2**62 - 1, 0]])
    assert port_loads(matrix).largest == 2**62


def row_of(*amounts: int) -> NDArray[np.int64]:
    return np.array(amounts, dtype=np.int64)


@pytest.mark.parametrize(
    ("row", "received", "sent", "complaint"),
    [
        (row_of(0, 5, 5), row_of(9, 9, 9), 9, "the row has 10 bytes, but the largest row is said to have 9"),
        (row_of(0, 5, 5), row_of(9, 9, 4), 10, "row\\[2\\] is 5 bytes, but rank 2 is said to get 4"),
        (row_of(0, -1, 5), row_of(9, 9, 9), 10, "row\\[1\\] is negative"),
        (row_of(0, 1, 5), row_of(-9, 9, 9), 10, "received\\[0\\] is negative"),
        (row_of(0, 2**62, 2**62), row_of(0, 2**62, 2**62), 2**63 - 1, "the row has 9223372036854775808 bytes"),
        (row_of(0, 1, 2), row_of(9, 9), 10, "2 column sums for a row of 3"),
        (row_of(0, 1, 2).astype(float), row_of(9, 9, 9), 10, "row is 1-dimensional float64"),
        (row_of(0, 1, 2), row_of(9, 9, 9), -1, "the largest row is said to have -1"),
        (row_of(0, 1, 2), row_of(9, 9, 9), 2**63, "the largest row is said to have 9223372036854775808"),
    ],
)
def test_sums_that_are_not_the_rows_are_refused(
    row: NDArray[Any], received: NDArray[Any], sent: int, complaint: str
) -> None:
    """A port would be oversubscribed."""
    with pytest.raises(InputError, match=complaint) as caught:
        rank_rates(row, received, sent)
    assert "\n" not in str(caught.value)


def test_other_arguments_that_are_refused() -> None:
    wire = np.array([[0, 1], [1, 0]])
    calls: list[tuple[str, Any]] = [
        ("ranks 0 to 1", lambda: compute_rates(wire, rank=2)),
        ("1 line rates for 2 ranks", lambda: compute_rates(wire, line_rates_bps=[GBPS])),
        ("a NIC has 1 to 2", lambda: compute_rates(wire, steps=2**32 + 1)),
        ("a NIC has 1 to 2", lambda: rank_rates(wire[0], wire[0] + wire[1], 1, steps=0)),
        ("2 hosts", lambda: compute_rates(wire, steps=3)),
        ("2 hosts", lambda: rank_rates(wire[0], wire[0] + wire[1], 1, steps=3)),
        ("0 for what stays", lambda: rank_rates(wire[0], wire[0] + wire[1], 1, rank=1)),
        ("sums of all rows", lambda: rank_rates(wire[0], row_of(1, 1), 1, line_rates_bps=[GBPS] * 2, rank=0)),
        ("whose row", lambda: rank_rates(wire[0], row_of(1, 1), row_of(1, 1), line_rates_bps=[GBPS] * 2)),
        ("line rates for", lambda: rank_rates(wire[0], row_of(1, 1), row_of(1, 1), line_rates_bps=[GBPS], rank=0)),
    ]
    for complaint, call in calls:
        with pytest.raises(InputError, match=complaint):
            call()


def test_nothing_to_send_has_no_rates() -> None:
    wire = np.zeros((3, 3), dtype=np.int64)
    assert not compute_rates(wire).any()
    assert not rank_rates(wire[0], wire[0], 0).any()
    assert not rank_rates(wire[0], wire[0], wire[0], line_rates_bps=[GBPS] * 3, rank=0).any()


def test_one_flow_of_all_that_can_be() -> None:
    """M of 2^63 - 1 is beyond what remainders modulo 2^64 tell."""
    largest = 2**63 - 1
    for one in BACKEND_STEPS:
        rates = rank_rates(row_of(0, largest, 0), row_of(0, largest, 0), largest, steps=one)
        assert rates.tolist() == [0, one - 4, 0]
        shares = rank_rates(row_of(0, 2**62, 1), row_of(0, largest - 1, 1), 2**62 + 1, steps=one)
        assert shares.tolist() == [0, -(-(2**62) * (one - 4) // (largest - 1)), 1]


def test_the_diagonal_is_left_out() -> None:
    wire = np.array([[7, 1, 2], [3, 10**9, 4], [5, 6, 0]], dtype=np.uint32)
    bare = wire.copy()
    np.fill_diagonal(bare, 0)
    assert compute_rates(wire).tolist() == compute_rates(bare).tolist()
    assert compute_rates(wire, rank=1).tolist() == compute_rates(bare)[1].tolist()


@pytest.mark.parametrize("speeds", [None, [100 * GBPS] + [800 * GBPS] * 999], ids=["equal", "unequal"])
def test_a_thousand_ranks(speeds: Sequence[Fraction] | None) -> None:
    """Some of them against whole numbers of Python."""
    rng = np.random.default_rng(3)
    wire = np.floor(1e6 * rng.pareto(1.1, (1000, 1000))).astype(np.int64)
    np.fill_diagonal(wire, 0)
    rates = compute_rates(wire, line_rates_bps=speeds)
    given_speeds = speeds or [GBPS] * 1000
    time_s = controller.Demand(wire).bottleneck(given_speeds).time_s / rate.slack(1000, given_speeds)
    for rank in (0, 1, 500, 999):
        share = Fraction(8 * RATE_ONE) / (time_s * given_speeds[rank])
        exact = [-(-amount * share.numerator // share.denominator) for amount in wire[rank].tolist()]
        assert rates[rank].tolist() == exact


def test_every_name_of_the_interface_is_there() -> None:
    for name in controller.__all__:
        assert getattr(controller, name) is not None
    assert set(controller.__all__) == {name for names in controller._PLACES.values() for name in names}
    with pytest.raises(AttributeError):
        _ = controller.no_such_name


def test_the_package_alone_imports_nothing() -> None:
    """So that doctor can say what is missing, NumPy among it."""
    code = "import sys, controller; assert 'numpy' not in sys.modules; import controller.nic.ebpf; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_schedule_has_the_same_rates() -> None:
    wire = np.array([[0, 1000, 2000], [800, 0, 2000], [2000, 1000, 0]])
    plan = rate.plan(controller.Demand(wire), [800 * GBPS] * 3)
    assert plan.steps.tolist() == compute_rates(wire).tolist()


def test_what_a_caller_has_at_hand_is_taken() -> None:
    """Lists and numbers, not arrays and fractions alone."""
    plain = [[0, 1], [2, 0]]
    assert port_loads(plain).largest == 2  # type: ignore[arg-type]
    assert (compute_rates(plain) == compute_rates(np.array(plain))).all()  # type: ignore[arg-type]
    equal = compute_rates(np.array(plain), line_rates_bps=[1e9, 1e9])
    assert (equal == compute_rates(np.array(plain), line_rates_bps=[Fraction(10**9)] * 2)).all()


@pytest.mark.parametrize("speed", [0, -1, float("nan"), float("inf")])
def test_a_port_without_a_speed_is_refused(speed: float) -> None:
    demand = np.array([[0, 1], [2, 0]])
    with pytest.raises(InputError, match=r"line_rates_bps\[1\] is .*: give the speed of rank 1's port"):
        compute_rates(demand, line_rates_bps=[10**9, speed])
    with pytest.raises(InputError, match=r"line_rates_bps\[1\] is .*: give the speed of rank 1's port"):
        rank_rates(demand[0], demand.sum(axis=0), demand.sum(axis=1), line_rates_bps=[10**9, speed], rank=0)


def test_a_path_may_be_text(tmp_path: Path) -> None:
    (tmp_path / "demand.csv").write_text("0,1\n2,0\n")
    assert load_demand(str(tmp_path / "demand.csv"), unit="wire-bytes").hosts == 2
