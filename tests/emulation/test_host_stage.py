"""The host stage, as root, in a virtual machine whose clock runs: the real command, and what is left when it is killed."""

from __future__ import annotations

import json

import pytest

from testbed.fabric.bmv2 import installation
from testbed.stage.virtual.machine import VirtualMachine, work_folder
from tests.emulation.conftest import CPU

DILATION = 100_000
"""A packet takes 4 ms: this kernel interprets eBPF, and a system call costs it microseconds."""

PREAMBLE = f"""
import ctypes, json, os, random, signal, subprocess, sys, time
from pathlib import Path
from testbed.stage.host.machine import GUEST_MODULE
from testbed.stage.console import say

os.chdir("/tmp")
os.environ["TMPDIR"] = "/tmp"
INCASTFREE = [sys.executable, "-m", "controller.cli.main"]
COMPARE = [*INCASTFREE, "compare", "--stage", "host", "--unit", "wire-bytes", "--demand", "demand.csv",
           "--dilation", "{DILATION}", "--schedule", "rate", "--out", "out"]


def in_time(dilations, *more):
    '''The command at the first dilation at which it keeps up: the machine may be busy with other things.'''
    for dilation in dilations:
        done = subprocess.run([*COMPARE, "--json", *more, "--dilation", str(dilation)], capture_output=True, text=True)
        if "did not keep up" not in done.stderr:
            break
    say("status", f"{{done.returncode}} {{done.stderr}}")
    return json.loads(done.stdout)["runs"] if done.returncode == 0 else []


def demand(packets):
    rows = [",".join(str(0 if i == j else 4096 * packets) for j in range(4)) for i in range(4)]
    Path("demand.csv").write_text("\\n".join(rows))
"""

KILLS = (
    PREAMBLE
    + """
libbpf = ctypes.CDLL("libbpf.so.1")


def processes():
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_text().split("\\0")
            # Neither zombies nor threads of the kernel, which come and go.
            if words != [""] and (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found[int(path.name)] = words
        except OSError:
            pass
    return found


def namespaces():
    found = set()
    for pid in processes():
        for kind in ("net", "pid", "mnt", "uts"):
            try:
                found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
            except OSError:
                pass
    return found


def bpf_ids(next_id):
    found, this, following = [], ctypes.c_uint32(0), ctypes.c_uint32()
    while next_id(this, ctypes.byref(following)) == 0:
        found.append(following.value)
        this = ctypes.c_uint32(following.value)
    return found


def state():
    '''All that a run could leave, but for its folder. Programs and maps last as long as an interface that has them.'''
    return {
        "processes": sorted(processes()),
        "namespaces": sorted(namespaces()),
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "programs": bpf_ids(libbpf.bpf_prog_get_next_id),
        "maps": bpf_ids(libbpf.bpf_map_get_next_id),
        "mounts": Path("/proc/mounts").read_text(),
        "sysctls": {name: Path("/proc/sys/net", name).read_text() for name in (
            "core/netdev_max_backlog", "core/netdev_budget", "ipv6/conf/all/disable_ipv6")},
        "bpffs": os.listdir("/sys/fs/bpf"),
        "netns": os.listdir("/run/netns"),
    }


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def wait(condition, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        reap()
        if condition():
            return True
        time.sleep(0.02)
    return False


def started(command, target):
    '''The process to kill: the command, enter.py below it, or the first process of the namespaces.'''
    if target == "command":
        return command
    mark = "enter.py" if target == "supervisor" else "-m"
    place = 3 if target == "supervisor" else 1
    for pid, words in processes().items():
        if GUEST_MODULE in words and words[place].endswith(mark):
            return pid
    return None


for words in (["ip", "netns", "add", "keep"], ["ip", "link", "add", "keep0", "type", "veth", "peer", "name", "keep1"]):
    subprocess.run(words, check=True)
bystander = subprocess.Popen(["unshare", "-n", "-p", "-f", "sleep", "100000"])
time.sleep(0.5)
before = state()


def loaded():
    return bpf_ids(libbpf.bpf_prog_get_next_id) != before["programs"]


def check(what):
    if not wait(lambda: state() == before, 60):
        now = state()
        for name in before:
            if now[name] != before[name]:
                say("left", f"{what}: {name}: {now[name]} and not {before[name]}")
        say("left", str({pid: words for pid, words in processes().items() if pid not in before["processes"]}))
    say("killed", what)


def kill(words, target, delay_s, on=None):
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        found = []
        wait(lambda: found.append(started(process.pid, target)) or found[-1] or process.poll() is not None, 100)
        if on:
            wait(on, 200)
        time.sleep(delay_s)
        if loaded():
            say("loaded", target)
        if found[-1]:
            os.kill(found[-1], signal.SIGKILL)
    except ProcessLookupError:
        pass
    stderr = process.communicate(timeout=200)[1]
    if target != "command" and (process.returncode != 1 or len(stderr.splitlines()) != 1 or "Traceback" in stderr):
        say("left", f"{target} killed: status {process.returncode}, {stderr}")
    check(f"{target} after {delay_s:.3f} s")
"""
)

