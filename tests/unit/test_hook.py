"""The framework hook: rates from split sizes, with a NIC and a torch of the test's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from controller import hook
from controller.demand import HEADER_BYTES
from controller.errors import CannotRunError, InputError
from controller.nic import Capabilities, Nic, Steps, attach_nic
from controller.nic.rate_table import RATE_ONE
from controller.rates import compute_rates
from tests.conftest import REPOSITORY


class FakeNic(Nic):
    """Remembers what was written, in the order of what else happened."""

    def __init__(self, slots: int = 1024) -> None:
        self.events: list[Any] = []
        self.slots = slots

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(RATE_ONE, self.slots, 1, "measured", "this test")

    def write_rates(self, steps: Steps) -> None:
        self.events.append(np.frombuffer(steps, dtype=np.uint32).tolist())

    def read_rates(self) -> tuple[int, bytes]:
        raise NotImplementedError

    def close(self) -> None:
        self.events.append("closed")


COUNTS = np.array([[5, 3, 0], [100, 7, 2], [1, 1, 1]])
UNIT = 4096


def expected(counts: Any, rank: int, unit: int = UNIT, rates: Sequence[Fraction] | None = None) -> list[int]:
    """Of the whole demand, in packets of 4032 B payload and 64 B headers."""
    payload = np.asarray(counts) * unit
    found = compute_rates(payload + HEADER_BYTES * -(-payload // 4032), rank=rank, line_rates_bps=rates)
    return [int(steps) for steps in found]


@pytest.mark.parametrize("rank", range(3))
def test_rates_are_those_of_the_whole_demand(rank: int) -> None:
    found = hook.Pacer(FakeNic(), rank, 3).rates(COUNTS, UNIT)
    assert found.tolist() == expected(COUNTS, rank)
    assert found[rank] == 0
    # Rank 0 receives 101 of the 102 units of rank 1, which is the bottleneck: it sends at its line rate.
    if rank == 1:
        assert found.sum() == pytest.approx(RATE_ONE, rel=1e-8)


def test_rates_of_unequal_nics() -> None:
    speeds = [Fraction(10**11), Fraction(4 * 10**11), Fraction(10**11)]
    for rank in range(3):
        found = hook.Pacer(FakeNic(), rank, 3, line_rates_bps=speeds).rates(COUNTS, UNIT)
        assert found.tolist() == expected(COUNTS, rank, rates=speeds)


def test_wire_bytes() -> None:
    """4032 B of payload fill a packet; a byte more begins another."""
    assert hook.wire_matrix([[9, 1], [2, 9]], 4032).tolist() == [[0, 4096], [8192, 0]]
    assert hook.wire_matrix([[9, 4033], [0, 9]], 1).tolist() == [[0, 4033 + 128], [0, 0]]


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_counts_of_any_size(dtype: Any) -> None:
    """In 64 bits, whatever theirs are; the caller's array stays as it is."""
    counts = np.full((2, 2), 200, dtype=dtype)
    assert hook.wire_matrix(counts, 2**30 * 63)[0, 1] == 200 * 2**30 * 64
    assert (counts == 200).all()


def test_dispatch_paces_its_block_alone() -> None:
    nic = FakeNic()
    pacer = hook.Pacer(nic, 1, 3)
    with pacer.dispatch(COUNTS, UNIT):
        nic.events.append("sent")
    assert nic.events == [expected(COUNTS, 1), "sent", [0, 0, 0]]
    with pytest.raises(RuntimeError, match="lost"), pacer.dispatch(COUNTS, UNIT):
        raise RuntimeError("lost")
    assert nic.events[-1] == [0, 0, 0]


@pytest.mark.parametrize(
    ("counts", "unit", "message"),
    [
        (np.ones((3, 2), dtype=int), 8, "N x N"),
        (np.ones((3, 3)), 8, "whole numbers"),
        (np.ones((2, 2), dtype=int), 8, "there are 3"),
        (-np.eye(3, dtype=int), 8, "negative"),
        ([[0, 1, 1], [1, 0, -4], [1, 1, 0]], 8, "rank 1's split size for rank 2 is negative, -4"),
        ([[0, 1, 1], [1, 0], [1, 1, 0]], 8, "N x N"),
        ([["a"] * 3] * 3, 8, "N x N"),
        (np.ones((3, 3), dtype=int), 0, "unit_bytes"),
        (np.ones((3, 3), dtype=int), "8", "unit_bytes is '8'"),
        (np.ones((3, 3), dtype=int), 1.5, "unit_bytes is 1.5"),
        (np.full((3, 3), 2**60), 8, "smaller"),
    ],
)
def test_bad_split_sizes(counts: Any, unit: int, message: str) -> None:
    """Refused before anything is written."""
    nic = FakeNic()
    with pytest.raises(InputError, match=message), hook.Pacer(nic, 0, 3).dispatch(counts, unit):
        pass
    assert nic.events == []


