"""Loading and unloading the pacer leaves an interface as it was, whatever was on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.emulation.nic import PREPARE

ROUND_TRIP = """
def round_trip(what, interface="eth0"):
    load = [interface if word == "eth0" else word for word in LOAD]
    before = picture(interface)
    code, out, err = incastfree(*load, "--link-gbps", 1)
    loaded = sh(f"tc qdisc show dev {interface}")
    kinds = sorted(line.split()[1] for line in loaded.splitlines())
    changed = picture(interface) != before
    twice = incastfree(*load, "--link-gbps", 1)[0]
    gone, _, left = incastfree("unload", "--dev", interface)
    say("line", f"{what}: {code} {twice} {gone} {changed} {picture(interface) == before} {','.join(kinds)} {err} {left}")
    if picture(interface) != before:
        say("line", f"{before} BECAME {picture(interface)}")
"""


def test_single_queue(guest: Callable[[str], list[str]]) -> None:
    """The kernel's default, what somebody put there with options of his own, and a clsact that was there."""
    lines = guest(
        PREPARE
        + ROUND_TRIP
        + """
round_trip("default")
sh("tc qdisc replace dev eth0 root handle 7: fq limit 777 flow_limit 77 quantum 9000 initial_quantum 20000 "
   "buckets 64 maxrate 1gbit orphan_mask 255 horizon 3s horizon_drop nopacing refill_delay 7ms ce_threshold 4ms")
bands = struct.pack("=HHi16B", 24, 16, 3, *(2, 1, 2, 0, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1))  # what this tc does not know
with RtNetlink() as netlink:
    weights = struct.pack("=HH3i", 16, 17, 100000, 200000, 300000)
    netlink.set_qdisc(socket.if_nametoindex("eth0"), Qdisc(ROOT, 7 << 16, "fq", bands + weights))
round_trip("fq")
sh("tc qdisc replace dev eth0 root handle 8: pfifo limit 321")
round_trip("pfifo")
sh("tc qdisc replace dev eth0 root bfifo limit 54321")
round_trip("bfifo")
sh("tc qdisc del dev eth0 root; tc qdisc add dev eth0 clsact")
sh("tc filter add dev eth0 ingress pref 3 u32 match u32 0 0 action ok")
round_trip("clsact")
sh("ip link set eth0 name eth0.7; ip link set eth0.7 up")
round_trip("dots", "eth0.7")

round_trip("down", "dummy0")
round_trip("loopback", "lo")
"""
    )
    assert lines == [
        "default: 0 0 0 True True clsact,fq",
        "fq: 0 0 0 True True clsact,fq",
        "pfifo: 0 0 0 True True clsact,fq",
        "bfifo: 0 0 0 True True clsact,fq",
        "clsact: 0 0 0 True True clsact,fq",
        "dots: 0 0 0 True True clsact,fq",
        "down: 0 0 0 True True clsact,fq",
        "loopback: 0 0 0 True True clsact,fq",
    ]


def test_many_queues(guest: Callable[[str], list[str]]) -> None:
    """Each queue of mq gets an fq, also those not yet in use; the kernel's mq, one's own, and one with mixed queues."""
    lines = guest(
        PREPARE
        + ROUND_TRIP
        + """
import fcntl
taps = []
for _ in range(3):  # so many queues in use, of 256
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH22x", b"tap0", 0x0002 | 0x0100 | 0x1000))  # TUNSETIFF
    taps.append(tap)
sh("ip link set tap0 up; ip link set eth0 down; ip link del eth0")
say("line", sh("tc qdisc show dev tap0").splitlines()[0])
round_trip("kernel's", "tap0")
sh("ip link add eth0 numtxqueues 4 numrxqueues 4 type veth peer name eth1; ip link set eth0 up; ip link set eth1 up")
sh("tc qdisc replace dev eth0 root handle 1: mq")
round_trip("own")
sh("tc qdisc replace dev eth0 parent 1:2 handle 20: fq limit 555; tc qdisc replace dev eth0 parent 1:3 pfifo limit 9")
round_trip("mixed")
sh("tc qdisc replace dev eth0 parent 1:1 fq; tc qdisc replace dev eth0 parent 1:4 handle 40: bfifo limit 99999")
round_trip("full")
"""
    )
    assert lines[0].startswith("qdisc mq 0: root")
    assert lines[1].startswith("kernel's: 0 0 0 True True clsact,fq,")
    assert lines[1].split()[-1] == ",".join(["clsact"] + 256 * ["fq"] + ["mq"])
    assert lines[2:] == [
        "own: 0 0 0 True True clsact,fq,fq,fq,fq,mq",
        "mixed: 0 0 0 True True clsact,fq,fq,fq,fq,mq",
        "full: 0 0 0 True True clsact,fq,fq,fq,fq,mq",
    ]


