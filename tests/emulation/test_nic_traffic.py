"""What the deployable pacer does to traffic, as the other end of the interface sees it."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from tests.emulation.nic import CAPTURE, PREPARE


def test_every_kind_of_packet(guest: Callable[[str], list[str]]) -> None:
    """The gap before a packet is its bytes on the wire over R, whatever lies around its address."""
    lines = guest(
        PREPARE
        + CAPTURE
        + """
for where in ("", "ip netns exec peer "):
    sh(f"{where}sysctl -q net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.eth0.disable_ipv6=0")
sh("ip addr add fd00::1/64 dev eth0 nodad; ip -n peer addr add fd00::4/64 dev eth0 nodad; ip link set eth0 mtu 9000")
sh("ip -n peer link set eth0 mtu 9000")
mac = bytes.fromhex(sh("ip -n peer -o link show eth0").split("link/ether ")[1].split()[0].replace(":", ""))
sh(f"ip neigh replace 10.9.0.4 lladdr {mac.hex(':')} dev eth0; ip neigh replace fd00::4 lladdr {mac.hex(':')} dev eth0")
BYTE_NS = 8 / 0.1 * 7 / 4  # of what goes to rank 3, at 0.1 Gb/s

def measure(what, wire, send):
    for address in ("10.9.0.4", "fd00::4"):
        open("/tmp/peers.toml", "w").write(f'0 = "10.9.0.1"\\n1 = "10.9.0.2"\\n2 = "10.9.0.3"\\n3 = "{address}"\\n')
        if what.startswith("IPv6") != (":" in address):
            continue
        assert not incastfree(*LOAD, "--link-gbps", 0.1)[0]
        capture = Capture()
        for _ in range(20):
            send()
        time.sleep(1)
        rows = [row for row in capture.end() if row[1] == address]
        ours = [number for number, row in enumerate(rows) if row[2] > 200]  # others tell of neighbours
        gaps = [(rows[n][0] - rows[n - 1][0]) / (wire * BYTE_NS) for n in ours[1:]]
        say("line", f"{what}: {len(ours)} {min(gaps):.5f} {max(gaps):.5f}")

def udp(family, address, payload, *options):
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, 32, 1 << 26)  # SO_SNDBUFFORCE
    for option in options:
        sock.setsockopt(*option)
    return lambda: sock.sendto(bytes(payload), (address, 7000))

def raw(tags, headers, payload, virtual=b""):
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sock.setsockopt(socket.SOL_SOCKET, 32, 1 << 26)
    if virtual:
        sock.setsockopt(263, 15, 1)  # PACKET_VNET_HDR
    sock.bind(("eth0", 0))
    mine = bytes.fromhex(open("/sys/class/net/eth0/address").read().strip().replace(":", ""))
    return lambda: sock.send(virtual + mac + mine + tags + headers + bytes(payload))