def test_too_many_ranks() -> None:
    with pytest.raises(InputError, match="2 flows"):
        hook.Pacer(FakeNic(slots=2), 0, 3)
    with pytest.raises(InputError, match="count from 0"):
        hook.Pacer(FakeNic(), 3, 3)


class Tensor(np.ndarray[Any, Any]):
    """What the hook asks of a tensor."""

    def element_size(self) -> int:
        return self.itemsize

    def cpu(self) -> Tensor:
        return self


def tensor(values: Any, dtype: Any = np.int64) -> Tensor:
    return np.array(values, dtype=dtype).view(Tensor)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A torch of three ranks whose others have the rows of COUNTS."""
    calls: list[tuple[Any, ...]] = []
    dist = ModuleType("torch.distributed")

    def all_to_all_single(*arguments: Any) -> str:
        calls.append(arguments)
        seen.nic.events.append("sent")
        return "work"

    def all_gather(gathered: list[Tensor], mine: Tensor, group: Any) -> None:
        seen.groups.append(group)
        assert mine.tolist() == COUNTS[seen.rank].tolist()
        for into, row in zip(gathered, COUNTS, strict=True):
            into[:] = row

    module = ModuleType("torch")
    given: dict[str, Any] = {"all_to_all_single": all_to_all_single, "all_gather": all_gather}
    for name, value in given.items():
        setattr(dist, name, value)
    given = {
        "tensor": tensor,
        "int64": np.int64,
        "empty_like": np.empty_like,
        "stack": lambda rows: np.stack(rows).view(Tensor),
        "distributed": dist,
    }
    for name, value in given.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    seen = SimpleNamespace(nic=FakeNic(), rank=1, groups=[], calls=calls)
    return seen


@pytest.mark.parametrize("known", [True, False])
def test_all_to_all_single(torch: SimpleNamespace, known: bool) -> None:
    """Rates, then torch's own call with all its arguments, then none; what is not known is gathered."""
    pacer = hook.Pacer(torch.nic, 1, 3)
    rows = tensor(np.zeros((109, 8)), np.float32)
    output = tensor(np.zeros((11, 8)), np.float32)
    counts = tensor(COUNTS) if known else None
    splits = COUNTS[1].tolist()
    result = hook.all_to_all_single(output, rows, [3, 7, 1], splits, "ranks", counts=counts, pacer=pacer)
    assert result == "work"
    assert torch.nic.events == [expected(COUNTS, 1, unit=32), "sent", [0, 0, 0]]
    assert torch.groups == ([] if known else ["ranks"])
    ((sent_output, sent_rows, *rest),) = torch.calls
    assert sent_output is output
    assert sent_rows is rows
    assert rest == [[3, 7, 1], splits, "ranks", False]


