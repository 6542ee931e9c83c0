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
    assert "generation 2" in lines[-3]
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
    """A missing interface, no speed, a foreign program: one line, nothing changed."""
    lines = guest(
        PREPARE
        + """
before = sh("tc qdisc show dev eth0; tc filter show dev eth0 egress")
code, out, err = incastfree(*LOAD[:5], "eth7", *LOAD[6:])
say("line", f"{code} {err}")
code, out, err = incastfree("show")
say("line", f"{code} {err}")
sh("tc qdisc add dev eth0 root netem delay 1ms")
code, out, err = incastfree(*LOAD, "--link-gbps", 1)
say("line", f"{code} {err}")
sh("tc qdisc del dev eth0 root")
say("line", str(before == sh("tc qdisc show dev eth0; tc filter show dev eth0 egress")))
"""
    )
    assert lines[0].startswith("2 incastfree: --dev eth7: there is no such interface")
    assert lines[1].startswith("1 incastfree: no interface has rates loaded")
    assert lines[2].startswith("1 incastfree: eth0 has the qdisc netem")
    assert lines[3] == "True"
