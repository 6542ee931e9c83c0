"""What the BMv2 fabric needs and how its speeds come about, without a switch."""

from __future__ import annotations

import socket
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from controller.errors import CannotRunError, InputError
from testbed.experiment import from_mapping
from testbed.fabric.bmv2 import installation
from testbed.fabric.bmv2.rates import bmv2_dilation, queue_rates, rounding
from testbed.fabric.bmv2.thrift import QueueControl
from testbed.report.agreement import agreement, agreement_table, as_rows
from testbed.scenario import prepare
from testbed.topology import leaf_spine, wire

MTU = 4096


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Something that says that it is BMv2 1.15.5."""
    path = tmp_path / "bin" / "simple_switch_grpc"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho 1.15.5-abc\n")
    path.chmod(0o755)
    monkeypatch.setenv("INCASTFREE_BMV2", str(path))
    return path


@pytest.fixture
def demand(tmp_path: Path) -> str:
    file = tmp_path / "demand.csv"
    file.write_text("0,8192\n8192,0\n")
    return str(file)


def keys(demand: str, **others: Any) -> dict[str, Any]:
    return {"demand": [{"file": demand, "unit": "wire-bytes"}], "fabric": "bmv2", **others}


def test_found_by_its_variable(program: Path) -> None:
    found = installation.find()
    assert found is not None
    assert found.program == program
    assert found.version() == "1.15.5-abc"
    assert found.environment()["LD_LIBRARY_PATH"].split(":")[0] == str(program.parent.parent.resolve() / "lib")


def test_found_on_the_path(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INCASTFREE_BMV2")
    monkeypatch.setenv("PATH", str(program.parent))
    found = installation.find()
    assert found is not None
    assert found.program == program


def test_bindings_beside_it_are_found(program: Path) -> None:
    folder = program.parent.parent / "lib" / "python3.11" / "site-packages"
    folder.mkdir(parents=True)
    found = installation.find()
    assert found is not None
    assert found.python_paths == [str(folder.resolve())]


def test_a_variable_that_names_nothing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INCASTFREE_BMV2", str(tmp_path / "none"))
    with pytest.raises(CannotRunError, match=r"INCASTFREE_BMV2 is .*none, which is no program: set it to the path of"):
        installation.find()


def test_a_program_that_does_not_start_is_said(program: Path) -> None:
    program.write_text("#!/bin/sh\nexit 3\n")
    found = installation.find()
    assert found is not None
    with pytest.raises(CannotRunError, match=r"does not start .*: install BMv2 again"):
        found.version()


def test_without_bmv2_a_run_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, demand: str) -> None:
    monkeypatch.delenv("INCASTFREE_BMV2", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CannotRunError, match="fabric bmv2 needs BMv2: put simple_switch_grpc on the PATH") as caught:
        prepare(from_mapping(keys(demand)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"loss_data": 0.1}, "loss_data: only the fabric kernel"),
        ({"loss_ack": 0.1}, "loss_ack: only the fabric kernel"),
        ({"link_failure": [{"link": "h1", "down_ns": 0, "up_ns": 1}]}, "link_failure: only the fabric kernel"),
    ],
)
def test_what_only_the_kernel_does_is_refused(demand: str, other: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        from_mapping(keys(demand, **other))


@pytest.mark.usefixtures("program")
def test_a_packet_takes_a_millisecond(demand: str) -> None:
    """800 Gb/s, 4096 B: 40.96 ns of fabric time."""
    scenario = prepare(from_mapping(keys(demand)))
    assert scenario.dilation == Fraction(10**6) / Fraction("40.96")
    assert scenario.links == "veth"
    assert queue_rates(scenario.wiring, scenario.dilation, MTU) == [(1000, 64_000)] * len(scenario.wiring.ports)
    assert not scenario.notes


@pytest.mark.usefixtures("program")
def test_too_fast_for_bmv2_is_refused_with_the_least_dilation(demand: str) -> None:
    with pytest.raises(InputError, match=r"dilation is 100: BMv2 is exact up to 10000 packets/s .* takes 2442 or more"):
        prepare(from_mapping(keys(demand, dilation=100)))
    prepare(from_mapping(keys(demand, dilation=2442)))


@pytest.mark.usefixtures("program")
def test_rates_that_are_no_whole_packets_are_said(demand: str) -> None:
    """At 300 of 800 Gb/s 375 packets/s; at 301 no whole number, within 0.1 %; at 100.3 125.375; at 1 Gb/s 1.25."""
    for gbps, noted in ((300, False), (301, False), (100.3, True)):
        scenario = prepare(from_mapping(keys(demand, link_gbps_of={"h1": gbps})))
        assert any("whole packets a second" in note for note in scenario.notes) == noted, gbps
    with pytest.raises(InputError, match=r"BMv2 serves whole packets a second, which would be 20 % off"):
        prepare(from_mapping(keys(demand, link_gbps_of={"h1": 1})))


@pytest.mark.usefixtures("program")
def test_short_packets_are_said(tmp_path: Path) -> None:
    """1000 B take BMv2 as long as 4096 B."""
    file = tmp_path / "short.csv"
    file.write_text("0,1000\n1000,0\n")
    assert any("310 % longer" in note for note in prepare(from_mapping(keys(str(file)))).notes)


@pytest.mark.usefixtures("program")
def test_thresholds_below_a_packet_are_refused(demand: str) -> None:
    """They would mean: no marks."""
    with pytest.raises(InputError, match="ecn_kmax_bytes is 4000: BMv2 counts its queues in packets of 4096 B"):
        prepare(from_mapping(keys(demand, ecn_kmin_bytes=0, ecn_kmax_bytes=4000)))
    prepare(from_mapping(keys(demand, ecn_kmin_bytes=0, ecn_kmax_bytes=0)))


@pytest.mark.usefixtures("program")
def test_in_real_time_the_fastest_port_passes_whole_packets(tmp_path: Path) -> None:
    """However many hosts share the budget: a rate that is rounded would be another network."""
    for hosts in (8, 12, 32, 48):
        file = tmp_path / "demand.csv"
        file.write_text("\n".join(",".join("0" if i == j else "409600" for j in range(hosts)) for i in range(hosts)))
        scenario = prepare(from_mapping(keys(str(file), stage="host")))
        assert rounding(scenario.wiring, scenario.dilation, MTU) < 1e-9, hosts
        assert scenario.dilation > 24_414


def test_a_link_to_the_program_is_followed(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries lie beside the program, not beside the link."""
    link = tmp_path / "elsewhere"
    link.symlink_to(program)
    monkeypatch.setenv("INCASTFREE_BMV2", str(link))
    found = installation.find()
    assert found is not None
    assert found.prefix == program.parent.parent.resolve()


