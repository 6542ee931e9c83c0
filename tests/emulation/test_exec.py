"""incastfree exec: real programs on real sockets, in virtual time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import REPOSITORY
from tests.emulation.conftest import write_matrix
from tests.emulation.test_machine import home, machines, wait_for  # noqa: F401 (a fixture)

COMMAND = [sys.executable, "-c", "import sys; from controller.cli.main import main; sys.exit(main())"]
NS_A_BYTE = 100
"""Of kernel time, at 800 Gb/s and the dilation that exec chooses, 10,000."""
PACKET = 4096
HEADERS = 42
"""Ethernet, IPv4 and UDP."""
DEBIAN_PYTHON = "/usr/bin/python3"


def execute(
    folder: Path, *words: str, keys: str = "hosts = 4\nhosts_per_leaf = 2\n", out: str = "out", **given: Any
) -> subprocess.CompletedProcess[str]:
    """``words``: options, "--", and a command, which runs in ``folder``."""
    (folder / "net.toml").write_text(keys)
    return subprocess.run(
        [*COMMAND, "exec", "net.toml", "--out", out, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **given.pop("env", {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        **given,
    )


def result(folder: Path, out: str = "out") -> dict[str, Any]:
    """The figures of the only run."""
    (run,) = json.loads((folder / out / "result.json").read_text())["runs"]
    found: dict[str, Any] = run
    return found


def test_every_rank_is_a_host(tmp_path: Path) -> None:
    """Names, addresses, and what torchrun would set; output in files and with the rank before each line."""
    done = execute(
        tmp_path,
        "--",
        "sh",
        "-c",
        "hostname; echo $RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR; getent hosts h3; ls /sys/class/net; echo end >&2; pwd",
    )
    assert done.returncode == 0, done.stderr
    for rank in range(4):
        lines = (tmp_path / "out" / "rr" / f"rank-{rank}.out").read_text().splitlines()
        assert lines[:2] == [f"h{rank + 1}", f"{rank} 4 0 10.0.0.1"]
        assert lines[2].split() == ["10.0.0.3", "h3"]
        assert set(lines[3:-1]) == {"lo", f"h{rank + 1}-eth0"}
        assert lines[-1] == str(tmp_path)
        assert (tmp_path / "out" / "rr" / f"rank-{rank}.err").read_text() == "end\n"
        assert f"[rank{rank}]: h{rank + 1}\n" in done.stdout
        assert f"[rank{rank}]: end\n" in done.stderr
    run = result(tmp_path)
    assert run["exit_codes"] == [0] * 4
    assert run["delivered_bytes"] == run["packets"] == run["late_packets"] == 0
    assert run["command"][0] == "sh"
    assert run["kernel_key"]


ALL_TO_ALL = """
import os, socket, sys, threading, time
rank, world, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[1])
addresses = os.environ["INCASTFREE_ADDRESSES"].split(",")
server = socket.create_server((addresses[rank], 7000), backlog=world)
peers = {}
for other in range(rank + 1, world):
    while other not in peers:
        try:
            peers[other] = socket.create_connection((addresses[other], 7000))
            peers[other].sendall(bytes([rank]))
        except ConnectionRefusedError:
            time.sleep(0.01)
while len(peers) < world - 1:
    taken, _ = server.accept()
    peers[taken.recv(1)[0]] = taken
def receive(other):
    left = size
    while left:
        left -= len(peers[other].recv(min(left, 1 << 16)))
for step in range(2):
    begin = time.monotonic_ns()
    threads = [threading.Thread(target=peers[other].sendall, args=(bytes(size),)) for other in peers]
    threads += [threading.Thread(target=receive, args=(other,)) for other in peers]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    with open(os.environ["INCASTFREE_SPANS"], "a") as spans:
        print("all-to-all", begin, time.monotonic_ns(), *[size] * world, file=spans)