ADDRESSES = socket.inet_aton("10.9.0.1") + socket.inet_aton("10.9.0.4")
IPV4 = b"\\x08\\x00" + struct.pack(">BBHHHBBH", 0x45, 0, 528, 0, 0, 64, 17, 0) + ADDRESSES
IPV6 = b"\\x86\\xdd" + struct.pack(">IHBB", 6 << 28, 508, 60, 64) + socket.inet_pton(10, "fd00::1") + socket.inet_pton(10, "fd00::4")
TAG, OUTER = b"\\x81\\x00\\x00\\x07", b"\\x88\\xa8\\x00\\x09"
measure("IPv4 UDP", 1000 + 28 + 14 + 24, udp(socket.AF_INET, "10.9.0.4", 1000))
measure("IPv4 UDP GSO", 9500 + 10 * (28 + 14 + 24), udp(socket.AF_INET, "10.9.0.4", 9500, (socket.SOL_UDP, 103, 1000)))
measure("IPv4 options", 1000 + 32 + 14 + 24, udp(socket.AF_INET, "10.9.0.4", 1000, (socket.IPPROTO_IP, socket.IP_OPTIONS, b"\\x94\\x04\\0\\0")))
measure("IPv4 VLAN", 508 + 20 + 18 + 24, raw(TAG, IPV4, 508))
measure("IPv4 QinQ", 508 + 20 + 22 + 24, raw(OUTER + TAG, IPV4, 508))
measure("IPv4 three tags", 508 + 20 + 26 + 24, raw(OUTER + TAG + TAG, IPV4, 508))
measure("IPv4 outside the head", 5000 + 20 + 14 + 24, raw(b"", IPV4, 5000, struct.pack("=BBHHHH", 0, 0, 14, 0, 0, 0)))
measure("IPv6 UDP", 1000 + 48 + 14 + 24, udp(socket.AF_INET6, "fd00::4", 1000))
measure("IPv6 UDP GSO", 9500 + 10 * (48 + 14 + 24), udp(socket.AF_INET6, "fd00::4", 9500, (socket.SOL_UDP, 103, 1000)))
measure("IPv6 extension", 1000 + 56 + 14 + 24, udp(socket.AF_INET6, "fd00::4", 1000, (41, 59, b"\\0\\0\\x01\\x04\\0\\0\\0\\0")))  # IPV6_DSTOPTS
measure("IPv6 VLAN", 508 + 40 + 18 + 24, raw(TAG, IPV6, 508))
measure("IPv6 QinQ", 508 + 40 + 22 + 24, raw(OUTER + TAG, IPV6, 508))
"""
    )
    found = {line.split(":")[0]: line.split(": ")[1].split() for line in lines}
    assert len(found) == 12
    for what, (count, shortest, longest) in found.items():
        assert int(count) == 20, what
        if what == "IPv4 three tags":  # not looked for
            assert float(longest) < 0.1, what
        else:
            assert float(shortest) == pytest.approx(1, abs=2e-3), what
            assert float(longest) == pytest.approx(1, abs=2e-3), what


def test_strangers_do_not_wait(guest: Callable[[str], list[str]]) -> None:
    """What goes to no peer keeps its time, its order and its own time of departure, though it shares a backlogged socket."""
    lines = guest(
        PREPARE
        + CAPTURE
        + """
sh("ip -n peer addr add 10.9.0.9/24 dev eth0; ip neigh replace 10.9.0.9 lladdr $(ip -n peer -o link show eth0 | sed 's/.*ether //;s/ .*//') dev eth0")
incastfree(*LOAD, "--link-gbps", 0.01)
capture = Capture()
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.SOL_SOCKET, 32, 1 << 26)
for number in range(300):
    sock.sendto(bytes(1000), ("10.9.0.2", 7000 + number))  # each in a flow of fq, which waits
sent = []
for number in range(300):
    time.sleep(0.0001)
    sent.append(time.monotonic_ns())
    sock.sendto(bytes(1000 + number), ("10.9.0.9", 7000 + number))
timed = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
timed.setsockopt(socket.SOL_SOCKET, 61, struct.pack("=iI", time.CLOCK_MONOTONIC, 0))  # SO_TXTIME
due = time.monotonic_ns() + 5_000_000
timed.sendmsg([bytes(100)], [(socket.SOL_SOCKET, 61, struct.pack("=Q", due))], 0, ("10.9.0.9", 7000))
time.sleep(0.1)
rows = [row for row in capture.end() if row[1] == "10.9.0.9"]
timed_ns = [t for t, _, wire in rows if wire == 166]
rows = [row for row in rows if row[2] != 166]
say("line", f"{len(rows)} {[row[2] for row in rows] == [1066 + n for n in range(300)]} {max(row[0] - t for row, t in zip(rows, sent))}")
say("line", str(timed_ns[0] - due))
"""
    )
    count, in_order, longest_ns = lines[0].split()
    assert (count, in_order) == ("300", "True")
    assert int(longest_ns) < 5000
    assert abs(int(lines[1])) < 5000


def test_memory_is_bounded(guest: Callable[[str], list[str]]) -> None:
    """Packets that no socket waits for are dropped where they would wait for more than a second, and it is counted."""
    lines = guest(
        PREPARE
        + """
