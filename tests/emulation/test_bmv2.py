"""The fabric whose switches are processes of BMv2, in virtual time, beside the kernel's."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.errors import CannotRunError
from testbed.experiment import from_mapping
from testbed.fabric.bmv2 import installation
from testbed.fabric.bmv2.rates import bmv2_dilation
from testbed.measure.results import RunData
from testbed.runner import run_experiment
from testbed.scenario import prepare
from testbed.workload.zipf import zipf
from tests.conftest import REPOSITORY
from tests.emulation.conftest import OPEN_LOOP, assert_all_arrived, run_each, run_once, scenario_of, write_matrix

FOUND = installation.find()
pytestmark = pytest.mark.skipif(FOUND is None, reason=installation.NEEDED)

MTU = 4096
PACKET_NS = 40.96
DILATION = bmv2_dilation(Fraction(800), MTU)


@pytest.fixture(scope="module")
def demand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 hosts on two leaves, Zipf s=1, 400 packets a sender with its own share."""
    return write_matrix(tmp_path_factory.mktemp("bmv2") / "zipf.csv", zipf(8, 1, 400 * MTU, MTU, 13))


@pytest.fixture(scope="module")
def runs(demand: Path) -> dict[tuple[str, str], RunData]:
    """By fabric and schedule."""
    wanted = [(fabric, run) for fabric in ("kernel", "bmv2") for run in ("rr", "rate", "rr+nscc")]
    done = run_each((scenario_of(demand, fabric=fabric, dilation=float(DILATION)), run) for fabric, run in wanted)
    return dict(zip(wanted, done, strict=True))


@pytest.mark.parametrize("run", ["rr", "rate", "rr+nscc"])
def test_every_byte_arrives(runs: dict[tuple[str, str], RunData], demand: Path, run: str) -> None:
    data = runs["bmv2", run]
    assert_all_arrived(data, scenario_of(demand, fabric="bmv2"))
    assert data.figures["drops"] == data.figures["lost"] == 0
    assert data.figures["links"] == "veth"
    assert data.figures["bmv2_version"]


def test_paced_both_fabrics_agree(runs: dict[tuple[str, str], RunData]) -> None:
    kernel, bmv2 = runs["kernel", "rate"].figures, runs["bmv2", "rate"].figures
    assert bmv2["cct_ns"] == pytest.approx(kernel["cct_ns"], rel=1e-3)
    assert abs(bmv2["hot_queue_max_bytes"] - kernel["hot_queue_max_bytes"]) <= 5 * MTU
    assert bmv2["marks"] == bmv2["trims"] == bmv2["retransmissions"] == 0


def test_background_and_fallback(demand: Path) -> None:
    """30 % more into the hot host than R knows of: the same loads and the same way out in both fabrics."""
    hot = int(np.loadtxt(demand, delimiter=",").sum(axis=0).argmax())
    background = [
        {"source": f"h{(hot + 4) % 8 + 1}", "destination": f"h{hot + 1}", "bytes": 2000 * MTU, "rate_gbps": 240}
    ]
    keys: dict[str, Any] = {"dilation": float(DILATION), "background": background, "queue_bytes": 100 * MTU}
    wanted = [
        (scenario_of(demand, fabric=fabric, **keys), run)
        for fabric in ("kernel", "bmv2")
        for run in ("rate", "rate+fallback")
    ]
    kernel, kernel_fallback, bmv2, bmv2_fallback = (data.figures for data in run_each(wanted))
    for one, other in ((kernel, bmv2), (kernel_fallback, bmv2_fallback)):
        assert other["delivered_bytes"] == other["expected_bytes"]
        for name in ("cct_ns", "background_sent_packets", "background_delivered_packets"):
            assert other[name] == pytest.approx(one[name], rel=0.05), name
    assert bmv2["trims"] == pytest.approx(kernel["trims"], rel=0.15)
    assert bmv2["background_trimmed_packets"] > 0
    assert bmv2_fallback["trims"] < bmv2["trims"] / 4


def test_round_robin_fills_the_same_queue(runs: dict[tuple[str, str], RunData]) -> None:
    kernel, bmv2 = runs["kernel", "rr"].figures, runs["bmv2", "rr"].figures
    for name in ("hot_queue_max_bytes", "cct_ns"):
        assert bmv2[name] == pytest.approx(kernel[name], rel=0.05), name
    for name in ("marks", "trims"):
        assert bmv2[name] == pytest.approx(kernel[name], rel=0.15), name
    assert bmv2["hot_host"] == kernel["hot_host"]