"""


def test_two_runs_are_the_same(tmp_path: Path) -> None:
    """Every byte over TCP through the fabric; all figures but the wall time, and every flow's times, agree."""
    (tmp_path / "all.py").write_text(ALL_TO_ALL)
    for out in ("a", "b"):
        done = execute(tmp_path, "--", sys.executable, "all.py", "200000", out=out)
        assert done.returncode == 0, done.stderr
    a, b = (result(tmp_path, out) for out in ("a", "b"))
    assert a.pop("wall_s") > 0
    assert b.pop("wall_s") > 0
    assert a == b
    assert (tmp_path / "a/rr/flows.parquet").read_bytes() == (tmp_path / "b/rr/flows.parquet").read_bytes()
    assert a["late_packets"] == 0
    # Two steps of 12 flows, each of 50 packets of which 66 B are headers, and the ACKs.
    least = 2 * 12 * (200_000 + 50 * 66)
    assert least < a["delivered_bytes"] < 1.05 * least
    for each in a["collectives"]:
        assert each["name"] == "all-to-all"
        assert each["lower_bound_ns"] == 3 * (200_000 + 50 * 64) / 100
        assert each["cct_ns"] > each["lower_bound_ns"]


SENDER = """
import os, socket, sys, time
rank, count, size = int(os.environ["RANK"]), int(sys.argv[1]), int(sys.argv[2])
addresses = os.environ["INCASTFREE_ADDRESSES"].split(",")
one, two = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
one.bind((addresses[rank], 7000))
time.sleep(1)
def send():
    # A socket each: one would be full of the slower flow's packets.
    for packet in range(count):
        for other, way in ((1, one), (2, two)):
            way.sendto(bytes(size), (addresses[other], 7000))
if rank == 0 and len(sys.argv) > 3:
    import numpy
    from controller.hook import Pacer
    pacer = Pacer.from_environment()
    with pacer.dispatch(numpy.array([[0, 1, 3, 0]] + [[0] * 4] * 3), 4032):
        send()
        time.sleep(1)
    assert not any(pacer.nic.read_rates()[1])
elif rank == 0:
    send()
elif rank < 3:
    times = []
    for packet in range(count):
        one.recv(1 << 16)
        times.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
    print(*times)
"""


@pytest.mark.parametrize("how", ["schedule", "hook"])
def test_rates_pace_every_destination(tmp_path: Path, how: str) -> None:
    """Rank 0 sends to rank 1 at a quarter of its line rate and to rank 2 at three: neither waits for the other.

    The rates are those of a demand, or written by the program itself through the hook.
    """
    (tmp_path / "send.py").write_text(SENDER)
    words = ["20", str(PACKET - HEADERS)]
    if how == "hook":
        done = execute(tmp_path, "--", sys.executable, "send.py", *words, "hook")
    else:
        demand = np.zeros((4, 4), dtype=int)
        demand[0, 1], demand[0, 2] = 100 * PACKET, 300 * PACKET
        write_matrix(tmp_path / "demand.csv", demand)
        keys = 'hosts_per_leaf = 2\n[[demand]]\nfile = "demand.csv"\nunit = "wire-bytes"\n'
        done = execute(tmp_path, "--schedule", "rate", "--", sys.executable, "send.py", *words, keys=keys)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "out" / ("rate" if how == "schedule" else "rr")
    for rank, share in ((1, 1 / 4), (2, 3 / 4)):
        times = np.array((folder / f"rank-{rank}.out").read_text().split(), dtype=np.int64)
        gap_ns = PACKET * NS_A_BYTE / share
        # At the port a packet waits for one of the other flow at most.
        assert np.abs(np.diff(times) - gap_ns).max() <= PACKET * NS_A_BYTE + 10
        assert times[-1] - times[0] == pytest.approx(19 * gap_ns, abs=PACKET * NS_A_BYTE + 10)


def test_the_port_alone(tmp_path: Path) -> None:
    """Unpaced, the two flows share the line rate packet by packet, to the nanosecond of a reading of the clock."""
    (tmp_path / "send.py").write_text(SENDER)
    done = execute(tmp_path, "--", sys.executable, "send.py", "20", str(PACKET - HEADERS))
    assert done.returncode == 0, done.stderr
    for rank in (1, 2):
        times = np.array((tmp_path / "out" / "rr" / f"rank-{rank}.out").read_text().split(), dtype=np.int64)
        assert np.abs(np.diff(times) - 2 * PACKET * NS_A_BYTE).max() <= 10