RANDOM_KILLS = (
    KILLS
    + """
# A run that starts quickly, with a network, a program on it, and children of its own.
Path("small.py").write_text('''
import os, sys
from pathlib import Path
from controller.errors import CannotRunError
from testbed.stage.host.machine import HostMachine
from testbed.stage.virtual.machine import work_folder
try:
    with work_folder() as work:
        (work / "script.py").write_text(Path("network.py").read_text())
        HostMachine(work, memory_mib=100, cpu=0).run("script", lambda *_: None, limit_s=100)
except CannotRunError as error:
    print(error, file=sys.stderr)
    sys.exit(1)
''')
Path("network.py").write_text('''
import os, subprocess, time
from controller.nic.libbpf import BpfObject, Hook, attach_program
from controller.nic.rtnetlink import RtNetlink
from testbed.fabric import KERNEL_OBJECT
subprocess.Popen(["setsid", "sleep", "1000"])
with RtNetlink() as netlink:
    netlink.add_pair("veth", "a", 1000, "b", 1001, mtu_bytes=1500, address=bytes.fromhex("020000000001"))
    netlink.set_up(1000)
    netlink.set_up(1001)
    netlink.set_fq(1000)
fabric = BpfObject(KERNEL_OBJECT)
fabric.load()
attach_program(fabric.program_fd("port_egress"), 1000, Hook.TCX_EGRESS)
if os.fork() == 0:
    os.setsid()
    time.sleep(1000)
time.sleep(1000)
''')
random.seed({seed})
for number in range({count}):
    for target in ("command", "supervisor", "first"):
        words = [sys.executable, "small.py"]
        if number % 3 == 2:
            kill(words, target, random.uniform(0, 0.5), loaded)
        else:
            kill(words, target, random.uniform(0, (0.05, 2)[number % 3]))
say("end", "")
"""
)

COMMAND_KILLS = (
    KILLS
    + """
demand(3000)  # half a minute's worth
starting = lambda: any("enter.py" in words[3:4][0] for words in processes().values() if words[3:4])
for target, delay_s, on in (
    ("command", 0.4, None),
    ("command", 0.2, starting),
    ("command", 2.0, starting),
    ("first", 1.0, None),
    ("supervisor", 1.0, None),
    ("command", 0.5, loaded),
    ("command", {running_s}, loaded),
):
    kill(COMPARE, target, delay_s, on)
for number in (signal.SIGINT, signal.SIGTERM):
    process = subprocess.Popen(COMPARE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait(loaded, 200)
    process.send_signal(number)
    stderr = process.communicate(timeout=200)[1]
    # No waiting here: the command ends when all of its processes have ended.
    if any(GUEST_MODULE in words for words in processes().values()) or list(Path("/tmp").glob("incastfree-*")):
        say("left", f"something after {number!r}")
    say("interrupted", f"{process.returncode} {stderr}")
    check(f"command by {number!r}")
if bystander.poll() is not None:
    say("left", "the bystander was killed")
for folder in Path("/tmp").glob(".incastfree-*"):
    os.utime(folder, (0, 0))
cleaned = subprocess.run([*INCASTFREE, "clean"], capture_output=True, text=True)
say("cleaned", cleaned.stdout + cleaned.stderr)
if left := [path.name for path in Path("/tmp").iterdir() if "incastfree" in path.name]:
    say("left", f"folders {left}")
check("clean")
say("end", "")
"""
)