incastfree(*LOAD, "--link-gbps", 0.01)
sh("ip netns add vm; ip link add vm0 type veth peer name eth0 netns vm; ip addr add 10.8.0.1/24 dev vm0; ip link set vm0 up")
sh("ip -n vm addr add 10.8.0.2/24 dev eth0; ip -n vm link set eth0 up; ip -n vm route add default via 10.8.0.1")
sh("sysctl -q net.ipv4.ip_forward=1; ip -n peer route add 10.8.0.0/24 via 10.9.0.1")
time.sleep(1)
mac = bytes.fromhex(open("/sys/class/net/vm0/address").read().strip().replace(":", ""))
child = os.fork()
if not child:
    import ctypes
    ctypes.CDLL(None).setns(os.open("/run/netns/vm", os.O_RDONLY), 0)
    # As a virtual machine sends: what comes out of its interface belongs to no socket of the host.
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)
    sock.bind(("eth0", 0x0800))
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 1028, 0, 0, 64, 17, 0) + socket.inet_aton("10.8.0.2") + socket.inet_aton("10.9.0.2")
    total = sum(struct.unpack(">10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack(">H", ~total & 0xFFFF) + ip[12:]
    for number in range(2000):
        sock.sendto(ip + bytes(1008), ("eth0", 0x0800, 0, 0, mac))
    os._exit(0)
os.waitpid(child, 0)
row = incastfree("show")[1].splitlines()[2].split()
say("line", " ".join(row[4:]))
"""
    )
    packets, wire_bytes, ahead_us, drops = lines[0].split()
    assert int(packets) + int(drops) == 2000
    assert int(wire_bytes) == int(packets) * 1066
    assert float(ahead_us) == pytest.approx(2**30 / 1000, rel=0.01)
    assert int(drops) > 1700


def test_no_burst_across_rewrites(guest: Callable[[str], list[str]]) -> None:
    """1,000 rewrites a second, loads of other matrices, ranks and line rates: in no window more than R and a packet."""
    lines = guest(
        PREPARE
        + CAPTURE
        + """
from fractions import Fraction
from controller.nic.ebpf import EbpfNic
BPS = 70e6
incastfree(*LOAD, "--link-gbps", 0.07)  # 10, 20 and 40 Mb/s
def flood(address):
    child = os.fork()
    if not child:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4000)  # a few packets: what is queued keeps its old rate
        while True:
            sock.sendto(bytes(1000), (address, 7000))  # waits for the send buffer
    return child
capture = Capture()
floods = [flood(f"10.9.0.{n}") for n in (2, 3, 4)]
time.sleep(0.05)

def rewrite(seconds, *tables):
    with EbpfNic.attach("eth0") as nic:
        begin, count = time.monotonic(), 0
        while time.monotonic() < begin + seconds:
            nic.write_rates(tables[count % len(tables)])
            count += 1
            time.sleep(max(0, begin + count / 1000 - time.monotonic()))
    return count
with EbpfNic.attach("eth0") as nic:
    _, steps = nic.read_rates()
numbers = struct.unpack("<1024I", steps)
low = struct.pack("<1024I", *(number // 2 for number in numbers))
t0 = time.monotonic_ns()
count = rewrite(0.3, steps)
t1 = time.monotonic_ns()
count += rewrite(0.3, steps, low)
t2 = time.monotonic_ns()
open("/tmp/d.csv", "w").write("0,2000,4000,8000\\n0,0,0,0\\n0,0,0,0\\n0,0,0,0\\n")  # as R has it, the same
codes = [incastfree(*LOAD, "--link-gbps", 0.07)[0]]
open("/tmp/d.csv", "w").write("0,2000,1000,4000\\n0,0,0,0\\n0,0,0,0\\n0,0,0,0\\n")  # ranks 1 and 2 change their places
open("/tmp/peers.toml", "w").write('0 = "10.9.0.1"\\n1 = "10.9.0.3"\\n2 = "10.9.0.2"\\n3 = "10.9.0.4"\\n')
with EbpfNic.attach("eth0") as nic:
    nic.write_rates(low[:8] + low[4:8] + low[12:])  # until the peers and the rates are new
codes.append(incastfree(*LOAD, "--link-gbps", 0.07)[0])
time.sleep(0.05)
for gbps in (0.14, 0.07, 0.1, 0.07):
    with EbpfNic.load("eth0", Fraction(str(gbps)) * 10**9) as nic:  # the rates stay, in bytes
        generation, _ = nic.read_rates()
    time.sleep(0.05)
rows = capture.end()
for child in floods:
    os.kill(child, 9)
say("line", f"{count} {codes} {generation}")
for n, share in ((2, 1), (3, 2), (4, 4)):
    own = [row for row in rows if row[1] == f"10.9.0.{n}"]
    bytes_per_ns = share / 7 * BPS / 8e9
    def mean(begin, end):
        inside = [row for row in own if begin < row[0] <= end]
        return sum(row[2] for row in inside[1:]) / (inside[-1][0] - inside[0][0]) / bytes_per_ns
    say("line", f"{excess_bytes(own, bytes_per_ns * 1.00001):.1f} {mean(t0, t1):.5f} {mean(t1, t2):.5f} {mean(t2, rows[-1][0]):.5f}")
say("line", f"{excess_bytes(rows, BPS / 8e9 * 1.00001):.1f}")
"""
    )
    count, _, generation = lines[0].split("[")[0], 0, lines[0].split("]")[1]
    assert 590 <= int(count) <= 610
    assert "[0, 0]" in lines[0]
    assert int(generation) == 1 + int(count) + 2 + 1 + 4
    wire = 1000 + 28 + 14 + 24
    for line in lines[1:4]:
        excess, same, alternating, _ = map(float, line.split())
        # A system call that fails moves the clock by a microsecond, and a load makes some: packets are late by as much.
        assert excess < 1.1 * wire
        assert same == pytest.approx(1, rel=0.01)
        # A packet has the rate of the moment at which it was queued. Of many a millisecond the mean would lie between
        # the harmonic and the arithmetic, 2/3 and 3/4; the slowest flow sends about one.
        assert 0.55 < alternating < 0.85
    assert float(lines[4]) < 3 * 1.1 * wire


IPERF = r"""
import fcntl, json
from controller.nic.ebpf import EbpfNic
# Without entropy the kernel would look for some, and in virtual time for ever. RNDADDENTROPY.
fcntl.ioctl(os.open("/dev/urandom", os.O_WRONLY), 0x40085203, struct.pack("ii64s", 512, 64, bytes(range(64))))
# iperf3 polls its sockets while it waits, and in virtual time a poll takes none: each is to take 20 us and a timer's slack.
open("/tmp/poll.c", "w").write('''
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/select.h>
#include <time.h>
int select(int count, fd_set *in, fd_set *out, fd_set *other, struct timeval *limit)
{
    static int (*real)(int, fd_set *, fd_set *, fd_set *, struct timeval *);
    struct timespec cost = { 0, 20000 };
    if (!real)
        real = dlsym(RTLD_NEXT, "select");
    nanosleep(&cost, 0);
    return real(count, in, out, other, limit);
}
''')
sh("gcc -O2 -shared -fPIC -o /tmp/poll.so /tmp/poll.c")
LINE_BPS = 2e8
SECONDS = 1  # iperf3 takes whole ones
environment = {**os.environ, "LD_PRELOAD": "/tmp/poll.so"}
assert not incastfree(*LOAD, "--link-gbps", LINE_BPS / 1e9)[0]
nic = EbpfNic.attach("eth0")
_, steps = nic.read_rates()
numbers = struct.unpack("<1024I", steps)
scaled = [struct.pack("<1024I", *(int(number * factor) for number in numbers)) for factor in (0.88, 0.92)]
for what, tables, share in (("same", [steps], 1.0), ("alternating", scaled, 0.9)):
    nic.write_rates(tables[0])
    servers = [
        subprocess.Popen(["ip", "netns", "exec", "peer", "iperf3", "-s", "-1", "-B", f"10.9.0.{n}"], env=environment, stdout=-3)
        for n in (2, 3, 4)
    ]
    time.sleep(0.5)
    capture = Capture()
    clients = [
        subprocess.Popen(
            ["iperf3", "-J", "-c", f"10.9.0.{n}", "-t", str(SECONDS), *OPTIONS], env=environment, stdout=subprocess.PIPE, text=True
        )
        for n in (2, 3, 4)
    ]
    begin, count = time.monotonic(), 0
    while time.monotonic() < begin + SECONDS:
        nic.write_rates(tables[count % len(tables)])
        count += 1
        time.sleep(max(0, begin + count / 1000 - time.monotonic()))
    results = [json.loads(client.communicate()[0]) for client in clients]
    for server in servers:
        server.wait()
    rows = [row for row in capture.end() if row[1] in ("10.9.0.2", "10.9.0.3", "10.9.0.4")]
    # Of the run what is left without its start, where TCP looks for its window, and its end.
    first, last = begin * 1e9 + 0.2e9, begin * 1e9 + (SECONDS - 0.05) * 1e9
    inside = [row for row in rows if first < row[0] < last]
    def rate(some):
        return sum(row[2] for row in some[1:]) * 8e9 / (some[-1][0] - some[0][0])
    bursts = 0
    for n, part in ((2, 1 / 7), (3, 2 / 7), (4, 4 / 7)):
        address = f"10.9.0.{n}"
        got = rate([row for row in inside if row[1] == address]) / (LINE_BPS * part * share)
        own = [row for row in rows if row[1] == address]
        largest = max(row[2] for row in own)
        bursts += largest
        highest = part * (0.92 if share < 1 else 1) * 1.00001
        say("line", f"{what} {address} {got:.5f} {excess_bytes(own, LINE_BPS / 8e9 * highest) / largest:.4f} {largest}")
    over = excess_bytes(rows, LINE_BPS / 8e9 * 1.00001) / bursts
    say("line", f"{what} port {rate(inside) / LINE_BPS:.5f} {over:.4f} {count}")
    again = sum(result["end"].get("sum_sent", {}).get("retransmits", 0) for result in results)
    say("line", f"{what} iperf3 {' '.join(result.get('error', 'good') for result in results)} {again}")
say("line", sh("tc -s qdisc show dev eth0 root").split("dropped ")[1].split(",")[0])
"""


@pytest.mark.parametrize("transport", ["udp", "tcp", "tcp-gso"])
def test_iperf3(guest: Callable[[str], list[str]], transport: str) -> None:
    """Three peers get R within 1 %, the port no more than its line rate, while rates are rewritten 1,000 times a second."""
    if shutil.which("iperf3") is None:
        pytest.skip("needs iperf3: apt-get install iperf3")
    options = {"udp": ["-u", "-b", "0", "-l", "1448"], "tcp": [], "tcp-gso": []}[transport]
    segments = "" if transport == "tcp-gso" else 'sh("ip link set eth0 gso_max_segs 1")\n'
    lines = guest(PREPARE + CAPTURE + segments + f"OPTIONS = {options}\n" + IPERF)
    print("\n".join(lines))
    assert lines[-1] == "0"  # fq has dropped nothing
    assert len(lines) == 11
    for line in lines[:-1]:
        what, whom, *numbers = line.split()
        if whom == "iperf3":
            assert numbers == ["good"] * 3 + ["0"], line  # nothing was sent again
            continue
        share, excess = float(numbers[0]), float(numbers[1])
        # In packets, or in segments that leave as one. TCP's own pacing may put off a packet into the time of the next.
        assert excess < (1.1 if transport == "udp" else 2), line
        if whom == "port":
            # A segment more may fall into the time that is looked at; what any time may hold is `excess`.
            assert share == pytest.approx(1 if what == "same" else 0.9, abs=0.01), line
            assert excess < 1, line
            assert int(numbers[2]) >= 990, line
        elif what == "alternating" and transport == "tcp-gso":
            # A segment takes several milliseconds, at the rate of the one in which it was queued: 2.2 % off at most.
            assert share == pytest.approx(1, abs=0.023), line
        else:
            assert share == pytest.approx(1, abs=0.01), line