def test_the_hook_on_an_interface(guest: Callable[[str], list[str]]) -> None:
    """On a host of its own the hook loads the eBPF pacer, with the peers' addresses, and writes rates."""
    lines = guest(
        """
import subprocess
from pathlib import Path
import numpy
from controller.hook import Pacer
from controller.nic.ebpf import unload
from testbed.stage.console import say
subprocess.run("ip link add eth1 type veth peer name far && ip link set eth1 up && ip link set far up", shell=True, check=True)
Path("/tmp/peers.toml").write_text("".join(f'{rank} = "10.0.0.{rank + 1}"\\n' for rank in range(3)))
environment = {"RANK": "1", "WORLD_SIZE": "3", "INCASTFREE_DEV": "eth1", "INCASTFREE_PEERS": "/tmp/peers.toml",
               "INCASTFREE_LINK_GBPS": "100"}
with Pacer.from_environment(environment).nic as nic:
    pacer = Pacer(nic, 1, 3)
    with pacer.dispatch(numpy.array([[0, 0, 0], [100, 0, 300], [0, 0, 0]]), 4032):
        steps = numpy.frombuffer(nic.read_rates()[1], dtype=numpy.uint32)
        say("line", " ".join(f"{share:.6f}" for share in steps[:4] / 2**32))
    say("line", str(any(nic.read_rates()[1])))
    say("line", " ".join(f"{rank}:{address}" for rank, address in sorted(nic.read_peers().items())))
unload("eth1")
"""
    )
    assert lines == ["0.250000 0.000000 0.750000 0.000000", "False", "0:10.0.0.1 2:10.0.0.3"]


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The only line that is not a rank's."""
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if not line.startswith("[rank")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_rank_that_dies(tmp_path: Path, home: dict[str, str]) -> None:  # noqa: F811
    """Ends the run at once: which one, how, and the last that it said; the others' output is kept."""
    done = execute(
        tmp_path, "--", "sh", "-c", "echo $RANK; [ $RANK != 2 ] || { echo no more >&2; exit 3; }; sleep 900", env=home
    )
    line = one_line(done)
    assert line.startswith("incastfree: rank 2 (sh -c ")
    assert "ended with exit code 3: no more" in line
    assert (tmp_path / "out/rr/rank-3.out").read_text() == "3\n"
    assert not (tmp_path / "out/result.json").exists()
    assert not machines(home["TMPDIR"])
    assert not list(Path(home["TMPDIR"]).iterdir())
    line = one_line(execute(tmp_path, "--", "sh", "-c", "kill -9 $$"))
    assert "rank 0" in line
    assert "signal 9 (SIGKILL)" in line
    (tmp_path / "script").write_text("#!/no/such/interpreter\n")
    (tmp_path / "script").chmod(0o755)
    line = one_line(execute(tmp_path, "--", "./script"))
    assert "./script cannot be started: No such file or directory" in line


def test_a_rank_that_hangs(tmp_path: Path) -> None:
    """The limit of virtual time ends it: which one, and what it waits in."""
    begin = time.monotonic()
    done = execute(
        tmp_path, "--limit-virtual-s", "30", "--", "sh", "-c", "[ $RANK != 1 ] || { echo waiting; sleep 900; }; true"
    )
    line = one_line(done)
    assert "rank 1 (" in line
    assert "had not ended after 30 s of its clock" in line
    assert "sleep 900" in line
    assert line.endswith("the last line was: waiting; what the ranks printed is in out/rr")
    assert time.monotonic() - begin < 900


def test_a_rank_that_spins(tmp_path: Path) -> None:
    """It stops virtual time; the limit of wall time ends it, and says who was running."""
    done = execute(
        tmp_path, "--limit-s", "20", "--", "sh", "-c", "[ $RANK != 1 ] || { echo on; while :; do :; done; }; sleep 1"
    )
    line = one_line(done)
    assert "the limit of 20 s of wall time was reached; rank 1 was running (sh -c [ $RANK != 1 ]" in line
    assert "[rank1]: on\n" in done.stdout


POLLER = """
import os, socket, time
rank = int(os.environ["RANK"])
address = (os.environ["MASTER_ADDR"], 7000)
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if rank == 0:
    one.bind(address)
    one.setblocking(False)
    while True:
        try:
            one.recv(10)
            break
        except BlockingIOError:
            time.monotonic_ns()
elif rank == 1:
    time.sleep(0.2)
    one.sendto(b"x", address)
"""


STORE = """
import os, select, socket, threading, time
rank = int(os.environ["RANK"])
address = (os.environ["MASTER_ADDR"], 7000)
if rank == 0:
    server = socket.create_server(address)
    taken, _ = server.accept()
    taken.close()
elif rank == 1:
    time.sleep(1)
    one = socket.create_connection(address)
    ready = select.poll()
    ready.register(one, select.POLLIN)
    def watch():
        while True:
            ready.poll()
            one.recv(1, socket.MSG_PEEK)
    threading.Thread(target=watch, daemon=True).start()
    time.sleep(2)
"""