def test_it_can_be_repeated(runs: dict[tuple[str, str], RunData], demand: Path) -> None:
    again = run_once(scenario_of(demand, fabric="bmv2"), "rate").figures
    assert again["cct_ns"] == pytest.approx(runs["bmv2", "rate"].figures["cct_ns"], abs=PACKET_NS)


def test_a_fat_tree_of_bmv2(demand: Path) -> None:
    """Four switches on three tiers each: paced, both fabrics agree."""
    keys = {"topology": "fat-tree", "dilation": float(DILATION)}
    scenarios = [scenario_of(demand, fabric=fabric, **keys) for fabric in ("kernel", "bmv2")]
    kernel, bmv2 = run_each((scenario, "rate") for scenario in scenarios)
    assert len(scenarios[1].wiring.switches) == 12
    assert_all_arrived(bmv2, scenarios[1])
    assert bmv2.figures["cct_ns"] == pytest.approx(kernel.figures["cct_ns"], rel=1e-3)


def test_without_trimming_drops_are_counted(demand: Path) -> None:
    """And made good by the transport."""
    scenario = scenario_of(demand, fabric="bmv2", trimming=False, queue_bytes=20 * MTU)
    data = run_once(scenario, "rr")
    assert_all_arrived(data, scenario)
    assert data.figures["drops"] > 0
    assert data.figures["trims"] == 0
    # Of a limit of n packets the one that is about to be served may be counted twice.
    assert data.figures["hot_queue_max_bytes"] <= 21 * MTU


# BMv2 looks when it begins to serve a packet and not when it has, and so sees one packet less behind: the span must be some
# packets, or that alone is five points.
THRESHOLDS = [(20, 60), (5, 100), (25, 55), (36, 80)]


def overloaded(folder: Path, kmin: int, kmax: int, fabric: str) -> Any:
    """Two senders of 480 Gb/s to one port of 800, which holds 40 packets: from 200 packets on it is full."""
    matrix = np.zeros((3, 3), dtype=int)
    matrix[:2, 2] = 1500 * MTU
    return scenario_of(
        write_matrix(folder / "overload.csv", matrix),
        **{**OPEN_LOOP, "queue_bytes": 40 * MTU},
        link_gbps_of={"h1": 480, "h2": 480},
        ecn_kmin_bytes=kmin * MTU,
        ecn_kmax_bytes=kmax * MTU,
        fabric=fabric,
        dilation=float(DILATION),
        start_jitter_ns=PACKET_NS,
    )


def test_marks_at_a_steady_overload(tmp_path: Path) -> None:
    """The share of marked packets is linear between the thresholds, on both fabrics."""
    fabrics = ("kernel", "bmv2")
    done = run_each((overloaded(tmp_path, *each, fabric), "rr") for each in THRESHOLDS for fabric in fabrics)
    for (kmin, kmax), (kernel, bmv2) in zip(THRESHOLDS, zip(done[::2], done[1::2], strict=True), strict=True):
        shares = [data.figures["marks"] / (data.figures["packets"] - data.figures["trims"]) for data in (kernel, bmv2)]
        assert shares[1] == pytest.approx(shares[0], abs=0.05), (kmin, kmax)
        # While the queue fills, fewer are marked.
        assert shares[0] == pytest.approx((39 - kmin) / (kmax - kmin), abs=0.09), (kmin, kmax)


def test_phases_and_unequal_links(tmp_path: Path) -> None:
    """Two phases with drops, and a link of half the speed: every byte, and the kernel's times."""
    files = [write_matrix(tmp_path / f"{seed}.csv", zipf(6, 1, 100 * MTU, MTU, seed)) for seed in (1, 2)]
    phases = [{"file": str(file), "unit": "wire-bytes", "name": str(n)} for n, file in enumerate(files)]
    phases[1]["after"] = ["0"]  # type: ignore[assignment]
    common = {"demand": phases, "hosts_per_leaf": 3, "link_gbps_of": {"h3": 400}, "dilation": float(DILATION)}
    for keys, run in (({}, "rate"), ({"trimming": False, "queue_bytes": 10 * MTU}, "rr")):
        kernel, bmv2 = (prepare(from_mapping({**common, **keys, "fabric": fabric})) for fabric in ("kernel", "bmv2"))
        ours, theirs = run_each([(kernel, run), (bmv2, run)])
        assert_all_arrived(theirs, bmv2)
        assert theirs.figures["phase_cct_ns"] == pytest.approx(
            ours.figures["phase_cct_ns"], rel=0.002 if run == "rate" else 0.3
        )
        assert (theirs.figures["drops"] > 0) == (run == "rr")