def test_rounding_of_rates() -> None:
    wiring = wire(leaf_spine(2, 4, Fraction(800), Fraction(1000), {"h1": Fraction(1)}, {}))
    dilation = bmv2_dilation(Fraction(800), MTU)
    assert queue_rates(wiring, dilation, MTU)[0] == (1, 80)
    assert rounding(wiring, dilation, MTU) == pytest.approx(0.2)


def test_nobody_listens_to_thrift() -> None:
    pytest.importorskip("thrift", reason="needs python3-thrift")
    if (found := installation.find()) is None:
        pytest.skip(installation.NEEDED)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(CannotRunError, match=rf"leaf1 \(Thrift, 127.0.0.1:{port}\): nobody answers within 0.2 s"):
        QueueControl("leaf1", port, found.python_paths, timeout_s=0.2)


def test_a_server_that_hangs_up_is_one_line() -> None:
    pytest.importorskip("thrift", reason="needs python3-thrift")
    if (found := installation.find()) is None:
        pytest.skip(installation.NEEDED)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def hang_up() -> None:
            for _ in range(2):
                server.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        queues = QueueControl("leaf1", port, found.python_paths)
        with pytest.raises(
            CannotRunError, match=r"leaf1 \(Thrift.*\): the rate of queue 1/0 was refused \(.*\)"
        ) as error:
            queues.set_queue_rate(1, 0, 1000)
        assert "\n" not in str(error.value)


FIGURES: dict[str, Any] = {
    "run": "rr",
    "mtu_bytes": MTU,
    "cct_ns": 1000,
    "cct_last_ack_ns": None,
    "receiver_done_ns_mean": 500,
    "hot_queue_max_bytes": 10 * MTU,
    "fabric_queue_max_bytes": 0,
    "marks": 0,
    "trims": 4,
    "drops": 0,
    "retransmissions": 4,
}


def test_differences_are_relative_or_in_packets() -> None:
    found = {
        each.figure: each
        for each in agreement([FIGURES], [{**FIGURES, "cct_ns": 1010, "hot_queue_max_bytes": 12 * MTU, "marks": 3}])
    }
    assert found["CCT [us]"].difference == pytest.approx(0.01)
    assert found["CCT, last ACK [us]"].difference is None
    assert found["hot queue [packets]"].difference == 2
    assert (found["marked packets"].difference, found["marked packets"].relative) == (
        3,
        False,
    )  # of nothing there is no part
    assert found["trimmed packets"].difference == 0
    table = agreement_table(list(found.values()))
    assert "+1.00 %" in table
    assert "+2.0" in table
    assert as_rows(list(found.values()))[0]["run"] == "rr"


def test_other_runs_are_not_compared() -> None:
    with pytest.raises(ValueError, match="rr and rate are two runs"):
        agreement([FIGURES], [{**FIGURES, "run": "rate"}])
