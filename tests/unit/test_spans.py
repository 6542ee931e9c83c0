"""What programs note of themselves, what the guest and the host say of them, and the verb's options: no machine."""

from __future__ import annotations

import argparse
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.errors import InputError
from testbed.cli import exec as verb
from testbed.experiment import from_mapping
from testbed.measure import spans
from testbed.programs import prepare_programs
from testbed.scenario import Scenario
from testbed.stage import ranks
from testbed.stage.virtual.running import Running, parse_stack


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    """Two hosts at 800 Gb/s, at which exec's dilation is 10,000."""
    return prepare_programs(from_mapping({"hosts": 2, "schedule": "rr"}, needs_demand=False))


def test_dilation(scenario: Scenario) -> None:
    """A hundred times that at which a byte takes 1 ns; what the experiment says goes first."""
    assert scenario.dilation == 10_000
    given = from_mapping({"hosts": 2, "schedule": "rr", "dilation": 300}, needs_demand=False)
    assert prepare_programs(given).dilation == 300


def test_spans_of_all_ranks_are_one_collective(scenario: Scenario, tmp_path: Path) -> None:
    """From the first begin to the last end, against the bound of the bytes; by hand at dilation 10,000."""
    (tmp_path / "0").write_text("a 1000000 3000000 0 4032\nb 5000000 6000000\n")
    (tmp_path / "1").write_text("b 5000000 7000000\na 1500000 4000000 8064 77\n")
    found = spans.collectives(scenario, [spans.read_spans(tmp_path / str(r), r, 2) for r in (0, 1)], 1_000_000)
    a, b = found
    assert (a["name"], a["turn"], a["begin_ns"], a["cct_ns"]) == ("a", 0, 0, 300)
    # Two packets of 4096 B from rank 1 are the most: 81.92 ns. What rank 1 keeps does not count.
    assert (a["wire_bytes"], a["lower_bound_ns"], a["bottleneck"]) == (3 * 4096, 81.92, "receiver h1")
    assert a["inflation"] == pytest.approx(300 / 81.92 - 1)
    assert (b["name"], b["begin_ns"], b["cct_ns"], b["lower_bound_ns"]) == ("b", 400, 200, None)
    assert spans.read_spans(tmp_path / "none", 0, 2) == {}


@pytest.mark.parametrize("line", ["a", "a 1", "a 2 1", "a x 2", "a 1 2 3", "a 1 2 3 4 5", "a 1 2 3 -4", "", "a 1.5 2"])
def test_strange_spans(tmp_path: Path, line: str) -> None:
    (tmp_path / "0").write_text(f"a 1 2\n{line}\n")
    with pytest.raises(InputError, match="rank 7: line 2 of its spans"):
        spans.read_spans(tmp_path / "0", 7, 2)


def test_a_rank_lacks_a_span(scenario: Scenario) -> None:
    with pytest.raises(InputError, match="span a: rank 0 noted 1, rank 1 0"):
        spans.collectives(scenario, [{"a": [(1, 2, [])]}, {}], 0)


def test_figures(scenario: Scenario) -> None:
    """Counters of the fabric to bytes and fabric time: a byte takes 100 ns of kernel time."""
    ports = len(scenario.wiring.ports)
    deepest = [0] * ports
    deepest[scenario.wiring.host_port(1)] = 8192 * 100
    deepest[0] = 500
    counters = dict.fromkeys(("marks", "drops", "lost"), 0)
    result: dict[str, Any] = {
        "begin_ns": 1000,
        "ranks": [{"end_ns": 11_000, "status": 0}, {"end_ns": 2_001_000, "status": 0}],
        "flows": [[0, 1, 9000, 3, 11_000, 21_000]],
        "deepest_ns": deepest,
        "ports": [{**counters, "drops": 2}, *[counters] * (ports - 1)],
        "late_packets": 0,
    }
    found = spans.figures(scenario, result)
    assert found["rank_end_ns"] == [1, 200]
    assert (found["duration_ns"], found["exit_codes"]) == (200, [0, 0])
    assert (found["delivered_bytes"], found["packets"], found["drops"]) == (9000, 3, 2)
    assert (found["hot_queue_max_bytes"], found["hot_host"]) == (8192, "h2")
    assert (found["nic_queue_max_bytes"], found["fabric_queue_max_bytes"]) == (5, 0)
    columns = {name: values.tolist() for name, values in spans.flow_columns(scenario, result).items()}
    assert columns["first_arrival_ns"] == [1]
    assert columns["last_arrival_ns"] == [2]


def test_wire_demand_leaves_out_what_stays() -> None:
    demand = spans.wire_demand(np.array([[10, 1], [4033, 20]]), 4096)
    assert demand.wire_bytes.tolist() == [[0, 65], [4161, 0]]
    assert demand.local_bytes == 30


