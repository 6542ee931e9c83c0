"""The host stage, as far as it needs neither root nor another kernel: checks, budget, carriers, strays, errors."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.cli.main import main
from controller.errors import CannotRunError
from controller.nic.rtnetlink import NetlinkError
from testbed import runner
from testbed.experiment import from_mapping
from testbed.measure.results import RunData
from testbed.scenario import Scenario, choose_dilation, prepare
from testbed.stage.host import carriers, checks, machine
from testbed.stage.host.budget import (
    HOPS_PER_S,
    check_budget,
    check_kept_up,
    packet_hops_per_s,
    real_time_dilation,
)
from testbed.stage.host.carriers import wait_for_carriers
from testbed.stage.host.strays import end_strays

MTU = 4096
PACKET_NS = 40.96
"""At 800 Gb/s."""


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    """Two leaves of four hosts; each sends ten packets to each other."""
    file = tmp_path / "m.csv"
    np.savetxt(file, 10 * MTU * (1 - np.eye(8, dtype=np.int64)), fmt="%d", delimiter=",")
    return file


def scenario(file: Path, **keys: Any) -> Scenario:
    """Paced, in an open loop."""
    demand = [{"file": str(file), "unit": "wire-bytes"}]
    return prepare(
        from_mapping({"demand": demand, "stage": "host", "schedule": ["rate"], "loss_recovery": "none", **keys})
    )


def hops_per_s(prepared: Scenario) -> float:
    return packet_hops_per_s(prepared.experiment, prepared.wiring, prepared.demands, prepared.speeds_bps)


def dilation(prepared: Scenario, least: Fraction = Fraction(100)) -> Fraction:
    return real_time_dilation(least, prepared.experiment, prepared.wiring, prepared.demands, prepared.speeds_bps)


# ---- the budget ----


def test_packet_hops_of_a_uniform_demand(matrix: Path) -> None:
    """Of seven others three are two links away and four are four; every NIC is busy all the time."""
    per_packet = (3 * 2 + 4 * 4) / 7
    assert hops_per_s(scenario(matrix)) == pytest.approx(8 * per_packet / (PACKET_NS * 1e-9))


def test_round_robin_begins_at_line_rate(tmp_path: Path) -> None:
    """One receiver is hot: paced, its senders share its port; in round robin all of them send at once."""
    matrix = np.full((4, 4), 2 * MTU)
    matrix[:, 0] = 20 * MTU
    np.fill_diagonal(matrix, 0)
    file = tmp_path / "m.csv"
    np.savetxt(file, matrix, fmt="%d", delimiter=",")
    line_rate = 2 / (PACKET_NS * 1e-9)
    assert hops_per_s(scenario(file, schedule=["rr", "rate"])) == pytest.approx(4 * line_rate)
    assert hops_per_s(scenario(file)) == pytest.approx((3 * 24 + 6) / 60 * line_rate)


@pytest.mark.parametrize(("mtu_bytes", "acks"), [(4096, 1 / 4), (256, 1 / 32), (128, 1 / 32)])
def test_acks_count(matrix: Path, mtu_bytes: int, acks: float) -> None:
    """There is one for every 16,384 B or 32 packets; in an open loop there is none."""
    silent, answered = (
        hops_per_s(scenario(matrix, mtu_bytes=mtu_bytes, loss_recovery=recovery)) for recovery in ("none", "sack")
    )
    assert answered == pytest.approx((1 + acks) * silent)


def test_the_background_counts(matrix: Path) -> None:
    """h1 and h2 share a leaf, h5 lies four links away."""
    background = [
        {"source": "h1", "destination": other, "bytes": 10**6, "rate_gbps": gbps}
        for other, gbps in (("h2", 80), ("h5", 40))
    ]
    more = hops_per_s(scenario(matrix, background=background)) - hops_per_s(scenario(matrix))
    assert more == pytest.approx((0.1 * 2 + 0.05 * 4) / (PACKET_NS * 1e-9))


def test_short_packets_are_more_of_them(matrix: Path) -> None:
    assert hops_per_s(scenario(matrix, mtu_bytes=1024)) == pytest.approx(4 * hops_per_s(scenario(matrix)))


def test_the_busiest_phase_counts(tmp_path: Path, matrix: Path) -> None:
    idle = tmp_path / "idle.csv"
    idle.write_text("\n".join(["0,4096,0,0,0,0,0,0"] + ["0,0,0,0,0,0,0,0"] * 7))
    tables = [
        {"file": str(file), "unit": "wire-bytes", "name": name, **after}
        for name, file, after in (("a", idle, {}), ("b", matrix, {"after": ["a"]}))
    ]
    both = prepare(from_mapping({"demand": tables, "schedule": ["rate"], "loss_recovery": "none"}))
    assert hops_per_s(both) == pytest.approx(hops_per_s(scenario(matrix)))


def within_budget(prepared: Scenario) -> None:
    check_budget(prepared.experiment, prepared.wiring, prepared.demands, prepared.speeds_bps, prepared.dilation)


def test_chosen_dilation_uses_half_the_budget(matrix: Path) -> None:
    prepared = scenario(matrix)
    chosen = dilation(prepared)
    assert chosen % 100 == 0
    used = hops_per_s(prepared) / float(chosen) / HOPS_PER_S["kernel"]
    assert 0.45 < used <= 0.5
    within_budget(scenario(matrix, dilation=float(chosen)))


def test_chosen_dilation_keeps_times_whole(matrix: Path) -> None:
    """It is a multiple of what makes them whole."""
    prepared = scenario(matrix, link_gbps_of={"h3": 300})
    least = choose_dilation([Fraction(300), Fraction(800)])
    chosen = dilation(prepared, least)
    assert chosen > least
    assert (chosen / least).denominator == 1


def test_chosen_dilation_of_a_small_network(tmp_path: Path) -> None:
    """Two hosts use little of the budget; timers want a packet to last 250 us."""
    file = tmp_path / "m.csv"
    file.write_text("0,40960\n0,0\n")
    assert float(dilation(scenario(file))) * PACKET_NS == pytest.approx(250_000, rel=0.05)


def test_nothing_to_send_needs_no_budget(tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("0,0\n0,0\n")
    prepared = scenario(file)
    assert hops_per_s(prepared) == 0
    within_budget(prepared)


def test_budget_exceeded_names_a_dilation_that_will_do(matrix: Path) -> None:
    with pytest.raises(CannotRunError, match="packet-hops a second") as error:
        within_budget(scenario(matrix, dilation=100))
    enough = int(str(error.value).partition("give a dilation of ")[2].split()[0])
    within_budget(scenario(matrix, dilation=enough))
    with pytest.raises(CannotRunError):
        within_budget(scenario(matrix, dilation=int(enough * 0.9)))


def test_longer_than_the_limit(matrix: Path) -> None:
    with pytest.raises(CannotRunError, match="limit_s"):
        within_budget(scenario(matrix, dilation=1_000_000, limit_s=1))


# ---- whether it kept up ----


def test_one_percent_may_be_late() -> None:
    check_kept_up(0, 0, 0, Fraction(100))
    check_kept_up(10, 5_000_000, 1000, Fraction(100))
    with pytest.raises(CannotRunError) as error:
        check_kept_up(11, 5_000_000, 1000, Fraction(2500))
    line = str(error.value)
    for part in ("1.1 %", "5.000 ms", "larger dilation than 2500"):
        assert part in line


# ---- checks ----


class Netlink:
    """An RtNetlink of a kernel that lacks some things."""

    lacking: tuple[str, ...] = ()

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def set_fq(self, _index: int) -> None:
        self._ask("fq")

    def add_clsact(self, _index: int) -> None:
        self._ask("clsact")

    def attach(self, *_: object, **__: object) -> None:
        self._ask("cls_bpf")

    def flush(self) -> None:
        pass

    def add_pair(self, kind: str, *_: object, **__: object) -> None:
        self._ask(kind)

    def _ask(self, what: str) -> None:
        if what in self.lacking:
            raise NetlinkError(errno.ENOENT, what)


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A kernel that has all and lets us do all."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(checks, "unshare", lambda _flags: None)
    monkeypatch.setattr(checks, "RtNetlink", Netlink)
    monkeypatch.setattr(checks, "can_load_tc_programs", lambda: True)
    return monkeypatch


def test_nothing_is_missing(as_root: pytest.MonkeyPatch) -> None:
    del as_root
    assert checks.missing() == []
    checks.require()


@pytest.mark.parametrize(
    ("lacking", "remedy"),
    [
        ("fq", "modprobe sch_fq"),
        ("clsact", "modprobe sch_ingress"),
        ("cls_bpf", "modprobe cls_bpf"),
        ("veth", "modprobe veth"),
    ],
)
def test_a_module_is_missing(as_root: pytest.MonkeyPatch, lacking: str, remedy: str) -> None:
    as_root.setattr(Netlink, "lacking", (lacking,))
    (line,) = checks.missing()
    assert lacking in line
    assert remedy in line
    assert "\n" not in line


def test_all_that_is_missing_is_one_line(as_root: pytest.MonkeyPatch) -> None:
    as_root.setattr(Netlink, "lacking", ("fq", "clsact"))
    as_root.setattr(checks, "can_load_tc_programs", lambda: False)
    assert len(checks.missing()) == 3
    with pytest.raises(CannotRunError, match=r"sch_fq.*; .*clsact.*; .*CAP_BPF"):
        checks.require()


@pytest.mark.parametrize(
    ("release", "new_enough"),
    [("5.15.0-118-generic", False), ("6.0.0", True), ("6.8.0-45-generic", True), ("10.1", True), ("odd", True)],
)
def test_an_old_kernel(as_root: pytest.MonkeyPatch, release: str, new_enough: bool) -> None:
    as_root.setattr(platform, "release", lambda: release)
    lines = checks.missing()
    assert (lines == []) == new_enough
    assert all("Linux 6.0" in line for line in lines)


def test_no_network_namespace(as_root: pytest.MonkeyPatch) -> None:
    def refuse(_flags: int) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    as_root.setattr(checks, "unshare", refuse)
    (line,) = checks.missing()
    assert "Operation not permitted" in line
    assert "stage virtual" in line


def test_probing_leaves_our_namespaces_alone() -> None:
    """As whoever runs the tests: whatever is found, this thread stays where it is."""
    before = os.readlink("/proc/thread-self/ns/net")
    checks.missing()
    assert os.readlink("/proc/thread-self/ns/net") == before


@pytest.mark.filterwarnings("error")
def test_not_root_is_one_line(
    matrix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is written."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    words = ["compare", "--stage", "host", "--dilation", "100000", "--unit", "wire-bytes"]
    code = main([*words, "--demand", str(matrix), "--out", str(tmp_path / "out")])
    assert code == 1
    line = "incastfree: stage host needs root: run it with sudo, or use stage virtual\n"
    assert capsys.readouterr().err == line
    assert not (tmp_path / "out").exists()


def test_over_budget_is_one_line(
    matrix: Path, tmp_path: Path, as_root: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del as_root
    words = ["compare", "--stage", "host", "--dilation", "100", "--unit", "wire-bytes"]
    assert main([*words, "--demand", str(matrix), "--out", str(tmp_path / "out")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "give a dilation of" in line
    assert not (tmp_path / "out").exists()


def test_the_shell_is_in_virtual_time(tmp_path: Path, matrix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "e.toml"
    file.write_text(f'stage = "host"\n[[demand]]\nfile = "{matrix}"\nunit = "wire-bytes"\n')
    assert main(["shell", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "stage is host" in line


def test_runs_follow_each_other(matrix: Path, tmp_path: Path, as_root: pytest.MonkeyPatch) -> None:
    """In real time one would make the other late."""
    running, most = threading.Lock(), []

    def run_schedule(_scenario: Scenario, schedule: str, _cpu: int, *_: object, **_more: object) -> RunData:
        most.append(running.acquire(blocking=False))
        time.sleep(0.05)
        running.release()
        return RunData({"run": schedule}, {}, {}, {}, None)

    as_root.setattr(runner, "run_schedule", run_schedule)
    as_root.setattr(runner, "_keep", lambda *_: None)
    as_root.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    prepared = scenario(matrix, schedule=["rr", "rr+nscc", "rate"], loss_recovery="sack", dilation=1_000_000)
    runner.run_experiment(prepared, tmp_path / "out", lambda *_: None)
    assert most == [True, True, True]


# ---- what a machine says ----


def test_what_ends_a_run(tmp_path: Path, as_root: pytest.MonkeyPatch) -> None:
    del as_root
    host = machine.HostMachine(tmp_path, memory_mib=1, cpu=0)
    for status in (-9, 137):
        assert "signal 9" in host._crash(status)
    host._log = ["something odd", ""]
    assert host._crash(1) == "the run ended early (status 1): something odd"


# ---- carriers ----


def interface(folder: Path, name: str, *, state: str, flags: int = 0x1083) -> Path:
    path = folder / name
    path.mkdir()
    (path / "flags").write_text(f"{flags:#x}\n")
    (path / "operstate").write_text(f"{state}\n")
    return path


def test_carriers_that_are_up(tmp_path: Path) -> None:
    """Neither lo nor what nobody set up is waited for."""
    interface(tmp_path, "lo", state="unknown")
    interface(tmp_path, "down", state="down", flags=0x1082)
    interface(tmp_path, "a", state="up")
    wait_for_carriers(tmp_path)


def test_a_carrier_that_comes_late(tmp_path: Path) -> None:
    late = interface(tmp_path, "a", state="lowerlayerdown")
    timer = threading.Timer(0.3, (late / "operstate").write_text, ["up\n"])
    begin = time.monotonic()
    timer.start()
    wait_for_carriers(tmp_path)
    assert time.monotonic() - begin >= 0.3


def test_a_carrier_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carriers, "_LEAST_LIMIT_S", 0.1)
    interface(tmp_path, "leaf1-eth1", state="down")
    with pytest.raises(CannotRunError, match="leaf1-eth1"):
        wait_for_carriers(tmp_path)


# ---- strays ----


@pytest.fixture
def guest_alike(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like the guest of a run on tmp_path."""
    words = [sys.executable, "-c", "import time; time.sleep(60)", "-m", machine.GUEST_MODULE, "collective"]
    process = subprocess.Popen([*words, str(tmp_path)])
    while machine.GUEST_MODULE.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
        time.sleep(0.01)  # until it is what it is to be
    yield process
    process.kill()
    process.wait()


def test_a_stray_is_ended(guest_alike: subprocess.Popen[bytes]) -> None:
    """Its folder has no lock, or one that nobody holds."""
    assert end_strays() == 1
    assert guest_alike.wait(5) == -9
    assert end_strays() == 0


def test_a_living_command_keeps_its_processes(guest_alike: subprocess.Popen[bytes], tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert end_strays() == 0
    assert guest_alike.poll() is None
    assert end_strays() == 1


def test_what_only_mentions_us_is_left_alone(tmp_path: Path) -> None:
    """Such as an editor, or a search."""
    sleeper = "import time; time.sleep(60)"
    words = [sys.executable, "-c", sleeper, "-m", machine.GUEST_MODULE, "collective", str(tmp_path), "more"]
    with subprocess.Popen(words) as other:
        time.sleep(0.2)
        assert end_strays() == 0
        assert other.poll() is None
        other.kill()