@pytest.mark.parametrize("source", [POLLER, STORE])
def test_a_program_that_polls(tmp_path: Path, source: str) -> None:
    """One that asks for the time until something has come does not stop the clock, nor one that waits for what it does not
    take, as PyTorch's store does when rank 0 has ended first.
    """
    (tmp_path / "poll.py").write_text(source)
    done = execute(tmp_path, "--limit-s", "300", "--", sys.executable, "poll.py")
    assert done.returncode == 0, done.stderr


def test_interrupt(tmp_path: Path, home: dict[str, str]) -> None:  # noqa: F811
    """Ctrl-C ends it within two seconds, with 130, and leaves nothing."""
    (tmp_path / "net.toml").write_text("hosts = 2\n")
    seconds: list[float] = []
    while len(seconds) < 3 and min(seconds, default=9.0) > 2:  # a busy host may take its time, not every time
        process = subprocess.Popen(
            [*COMMAND, "exec", "net.toml", "--out", "out", "--", "sh", "-c", "echo here; while :; do :; done"],
            cwd=tmp_path,
            env={**home, "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert "here" in process.stdout.readline()
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        seconds.append(time.monotonic() - begin)
        assert process.returncode == 130
        assert stderr.strip().splitlines()[-1].startswith("incastfree: interrupted")
        assert wait_for(lambda: not machines(home["TMPDIR"]), 10)
        assert not list(Path(home["TMPDIR"]).iterdir())
    assert min(seconds) < 2


@pytest.mark.parametrize(
    ("signals", "code"),
    [([signal.SIGINT] * 5, 130), ([signal.SIGTERM, signal.SIGINT, signal.SIGTERM], 143), ([signal.SIGINT] * 40, 130)],
)
def test_impatient_interrupts(
    tmp_path: Path,
    home: dict[str, str],  # noqa: F811
    signals: list[signal.Signals],
    code: int,
) -> None:
    """More than one, to all of the process group, while the first is being dealt with: as if it were the only one."""
    (tmp_path / "net.toml").write_text("hosts = 4\n")
    # Even where the tests run in the background of a shell, which has its jobs ignore SIGINT.
    listening = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {COMMAND[2]}"
    process = subprocess.Popen(
        [*COMMAND[:2], listening, "exec", "net.toml", "--out", "out", "--", "sh", "-c", "echo here; sleep 900"],
        cwd=tmp_path,
        env={**home, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert "here" in process.stdout.readline()
    for number in signals:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        time.sleep(0.03)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code
    assert stderr.splitlines() == ["incastfree: interrupted; what had finished is kept"]
    assert wait_for(lambda: not machines(home["TMPDIR"]), 10)
    assert not list(Path(home["TMPDIR"]).iterdir())


def test_bad_input(tmp_path: Path) -> None:
    """One line, exit code 2, before anything is booted."""
    for keys, words in (
        ("hosts = 1\n", []),
        ("hosts = 4\n", ["--schedule", "rate"]),
        ("hosts = 4\n", ["--sysctl", "x"]),
    ):
        done = execute(tmp_path, *words, "--", "true", keys=keys)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
    for command in ("", "./nothing", "nobodys-command"):
        done = execute(tmp_path, "--", command)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("sysctl", "why"),
    [
        ("net.ipv4.tcp_congestion_control=nobodys", "No such file or directory"),
        ("net.foo.bar=1", "No such file or directory"),
        ("net.ipv4.tcp_ecn=much", "Invalid argument"),
    ],
)
def test_unknown_sysctl(tmp_path: Path, sysctl: str, why: str) -> None:
    """The one that was refused, and no other."""
    line = one_line(execute(tmp_path, "--sysctl", "net.ipv4.tcp_sack=1", "--sysctl", sysctl, "--", "true"))
    assert f"--sysctl {sysctl} was refused by the virtual-time kernel: {why};" in line
    assert "tcp_sack" not in line
    assert "idle" not in line


def test_many_lines(tmp_path: Path) -> None:
    """More than are passed on at once: all come, in order, and a long one in pieces."""
    command = "seq 30000; head -c 9000 /dev/zero | tr '\\0' x; echo; printf end"
    done = execute(tmp_path, "--", "sh", "-c", f"[ $RANK = 1 ] || {{ {command}; }}", keys="hosts = 2\n")
    assert done.returncode == 0, done.stderr
    shown = [line[9:] for line in done.stdout.splitlines() if line.startswith("[rank0]: ")]
    assert shown[:30000] == [str(number) for number in range(1, 30001)]
    assert "".join(shown[30000:-1]) == 9000 * "x"
    assert shown[-1] == "end"
    written = (tmp_path / "out/rr/rank-0.out").read_text()
    assert written == "".join(f"{number}\n" for number in range(1, 30001)) + 9000 * "x" + "\nend"


def test_temporary_files(tmp_path: Path, home: dict[str, str]) -> None:  # noqa: F811
    """In /tmp, wherever the caller has his."""
    done = execute(tmp_path, "--", "sh", "-c", "echo $TMPDIR; mktemp", env=home)
    assert done.returncode == 0, done.stderr
    folder, file = (tmp_path / "out/rr/rank-0.out").read_text().splitlines()
    assert folder == "/tmp"
    assert file.startswith("/tmp/tmp.")


def test_losses_are_said(tmp_path: Path) -> None:
    """Apart from what full queues dropped."""
    done = execute(
        tmp_path,
        "--",
        "sh",
        "-c",
        "[ $RANK = 0 ] || exec ping -c 20 -i 0.01 h1 || true",
        keys="hosts = 2\nloss_data = 0.3\n",
    )
    assert done.returncode == 0, done.stderr
    lost = result(tmp_path)["lost"]
    assert lost > 0
    assert f" 0 dropped at full queues, {lost} lost on links, " in done.stdout


IPERF = """
if [ $RANK = 0 ]; then
    for port in 1 2 3 4 5 6 7 8; do iperf3 -s -1 -p 520$port > /dev/null & done
    wait
else
    sleep 1
    exec iperf3 -c $MASTER_ADDR -p 520$RANK -n 400K -J
fi
"""


def test_iperf3(tmp_path: Path) -> None:
    """Eight clients to one server, twice: every packet's fate, every flow's times and every client's figures are the same."""
    if shutil.which("iperf3") is None:
        pytest.skip("iperf3 is missing: make torch, or apt-get install iperf3")
    (tmp_path / "iperf.sh").write_text(IPERF)
    for out in ("a", "b"):
        done = execute(tmp_path, "--", "sh", "iperf.sh", keys="hosts = 9\n", out=out)
        assert done.returncode == 0, done.stderr
    a, b = (result(tmp_path, out) for out in ("a", "b"))
    for name in ("delivered_bytes", "packets", "hot_queue_max_bytes", "drops"):
        assert a[name] == b[name], name
    assert (tmp_path / "a/rr/flows.parquet").read_bytes() == (tmp_path / "b/rr/flows.parquet").read_bytes()
    # Of 28 runs one had a rank that read the clock some ten times more before it ended (docs/exec.md).
    assert a["rank_end_ns"] == pytest.approx(b["rank_end_ns"], abs=0.01)
    for rank in range(1, 9):
        (one, other) = (
            json.loads((tmp_path / out / "rr" / f"rank-{rank}.out").read_text())["end"]["sum_sent"]
            for out in ("a", "b")
        )
        assert one == other
        assert one["bytes"] >= 400 * 1024


@pytest.mark.parametrize("hook", [(), ("--hook",)])
def test_pytorch(tmp_path: Path, hook: tuple[str, ...]) -> None:
    """The example, unmodified PyTorch over gloo: twice the same."""
    if subprocess.run([DEBIAN_PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode:
        pytest.skip(f"{DEBIAN_PYTHON} has no torch: make torch (1 GB to download)")
    layer = ["--tokens", "64", "--hidden", "512", "--steps", "1", *hook]
    for out in ("a", "b"):
        done = execute(
            tmp_path,
            "--",
            DEBIAN_PYTHON,
            str(REPOSITORY / "examples/moe_layer.py"),
            *layer,
            keys="hosts = 4\n",
            out=out,
        )
        assert done.returncode == 0, done.stderr
    a, b = (result(tmp_path, out) for out in ("a", "b"))
    assert [each["name"] for each in a["collectives"]] == ["dispatch", "combine"]
    assert a["collectives"] == b["collectives"]
    for rank in range(4):
        text = (tmp_path / "a" / "rr" / f"rank-{rank}.out").read_text()
        assert text.startswith(f"rank {rank}: mean ")
        assert text == (tmp_path / "b" / "rr" / f"rank-{rank}.out").read_text()