def test_what_others_did_meanwhile(guest: Callable[[str], list[str]]) -> None:
    """A qdisc and programs that came after us stay, and it is said; an interface that is gone leaves nothing."""
    lines = guest(
        PREPARE
        + """
incastfree(*LOAD, "--link-gbps", 1)
sh("tc filter add dev eth0 ingress pref 3 u32 match u32 0 0 action ok; tc qdisc replace dev eth0 root netem delay 1ms")
say("line", incastfree("show")[1].splitlines()[1])
say("line", " ".join(map(str, incastfree(*LOAD, "--link-gbps", 1))))
code, out, err = incastfree("unload", "--dev", "eth0")
say("line", f"{code} {out} {err}")
say("line", sh("tc qdisc show dev eth0") + sh("tc filter show dev eth0 egress") + str(picture("eth0")[2]))
sh("tc qdisc del dev eth0 root; tc qdisc del dev eth0 clsact")
before = picture("eth0")[2]
incastfree(*LOAD, "--link-gbps", 1)
sh("ip link del eth0")
say("line", " ".join(map(str, incastfree("unload", "--dev", "eth0"))) + str(picture("lo")[2] == before))
say("line", " ".join(map(str, incastfree("unload", "--dev", "eth0"))))
"""
    )
    assert lines[0].startswith("eth0 is not paced: its qdisc has been replaced by netem")
    assert lines[1].startswith("1 incastfree: eth0 was loaded before, but its qdisc has been replaced by netem")
    assert lines[2].startswith("0 eth0: not paced any more note: eth0: other programs have come to its hooks")
    assert "its qdisc has been replaced by netem, which stays" in lines[2]
    assert "netem" in lines[3]
    assert "clsact" in lines[3]
    assert "incastfree" not in lines[3]
    assert lines[4] == "0 eth0: not paced any more note: eth0: the interface that was loaded as eth0 is gone True"
    assert lines[5].startswith("2 incastfree: --dev eth0: there is no such interface")


@pytest.mark.parametrize("moment", ["write_notes", "pin_map", "install_fq", "add_clsact", "attach"])
def test_interrupted(guest: Callable[[str], list[str]], moment: str) -> None:
    """Ctrl-C at any step of a load leaves nothing; what kill -9 leaves, the next load or unload puts right."""
    lines = guest(
        PREPARE
        + f"""
import controller.nic.ebpf as ebpf
from controller.nic.libbpf import BpfObject
owner = {{"pin_map": BpfObject, "add_clsact": RtNetlink, "attach": RtNetlink}}.get("{moment}", ebpf)
original = getattr(owner, "{moment}")
sh("tc qdisc replace dev eth0 root handle 8: fq limit 321")
before = picture("eth0")
def interrupted(*arguments, **options):
    result = original(*arguments, **options)
    if killed:
        os._exit(0)
    raise KeyboardInterrupt
setattr(owner, "{moment}", interrupted)
killed = False
say("line", " ".join(map(str, incastfree(*LOAD, "--link-gbps", 1))) + str(picture("eth0") == before))
killed = True
child = os.fork()
if not child:
    incastfree(*LOAD, "--link-gbps", 1)
    os._exit(1)
say("line", f"{{os.waitpid(child, 0)[1]}} {{picture('eth0') == before}}")
child = os.fork()
if not child:
    say("line", f"{{incastfree('unload', '--dev', 'eth0')[0]}} {{picture('eth0') == before}}")
    incastfree(*LOAD, "--link-gbps", 1)
    os._exit(1)
os.waitpid(child, 0)
setattr(owner, "{moment}", original)
say("line", f"{{incastfree(*LOAD, '--link-gbps', 1)[0]}} {{incastfree('unload', '--dev', 'eth0')[0]}} {{picture('eth0') == before}}")
"""
    )
    assert lines[0] == "130 incastfree: interrupted; what had finished is kept True"
    assert lines[1] == "0 False"
    assert lines[2] == "0 True"
    assert lines[3] == "0 0 True"