def wrapped(folder: Path, monkeypatch: pytest.MonkeyPatch, device: int, meanwhile: str) -> None:
    """A BMv2 beside one of whose switches a shell command runs; $$ is the switch."""
    assert FOUND is not None
    (folder / "lib").symlink_to(FOUND.prefix / "lib")
    program = folder / "bin" / "switch"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *"--device-id {device} "*) ({meanwhile}) & ;; esac\nexec {FOUND.program} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("INCASTFREE_BMV2", str(program))


@pytest.fixture
def short_lived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One switch dies soon after it was started."""
    wrapped(tmp_path, monkeypatch, 3, "sleep 2; kill -9 $$")


@pytest.fixture
def halting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One switch stands still for 20 packet times again and again, as on a machine that is too slow."""
    wrapped(tmp_path, monkeypatch, 1, "while sleep 0.05; do kill -STOP $$; sleep 0.02; kill -CONT $$; done")


@pytest.mark.usefixtures("halting")
def test_a_switch_that_does_not_keep_up_is_seen(demand: Path) -> None:
    with pytest.raises(
        CannotRunError, match=r"^\d+ times BMv2 or a link was late .* once by \d\d\.\d+ ms: give a larger"
    ):
        run_once(scenario_of(demand, fabric="bmv2"), "rate")


@pytest.mark.usefixtures("short_lived")
def test_a_switch_that_dies_is_named_and_its_log_is_kept(demand: Path, tmp_path: Path) -> None:
    scenario = scenario_of(demand, fabric="bmv2", schedule="rate", limit_s=60)
    with pytest.raises(CannotRunError, match=r"^spine1: BMv2 ended by SIGKILL: ") as caught:
        run_experiment(scenario, tmp_path / "out", lambda *_: None)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "out" / "rate" / "spine1.log").exists()


def test_shell(tmp_path: Path) -> None:
    """Real programs through BMv2: h1 pings h7 across the spines, and fetches from it over TCP."""
    write_matrix(tmp_path / "demand.csv", np.ones((8, 8), dtype=int))
    (tmp_path / "net.toml").write_text('fabric = "bmv2"\n[[demand]]\nfile = "demand.csv"\n')
    fetch = "import urllib.request as u; print('fetched', len(u.urlopen('http://10.0.0.7:8000/LICENSE').read()))"
    done = subprocess.run(
        [str(Path(sys.executable).with_name("incastfree")), "shell", str(tmp_path / "net.toml")],
        input=f"h1 ping -c 2 h7\nh7 {sys.executable} -m http.server 8000 -d {REPOSITORY} > /dev/null 2>&1 &\n"
        f'h1 sleep 5\nh1 {sys.executable} -c "{fetch}"\nexit\n',
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=dict(os.environ),
    )
    assert "2 received, 0% packet loss" in done.stdout, done.stdout + done.stderr
    assert f"fetched {(REPOSITORY / 'LICENSE').stat().st_size}" in done.stdout, done.stdout + done.stderr


TCP = """
import socket, sys, time
if sys.argv[1] == "receive":
    peer, _ = socket.create_server(("0.0.0.0", 5000)).accept()
    while peer.recv(1 << 20):
        pass
else:
    began = time.monotonic()
    peer = socket.create_connection(("10.0.0.7", 5000))
    peer.sendall(bytes(500_000))
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)
    print("took", time.monotonic() - began)
"""


def test_tcp_takes_the_same_time_on_both_fabrics() -> None:
    """Nothing but the network holds a program's packets back, and both are the same network."""
    folder = REPOSITORY / "build" / "tcp"  # not below /tmp, which the virtual machine hides
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tcp.py").write_text(TCP)
    write_matrix(folder / "demand.csv", np.ones((8, 8), dtype=int))
    took = {}
    for fabric in ("kernel", "bmv2"):
        net = folder / f"{fabric}.toml"
        net.write_text(f'fabric = "{fabric}"\ndilation = {float(DILATION)}\n[[demand]]\nfile = "demand.csv"\n')
        run = f"{sys.executable} {folder}/tcp.py"
        done = subprocess.run(
            [str(Path(sys.executable).with_name("incastfree")), "shell", str(net)],
            input=f"h7 {run} receive &\nh1 sleep 5\nh1 {run} send\nexit\n",
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert "took " in done.stdout, done.stdout + done.stderr
        took[fabric] = float(done.stdout.partition("took ")[2].split()[0])
    assert took["bmv2"] == pytest.approx(took["kernel"], rel=0.01)