def test_equal_splits(torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without split sizes every rank gets as much."""
    monkeypatch.setattr(sys.modules[__name__], "COUNTS", np.full((3, 3), 4))
    rows = tensor(np.zeros(12), np.float32)
    hook.all_to_all_single(rows, rows, pacer=hook.Pacer(torch.nic, 1, 3))
    assert torch.nic.events[0] == expected(np.full((3, 3), 4), 1, unit=4)


@pytest.mark.parametrize(
    ("splits", "counts", "message"),
    [
        ([100, 7, 2], COUNTS.T, r"counts\[1, 0\] is 3, but .* of rank 1 say 100 for rank 0.* transposed"),
        ([100, 7, 3], COUNTS, r"counts\[1, 2\] is 2, but .* say 3 for rank 2"),
        ([100, 9], None, "of rank 1 are 2: give one for each of 3 ranks"),
        ([100, 7, 1, 1], COUNTS, "of rank 1 are 4"),
        ([102, 9, -2], None, "rank 1's split size for rank 2 is negative, -2"),
        ([100, 7, 2.0], None, "whole number"),
        (7, None, "whole number"),
        (None, None, "109 rows, which 3 ranks do not share"),
    ],
)
def test_split_sizes_that_cannot_be(torch: SimpleNamespace, splits: Any, counts: Any, message: str) -> None:
    """Refused before anything is gathered, written or sent."""
    rows = tensor(np.zeros((109, 8)), np.float32)
    with pytest.raises(InputError, match=message):
        hook.all_to_all_single(rows, rows, None, splits, counts=counts, pacer=hook.Pacer(torch.nic, 1, 3))
    assert torch.nic.events == torch.groups == torch.calls == []


def test_what_a_rank_keeps_is_not_compared(torch: SimpleNamespace) -> None:
    """Some gather counts without it."""
    counts = COUNTS * (1 - np.eye(3, dtype=int))
    rows = tensor(np.zeros((109, 8)), np.float32)
    hook.all_to_all_single(rows, rows, None, tensor([100, 7, 2]), counts=counts, pacer=hook.Pacer(torch.nic, 1, 3))
    assert torch.nic.events[0] == expected(COUNTS, 1, unit=32)


def test_async_rates_stay(torch: SimpleNamespace) -> None:
    rows = tensor(np.zeros((109, 8)), np.float32)
    pacer = hook.Pacer(torch.nic, 1, 3)
    hook.all_to_all_single(rows, rows, [3, 7, 1], COUNTS[1].tolist(), None, True, counts=COUNTS, pacer=pacer)
    assert torch.nic.events == [expected(COUNTS, 1, unit=32), "sent"]
    assert torch.calls[0][-1] is True


NIC = {
    "table": "/nowhere/rate_tables",
    "entry": 1,
    "entries": 4,
    "line_rates_bps": ["800000000000"] * 4,
    "mtu_bytes": 4096,
}


def test_strange_speed(tmp_path: Path) -> None:
    (tmp_path / "peers.toml").write_text('0 = "10.0.0.1"\n')
    environment = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "INCASTFREE_DEV": "eth1",
        "INCASTFREE_PEERS": str(tmp_path / "peers.toml"),
    }
    for text in ("fast", "-1", "0", "1/0"):
        with pytest.raises(InputError, match="INCASTFREE_LINK_GBPS"):
            hook.Pacer.from_environment({**environment, "INCASTFREE_LINK_GBPS": text})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "RANK is not set"),
        ({"RANK": "1"}, "WORLD_SIZE is not set"),
        ({"RANK": "x", "WORLD_SIZE": "4"}, "RANK is x"),
        ({"RANK": "1", "WORLD_SIZE": "4"}, "INCASTFREE_DEV is not set"),
        ({"RANK": "1", "WORLD_SIZE": "4", "INCASTFREE_DEV": "eth1"}, "INCASTFREE_PEERS is not set"),
        ({"RANK": "1", "WORLD_SIZE": "4", "INCASTFREE_NIC": "/nowhere/nic.json"}, "cannot be read"),
    ],
)
def test_environment_that_lacks_something(environment: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        hook.Pacer.from_environment(environment)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", json.dumps({**NIC, "entry": "x"}), json.dumps({**NIC, "line_rates_bps": ["1/0"]})]
)
def test_file_that_describes_no_nic(tmp_path: Path, text: str) -> None:
    file = tmp_path / "nic.json"
    file.write_text(text)
    with pytest.raises(InputError, match="does not describe a NIC"):
        hook.Pacer.from_environment({"RANK": "1", "WORLD_SIZE": "4", "INCASTFREE_NIC": str(file)})


@pytest.mark.parametrize(
    ("rank", "world", "message"),
    [("0", "4", "RANK is 0, and 1 in"), ("1", "3", "WORLD_SIZE is 3, and 4 in"), ("4", "4", "count from 0")],
)
def test_environment_of_another_rank(tmp_path: Path, rank: str, world: str, message: str) -> None:
    """RANK and WORLD_SIZE that something between exec and the program has set anew."""
    file = tmp_path / "nic.json"
    file.write_text(json.dumps(NIC))
    with pytest.raises(InputError, match=message):
        hook.Pacer.from_environment({"RANK": rank, "WORLD_SIZE": world, "INCASTFREE_NIC": str(file)})


def test_peers_that_lack_a_rank(tmp_path: Path) -> None:
    """All but the rank itself are needed."""
    peers = tmp_path / "peers.toml"
    environment = {"RANK": "1", "WORLD_SIZE": "3", "INCASTFREE_DEV": "nowhere0", "INCASTFREE_PEERS": str(peers)}
    peers.write_text('0 = "10.0.0.1"\n1 = "10.0.0.2"\n')
    with pytest.raises(InputError, match=r"peers.toml: rank 2 of 3 has no address"):
        hook.Pacer.from_environment(environment)
    peers.write_text('0 = "10.0.0.1"\n2 = "10.0.0.3"\n')
    with pytest.raises(InputError, match=r"^INCASTFREE_DEV nowhere0: there is no such interface"):
        hook.Pacer.from_environment(environment)


def test_interface_without_a_speed(tmp_path: Path) -> None:
    """The remedy is the hook's variable, not an option of incastfree load."""
    (tmp_path / "peers.toml").write_text('0 = "10.0.0.1"\n')
    environment = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "INCASTFREE_DEV": "lo",
        "INCASTFREE_PEERS": str(tmp_path / "peers.toml"),
    }
    with pytest.raises(InputError, match=r"^lo does not say its speed: give it with INCASTFREE_LINK_GBPS$"):
        hook.Pacer.from_environment(environment)


def test_table_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "nic.json"
    file.write_text(json.dumps(NIC))
    with pytest.raises(CannotRunError, match="rate_tables"):
        attach_nic("pinned", str(file))


def test_the_hook_does_without_torch() -> None:
    """Importing it imports neither torch nor the testbed."""
    source = "import sys; sys.modules['torch'] = None; import controller.hook; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert "testbed" not in {name.partition(".")[0] for name in done.stdout.split()}
