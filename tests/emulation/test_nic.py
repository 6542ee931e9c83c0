"""The deployable pacer on an interface of a virtual machine: load, show, unload, and what it does to traffic."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.emulation.nic import PREPARE


def test_load_show_unload(guest: Callable[[str], list[str]]) -> None:
    """Rates are written and read back; the interface is left as it was."""
    lines = guest(
        PREPARE
        + """
before = picture("eth0")
code, out, err = incastfree(*LOAD, "--link-gbps", 1)
say("line", f"{code} {out} {err}")
say("line", sh("tc qdisc show dev eth0 root").split()[1])
code, out, err = incastfree("show")
for line in out.splitlines(): say("line", line)
code, out, err = incastfree(*LOAD, "--link-gbps", 1)
say("line", f"{code} {out} {err}")
sys.modules["bcc.libbcc"] = None
code, out, err = incastfree("show")
say("line", f"{code} {out.splitlines()[2].split()} {err}")
code, out, err = incastfree("unload", "--dev", "eth0")
say("line", f"{code} {out} {err}")
say("line", str(picture("eth0") == before))
"""
    )
    assert lines[0].startswith("0 eth0: 3 rates written")
    assert lines[0].endswith("generation 1")
    assert lines[1] == "fq"
    assert lines[2].startswith("eth0: generation 1")
    rows = [line.split() for line in lines[4:7]]
    assert [row[1] for row in rows] == ["10.9.0.2", "10.9.0.3", "10.9.0.4"]
    shares = [float(row[2]) for row in rows]
    assert shares == [pytest.approx(share, abs=1e-4) for share in (100 / 7, 200 / 7, 400 / 7)]
    assert "generation 2" in lines[-4]
    assert lines[-3].startswith("0 ['1', '10.9.0.2', '14.28")  # without bcc rates are known, counts are not
    assert "'-', '-', '-', '-'] note: counters are read through bcc" in lines[-3]
    assert lines[-2].startswith("0 eth0: not paced any more")
    assert lines[-1] == "True"


def test_traffic_is_paced(guest: Callable[[str], list[str]]) -> None:
    """UDP to three peers leaves at R of the line rate; traffic to others is untouched."""
    lines = guest(
        PREPARE
        + """
incastfree(*LOAD, "--link-gbps", 0.1)
sh("ip -n peer addr add 10.9.0.9/24 dev eth0")
import ctypes
def count(address, packets, payload):
    pid = os.fork()
    if pid == 0:
        libc = ctypes.CDLL(None)
        libc.setns(os.open("/run/netns/peer", os.O_RDONLY), 0)
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)  # SO_RCVBUFFORCE
        sock.bind((address, 7000))
        sock.settimeout(30)
        first = last = 0
        for k in range(packets):
            sock.recv(65536)
            last = time.monotonic_ns()
            first = first or last
        wire = (packets - 1) * (payload + 28 + 14 + 24)
        say("line", f"{address} {wire * 8e9 / (last - first):.0f}")
        os._exit(0)
    return pid
children = [count(f"10.9.0.{n}", 200, 1000) for n in (2, 3, 4, 9)]
time.sleep(2)
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.SOL_SOCKET, 32, 1 << 26)  # SO_SNDBUFFORCE: no slow flow may hold up the others
for k in range(200):
    for n in (2, 3, 4, 9):
        sock.sendto(bytes(1000), (f"10.9.0.{n}", 7000))
for child in children:
    os.waitpid(child, 0)
"""
    )
    rates = {line.split()[0]: float(line.split()[1]) for line in lines}
    for address, share in (("10.9.0.2", 1 / 7), ("10.9.0.3", 2 / 7), ("10.9.0.4", 4 / 7)):
        assert rates[address] == pytest.approx(share * 1e8, rel=0.01)
    assert rates["10.9.0.9"] > 1e9


def test_load_again(guest: Callable[[str], list[str]]) -> None:
    """Another line rate and other peers take the place of the first; a removed interface begins anew."""
    lines = guest(
        PREPARE
        + """