STACK = b"\x99\x01x86_64\0python3\0a b.py\0HOME=/\0RANK=3\0X=1=2\0/usr/bin/python3\0" + bytes(8)


@pytest.mark.parametrize(
    ("stack", "found"),
    [
        (STACK, Running("python3 a b.py", 3)),
        (STACK.replace(b"\x99\x01", b"(\0)\xf0S\xc1G"), Running("python3 a b.py", 3)),  # decoded, it could be printed
        (STACK.replace(b"RANK=3", b"RANK=x"), Running("python3 a b.py", None)),
        (b"\0sh\0-c\0A=1\0/bin/sh\0" + bytes(9), Running("sh -c", None)),
        (STACK.replace(b"b.py", b"b;\n c"), Running("python3 a b; c", 3)),
        (b"", None),
        (bytes(64), None),
    ],
)
def test_the_top_of_a_stack(stack: bytes, found: Running | None) -> None:
    """As execve leaves it: arguments, environment, path, zeros."""
    assert parse_stack(stack) == found


def test_own_stack() -> None:
    """Of this very process, whose memory is read as that of a guest's program."""
    regions = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[stack]")]
    begin, end = (int(word, 16) for word in regions[0].split()[0].split("-"))
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(max(begin, end - 65536))
        stack = memory.read(end - max(begin, end - 65536))
    found = parse_stack(stack)
    words = Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    assert found is not None
    assert found.command == " ".join(word.decode() for word in words)[:80]


def test_why_a_rank_failed() -> None:
    given = {"argv": ["python3", "x" * 100], "limit_s": 5}
    rank = ranks._Rank(4, 1, -1, {}, {}, last_line="ValueError: no", status=3)
    assert ranks._why_failed(rank, given) == (f"rank 4 (python3 {'x' * 69}...) ended with exit code 3: ValueError: no")
    rank.status = -9
    assert "was killed by signal 9 (SIGKILL)" in ranks._why_failed(rank, given)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "no demand, and no hosts"),
        ({"hosts": 1}, "no demand, and no hosts"),
        ({"hosts": 2, "stage": "host"}, "stage is host"),
        ({"hosts": 2, "fabric": "bmv2"}, "fabric is bmv2"),
        ({"hosts": 2, "nic": "doca-model"}, "nic is doca-model"),
        ({"hosts": 2, "lb": "reps"}, "lb is reps"),
        ({"hosts": 2, "schedule": "rate"}, "needs a demand"),
        ({"hosts": 2, "schedule": "rr+nscc"}, "bring their own congestion control"),
        (
            {"hosts": 2, "background": [{"source": "h1", "destination": "h2", "bytes": 64, "rate_gbps": 1}]},
            "background",
        ),
    ],
)
def test_what_exec_does_not_know(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare_programs(from_mapping({"schedule": "rr", **keys}, needs_demand=False))


def test_exec_takes_one_demand(tmp_path: Path) -> None:
    (tmp_path / "demand.csv").write_text("0,1\n1,0\n")
    phases: list[dict[str, Any]] = [{"file": str(tmp_path / "demand.csv"), "name": str(number)} for number in range(2)]
    phases[1]["after"] = ["0"]
    with pytest.raises(InputError, match="2 demands"):
        prepare_programs(from_mapping({"schedule": "rate", "demand": phases}))
    assert prepare_programs(from_mapping({"schedule": "rate", "demand": phases[:1]})).dilation == 10_000


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    return parser.parse_args(words)


def test_options(tmp_path: Path) -> None:
    """The command keeps its own options; a key of the file gives way to an option."""
    file = tmp_path / "net.toml"
    file.write_text("hosts = 4\nlimit_s = 9\nlb = 'ecmp'\n")
    given = parsed(
        str(file), "--out", "x", "--limit-s", "20", "--limit-virtual-s", "0.5", "--", "sh", "-c", "ls --", "--"
    )
    assert given.command == ["sh", "-c", "ls --", "--"]
    experiment = verb._experiment(given)
    assert (experiment.limit_s, experiment.limit_virtual_s) == (Fraction(20), Fraction(1, 2))
    assert experiment.lb == "ecmp"
    assert experiment.schedule == ("rr",)
    with pytest.raises(InputError, match="limit-s soon"):
        verb._experiment(parsed(str(file), "--out", "x", "--limit-s", "soon", "--", "true"))


@pytest.mark.parametrize("text", ["tcp_ecn", "kernel.hostname=x", "net/../x=1", "net..x=1", ""])
def test_strange_sysctl(text: str) -> None:
    with pytest.raises(InputError, match="NAME=VALUE"):
        verb._sysctls([text])
    assert verb._sysctls(["net.ipv4.tcp_rmem=1 2 3"]) == {"net.ipv4.tcp_rmem": "1 2 3"}