def run_in_machine(source: str, limit_s: float = 900) -> list[tuple[str, str]]:
    """Runs a script as root where the clock runs; returns what it said."""
    said: list[tuple[str, str]] = []
    with work_folder() as work:
        (work / "script.py").write_text(source)
        machine = VirtualMachine(work, memory_mib=1024, cpu=CPU, time_travel=False)
        machine.run("script", lambda kind, text: said.append((kind, text)), limit_s=limit_s)
    return said


def of_kind(said: list[tuple[str, str]], wanted: str) -> list[str]:
    """The texts of one kind of line."""
    return [text for kind, text in said if kind == wanted]


def test_compare_in_real_time() -> None:
    """Four hosts, 30 packets a sender: all bytes arrive, in about the time that they must take, and in time."""
    said = run_in_machine(
        PREAMBLE
        + """
demand(10)
for run in in_time((100_000, 500_000, 2_500_000), "--schedule", "rr+nscc,rate"):
    say("figures", json.dumps(run))
"""
    )
    assert of_kind(said, "status") == ["0"]
    figures = [json.loads(text) for text in of_kind(said, "figures")]
    assert [each["run"] for each in figures] == ["rr+nscc", "rate"]
    for each in figures:
        assert each["stage"] == "host"
        assert each["kernel_key"] is None
        assert each["delivered_bytes"] == each["expected_bytes"] == 12 * 10 * 4096
        assert each["drops"] == each["lost"] == each["timeouts"] == 0
        # Two links of 1 us and a packet's time beyond the bound; the rest is what comes late.
        assert 1228.8 + 2000 + 40 <= each["cct_ns"] < 1228.8 + 2000 + 400
        assert each["hot_queue_max_bytes"] <= 5 * 4096


def test_bmv2_in_real_time() -> None:
    """A switch that is a process, at the dilation that is chosen if the machine is idle."""
    bmv2 = installation.find()
    if bmv2 is None:
        pytest.skip(installation.NEEDED)
    said = run_in_machine(
        PREAMBLE
        + f"""
os.environ["INCASTFREE_BMV2"] = {str(bmv2.program)!r}
demand(10)
for run in in_time((0, 390_625, 1_562_500), "--fabric", "bmv2"):
    say("figures", json.dumps(run))
say("files", " ".join(path.name for path in Path("/tmp").iterdir() if "bmv2" in path.name))
"""
    )
    assert of_kind(said, "status") == ["0"]
    (figures,) = (json.loads(text) for text in of_kind(said, "figures"))
    assert figures["delivered_bytes"] == figures["expected_bytes"]
    assert of_kind(said, "files") == [""]


@pytest.mark.parametrize("seed", [1])
def test_kill_at_random_moments(seed: int) -> None:
    """kill -9 of the command, of the supervisor below it and of the first process: nothing is left in any case."""
    count = 6
    said = run_in_machine(RANDOM_KILLS.replace("{seed}", str(seed)).replace("{count}", str(count)))
    assert of_kind(said, "left") == []
    assert len(of_kind(said, "killed")) == 3 * count
    assert len(of_kind(said, "loaded")) >= count
    assert said[-1] == ("end", "")


def test_kill_the_real_command() -> None:
    """While it starts, while it sets up its network, while packets are on their way; what was there before stays."""
    said = run_in_machine(COMMAND_KILLS.replace("{running_s}", "6.0"))
    assert of_kind(said, "left") == []
    assert len(of_kind(said, "killed")) == 10
    assert len(of_kind(said, "loaded")) >= 2
    line = "incastfree: interrupted; what had finished is kept"
    assert of_kind(said, "interrupted") == [f"130 {line}", f"143 {line}"]
    (cleaned,) = of_kind(said, "cleaned")
    assert cleaned.startswith("0 processes ended, ")
    assert said[-1] == ("end", "")