incastfree(*LOAD, "--link-gbps", 1)
open("/tmp/peers.toml", "w").write('0 = "10.9.0.1"\\n1 = "10.9.0.2"\\n2 = "10.9.0.3"\\n3 = "10.9.0.8"\\n')
code, out, err = incastfree(*LOAD, "--link-gbps", 0.1)
say("line", f"{code} {out} {err}")
for row in incastfree("show")[1].splitlines()[2:]: say("line", row)
sh("ip link del eth0; ip link add eth0 type veth peer name eth0 netns peer; ip link set eth0 up")
code, out, err = incastfree(*LOAD, "--link-gbps", 0.1)
say("line", f"{code} {out} {err}")
say("line", sh("tc qdisc show dev eth0 root").split()[1] + " " + str("incastfree" in sh("tc filter show dev eth0 egress")))
"""
    )
    assert lines[0].startswith("0 eth0: 3 rates written")
    assert "of 0.1 Gb/s" in lines[0]
    assert [line.split()[1] for line in lines[1:4]] == ["10.9.0.2", "10.9.0.3", "10.9.0.8"]
    assert lines[4].startswith("0 eth0: 3 rates written")
    assert lines[5] == "fq True"


def test_what_is_in_the_way(guest: Callable[[str], list[str]]) -> None:
    """One line each and exit code 1 or 2, and nothing changed."""
    lines = guest(
        PREPARE
        + """
GBPS = ("--link-gbps", 1)
def attempt(what, *words, interface="eth0", user=0):
    before = picture(interface)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        if user:
            os.setuid(user)
        code, out, err = incastfree(*words)
        os.write(write, f"{what}: {code} {out}{err}".encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    said = os.read(read, 10000).decode()
    os.close(read)
    say("line", f"{said.count(chr(10))} {picture(interface) == before} {said}")

attempt("missing", *LOAD[:5], "eth7", *LOAD[6:])
attempt("missing-show", "show", "--dev", "eth7")
attempt("missing-unload", "unload", "--dev", "eth7")
attempt("nothing-show", "show")
attempt("nothing-unload", "unload", "--dev", "eth0")
attempt("user-load", *LOAD, *GBPS, user=65534)
attempt("user-show", "show", user=65534)
attempt("user-unload", "unload", "--dev", "eth0", user=65534)
attempt("no-speed", *LOAD[:5], "dummy0", *LOAD[6:], interface="dummy0")
attempt("slow", *LOAD, "--link-gbps", 0.009)
sh("ip tuntap add tun0 mode tun")
attempt("no-ethernet", *LOAD[:5], "tun0", *LOAD[6:], *GBPS)
sh("tc qdisc add dev eth0 root netem delay 1ms")
attempt("netem", *LOAD, *GBPS)
sh("tc qdisc replace dev eth0 root handle 5: stab overhead 4 pfifo")
attempt("stab", *LOAD, *GBPS)
sh("tc qdisc del dev eth0 root")

sh("tc qdisc add dev eth0 clsact; tc filter add dev eth0 egress pref 9 matchall action ok")
attempt("matchall", *LOAD, *GBPS)
sh("tc filter del dev eth0 egress pref 9")
from controller.nic.ebpf import OBJECT, _open_program
from controller.nic.libbpf import Hook, attach_program
from fractions import Fraction
program = _open_program(Fraction(10**9))
program.load()
with RtNetlink() as netlink:
    netlink.attach(socket.if_nametoindex("eth0"), program.program_fd("pacer_egress"), "other", egress=True)
attempt("foreign", *LOAD, *GBPS)
sh("tc filter del dev eth0 egress; tc qdisc del dev eth0 clsact")
attach_program(program.program_fd("pacer_egress"), socket.if_nametoindex("lo"), Hook.TCX_EGRESS)
attempt("tcx", *LOAD[:5], "lo", *LOAD[6:], *GBPS, interface="lo")

incastfree(*LOAD, *GBPS)
attempt("loaded-user-load", *LOAD, *GBPS, user=65534)
attempt("loaded-user-show", "show", user=65534)
attempt("loaded-user-show-dev", "show", "--dev", "eth0", user=65534)
attempt("loaded-user-unload", "unload", "--dev", "eth0", user=65534)
os.chmod("/sys/fs/bpf", 0o700)  # as systemd mounts it
attempt("closed-user-show", "show", user=65534)
os.chmod("/sys/fs/bpf", 0o1777)
incastfree("unload", "--dev", "eth0")

def refusing(kind, number):
    # The kernel's answer to each message of a kind, as if it lacked what the message asks for.
    original = RtNetlink._add
    def add(self, message, flags, body, what):
        if kind in what:
            raise NetlinkError(number, f"{what}: {os.strerror(number)}")
        original(self, message, flags, body, what)
    RtNetlink._add = add
    return lambda: setattr(RtNetlink, "_add", original)
for before in ("", "tc qdisc replace dev eth0 root handle 3: fq limit 77"):
    if before:
        sh(before)
    for kind, number in (("fq on", 2), ("clsact on", 2), ("program incastfree", 2), ("program incastfree", 1)):
        undo = refusing(kind, number)
        attempt(f"no-{kind.split()[0]}-{number}", *LOAD, *GBPS)
        undo()
sh("umount /sys/fs/bpf")
attempt("no-bpffs", *LOAD, *GBPS)
attempt("no-bpffs-show", "show")
attempt("no-bpffs-unload", "unload", "--dev", "eth0")
"""
    )
    expected = {
        "missing": "2 incastfree: --dev eth7: there is no such interface",
        "missing-show": "2 incastfree: --dev eth7: there is no such interface",
        "missing-unload": "2 incastfree: --dev eth7: there is no such interface",
        "nothing-show": "1 incastfree: no interface has rates loaded: run incastfree load first",
        "nothing-unload": "1 incastfree: eth0 has no rates loaded: nothing to unload",
        "user-load": "1 incastfree: loading a NIC needs root",
        "user-show": "1 incastfree: no interface has rates loaded",
        "user-unload": "1 incastfree: unloading a NIC needs root",
        "no-speed": "2 incastfree: dummy0 does not say its speed: give it with --link-gbps",
        "slow": "2 incastfree: --link-gbps 0.009: a NIC is paced from 0.01 Gb/s on",
        "no-ethernet": "2 incastfree: --dev tun0: it has no Ethernet headers",
        "netem": "1 incastfree: eth0 has the qdisc netem, which pacing would replace by fq and could not put back",
        "stab": "1 incastfree: eth0 has the qdisc pfifo with a size table",
        "matchall": "1 incastfree: eth0 has programs on its egress hook already (matchall): remove them first",
        "foreign": "1 incastfree: eth0 has programs on its egress hook already (other): remove them first",
        "tcx": "1 incastfree: lo has programs on its egress hook already (1 by tcx, see bpftool net): remove them first",
        "loaded-user-load": "1 incastfree: loading a NIC needs root",
        "loaded-user-show": "1 incastfree: the rates of eth0 can be read by root only: run as root",
        "loaded-user-show-dev": "1 incastfree: the rates of eth0 can be read by root only: run as root",
        "closed-user-show": "1 incastfree: what is loaded can be seen by root only: run as root",
        "loaded-user-unload": "1 incastfree: unloading a NIC needs root",
        "no-fq-2": "1 incastfree: eth0 cannot be paced: fq on 3: No such file or directory: this kernel lacks CONFIG_NET_SCH_FQ",
        "no-clsact-2": "1 incastfree: eth0 cannot be paced: clsact on 3: No such file or directory: this kernel lacks "
        "CONFIG_NET_SCH_INGRESS",
        "no-program-2": "1 incastfree: eth0 cannot be paced: program incastfree on 3: No such file or directory: this "
        "kernel lacks CONFIG_NET_CLS_BPF",
        "no-program-1": "1 incastfree: eth0 cannot be paced: program incastfree on 3: Operation not permitted",
        "no-bpffs": "1 incastfree: /sys/fs/bpf is not mounted: mount -t bpf bpf /sys/fs/bpf",
        "no-bpffs-show": "1 incastfree: no interface has rates loaded",
        "no-bpffs-unload": "1 incastfree: eth0 has no rates loaded: nothing to unload",
    }
    assert len(lines) == len(expected) + 4  # of what the kernel lacks, each twice
    for line in lines:
        count, unchanged, what, said = line.split(maxsplit=3)
        assert (count, unchanged) == ("1", "True"), line
        assert said.startswith(expected[what.rstrip(":")]), line
