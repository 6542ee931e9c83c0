"""Records tests/vectors from BMv2: ``.venv/bin/python scripts/record-vectors.py --date 2026-11-30``.

Scapy makes the packets and writes the captures. BMv2 (INCASTFREE_BMV2 or the PATH) runs in the virtual stage, so that its
queues see every burst at the very times that in.pcap says; the kernel fabric gets the same, and whatever it does otherwise
must have its reason here: one that is missing, or that has become idle, ends the recording.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scapy import VERSION as SCAPY_VERSION
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet as ScapyPacket
from scapy.packet import Raw
from scapy.utils import PcapWriter

from testbed.fabric.bmv2 import PROGRAM
from testbed.fabric.tables import mix32
from testbed.net import HOST_MAC, host_address
from testbed.stage.virtual.machine import VirtualMachine, work_folder
from tests.vectors import bmv2_switch, vectors
from tests.vectors.vectors import HOSTS_PER_LEAF, MTU_BYTES, PATH_SALT, SERVICE_NS, Case, Observed, Packet

MAC = HOST_MAC.hex(":")
ENTROPY_PORT, FRAME_PORT, MAGIC = 49152, 4793, 0x49465249
NOT_ECT, ECT_1, ECT_0, CE = range(4)
GAP_NS = 100_000
"""Between the packets of a burst: a hundredth of what one takes to be served."""
DATA_BYTES, CONTROL_BYTES = MTU_BYTES, 64

SERVICE_START = (
    "BMv2 takes a packet out of its queue when it begins to serve it, the kernel fabric when it has served it: the packet "
    "that finds the port idle leaves nothing behind on BMv2, and on the kernel fabric what came while it was served"
)
BYTES = "BMv2's queues count packets, the kernel fabric's bytes"
CHARGED = (
    "the kernel fabric charges a header that has passed to the data after it, BMv2's priorities have rates of their own"
)
ONE_PACKET = "P4 cannot see whether a packet is in service, so that a limit of one packet is as one of two on BMv2"
CONTROL_LIMIT = (
    "the kernel fabric limits control to twice the queue, in bytes; on BMv2 only the depth of its queue does"
)
PADDED = "the kernel fabric fills a packet up to 46 bytes before it hashes, BMv2 hashes no ports that are cut off"
ANY_MAGIC = "the kernel fabric knows a frame of the engine by its magic number alone, the P4 program by its port too"


def frame(source: int, destination: int, *, entropy: int = 0, psn: int = 0, ip: dict[str, Any] | None = None,
          port: int = FRAME_PORT, wire_bytes: int = DATA_BYTES, ecn: int = ECT_0, cut: int = 86) -> bytes:  # fmt: skip
    """A frame of the engine (ebpf/include/frame.h). Hosts count from 1."""
    transport = struct.pack(">I", psn) + struct.pack("<QIBBBBQQII", 0, MAGIC, 0, 0, 1, 0, 0, 0, 0, 0)
    layers = (
        Ether(src=MAC, dst=MAC)
        / network_layer(source, destination, **{"tos": ecn, "len": wire_bytes - 14, **(ip or {})})
        / UDP(sport=ENTROPY_PORT + entropy, dport=port, len=wire_bytes - 34, chksum=0)
        / Raw(transport)
    )
    return bytes(layers)[:cut]


def network_layer(source: int, destination: int | str, **fields: Any) -> ScapyPacket:
    """IPv4 from one host to another, or to an address."""
    address = destination if isinstance(destination, str) else host_address(destination - 1)
    return IP(src=host_address(source - 1), dst=address, id=7, **fields)


def real(source: int, destination: int | str, payload: ScapyPacket, **fields: Any) -> bytes:
    """What a program would send."""
    return bytes(Ether(src=MAC, dst=MAC) / network_layer(source, destination, **fields) / payload)


def datagram(source: int, destination: int, *, wire_bytes: int = DATA_BYTES, sport: int = 40000, cut: int = 60,
             **fields: Any) -> bytes:  # fmt: skip
    """UDP of a length, of which the capture has the first bytes, as with a snap length."""
    return real(source, destination, UDP(sport=sport, dport=7000) / Raw(bytes(wire_bytes - 42)), **fields)[:cut]


def spine_of(packet: bytes, switch: int) -> int:
    """Which spine, from 1, the kernel's rule sends a packet of leaf ``switch`` through (ebpf/fabric/switch.h)."""
    source, destination, ports = struct.unpack_from(">III", packet, 26)
    base = 0x0A000001
    salt = mix32(PATH_SALT ^ switch)
    words = salt + (source - base) * 0x9E3779B1 + (destination - base) * 0x85EBCA77 + ports * 0xC2B2AE3D
    return 1 + (mix32(words & 0xFFFFFFFF) * HOSTS_PER_LEAF >> 32)


def through(spine: int, switch: int, source: int, destination: int, count: int, **keys: Any) -> list[bytes]:
    """Frames whose entropy leads them through one spine."""
    found = (
        frame(source, destination, entropy=entropy % 64, psn=entropy, **keys)
        for entropy in range(10**4)
        if spine_of(frame(source, destination, entropy=entropy % 64), switch) == spine
    )
    return [next(found) for _ in range(count)]


class Book:
    """The cases, in their order, with the reasons of differences."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self.reasons: list[str] = []

    def add(self, group: str, name: str, packets: Iterable[bytes | tuple[float, bytes]], *, host: int = 2,
            ingress: int | None = None, reason: str = "", **settings: Any) -> None:  # fmt: skip
        """``packets``: frames, a gap apart, or with the time of each in services of a full packet."""
        timed = [
            item if isinstance(item, tuple) else (place * GAP_NS / SERVICE_NS, item)
            for place, item in enumerate(packets)
        ]
        port = ingress or host
        defaults = {"queue_packets": 0, "trimming": True, "kmin_packets": 0, "kmax_packets": 0, "marking": 1}
        sent = tuple(Packet(port, round(at * SERVICE_NS), packet) for at, packet in timed)
        self.cases.append(Case(name, group, port, host - 1, **{**defaults, **settings}, packets=sent))
        self.reasons.append(reason)


def forwarding(book: Book) -> None:
    """To each host of the leaf, from hosts and spines; time to live, lengths, protocols."""
    for host in range(1, 5):
        other = host % 4 + 1
        book.add("forward", f"frame to h{host}", [frame(other, host, psn=host)], host=other)
        book.add("forward", f"datagram to h{host}", [datagram(other, host, wire_bytes=200)], host=other)
    book.add("forward", "back to where it came from", [frame(3, 3)], host=3)
    for spine in range(1, 5):
        book.add(
            "forward",
            f"from spine{spine}",
            through(spine, 1, 6, spine, 1, wire_bytes=200),
            host=6,
            ingress=HOSTS_PER_LEAF + spine,
        )
    for ttl in (0, 1, 2, 64, 255):
        book.add("ttl", f"time to live {ttl}", [frame(2, 4, ip={"ttl": ttl})])
        book.add("ttl", f"time to live {ttl}, to a spine", [datagram(2, 7, wire_bytes=100, ttl=ttl)])
    book.add("real", "datagram without payload", [datagram(2, 3, wire_bytes=42)])
    book.add("real", "datagram of full size", [datagram(2, 3, cut=DATA_BYTES)])
    book.add("real", "TCP SYN", [real(2, 3, TCP(sport=1025, dport=80, flags="S", seq=1))])
    book.add("real", "TCP with data", [real(2, 3, TCP(sport=1025, dport=80) / Raw(b"data" * 300))])
    book.add("real", "ICMP echo", [real(2, 3, ICMP(id=5) / Raw(bytes(56)))])
    book.add("real", "expedited forwarding", [datagram(2, 3, wire_bytes=200, tos=46 << 2)])
    book.add("real", "a wrong checksum stays wrong", [datagram(2, 3, wire_bytes=200, chksum=0x1234)])
    book.add("real", "source that is no host", [datagram(250, 3, wire_bytes=200)])


def paths(book: Book) -> None:
    """The uplink that each packet takes."""
    for number in range(24):
        source, destination, entropy = 1 + number % 4, 5 + number * 7 % 4, number * 37 % 64
        book.add(
            "ecmp", f"h{source} to h{destination}, entropy {entropy}",
            [frame(source, destination, entropy=entropy, psn=number)], host=source,
        )  # fmt: skip
    for number in range(6):
        sport, dport = 1024 + 9973 * number, (53, 80, 443, 4791, 5001, 65535)[number]
        book.add(
            "ecmp",
            f"datagram, ports {sport} and {dport}",
            [real(3, 8, UDP(sport=sport, dport=dport) / Raw(bytes(90)))],
            host=3,
        )
        book.add(
            "ecmp",
            f"TCP, ports {sport} and {dport}",
            [real(3, 8, TCP(sport=sport, dport=dport) / Raw(bytes(90)))],
            host=3,
        )
    for number in range(3):
        book.add("ecmp", f"ICMP echo to h8, id {number}", [real(4, 8, ICMP(id=number) / Raw(bytes(56)))], host=4)
    book.add("ecmp", "later fragment", [real(4, 8, Raw(bytes(range(64))), proto=17, frag=100)], host=4)
    book.add("ecmp", "protocol 132", [real(4, 8, Raw(bytes(range(64))), proto=132)], host=4)
    book.add("ecmp", "one flow keeps to one path", [datagram(4, 6, wire_bytes=100)] * 3, host=4)
    cut = real(4, 8, Raw(b"\x12\x34"), proto=17)
    book.add("ecmp", "two bytes behind the IPv4 header", [cut], host=4, reason=PADDED)


def foreign(book: Book) -> None:
    """What is not IPv4 without options to a host is dropped, and counted where it came in."""
    packets = {
        "ARP": bytes(Ether(src=MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(psrc="10.0.0.2", pdst="10.0.0.3")),
        "IPv6": bytes(
            Ether(src=MAC, dst=MAC) / IPv6(src="fd00::2", dst="fd00::3") / UDP(sport=1, dport=2) / Raw(bytes(30))
        ),
        "VLAN tag": bytes(Ether(src=MAC, dst=MAC) / Dot1Q(vlan=5) / network_layer(2, 3) / UDP() / Raw(bytes(30))),
        "LLDP": bytes(Ether(src=MAC, dst="01:80:c2:00:00:0e", type=0x88CC) / Raw(bytes(60))),
        "802.3 length": bytes(Ether(src=MAC, dst=MAC, type=50) / Raw(bytes(50))),
        "IPv4 with options": real(2, 3, UDP(sport=1, dport=2) / Raw(bytes(30)), options=[IPOption_NOP()] * 4),
        "IP version 5": real(2, 3, UDP(sport=1, dport=2) / Raw(bytes(30)), version=5),
        "IP version 6 in IPv4": real(2, 3, UDP(sport=1, dport=2) / Raw(bytes(30)), version=6),
        "header length 4": real(2, 3, UDP(sport=1, dport=2) / Raw(bytes(30)), ihl=4),
        "Ethernet header alone": bytes(Ether(src=MAC, dst=MAC, type=0x0800)),
        "IPv4 header cut off": datagram(2, 3)[:30],
        "address beyond the last host": real(2, "10.0.0.9", UDP(sport=1, dport=2) / Raw(bytes(30))),
        "address before the first host": real(2, "10.0.0.0", UDP(sport=1, dport=2) / Raw(bytes(30))),
        "another network": real(2, "192.0.2.3", UDP(sport=1, dport=2) / Raw(bytes(30))),
        "multicast": real(2, "224.0.0.1", UDP(sport=1, dport=2) / Raw(bytes(30))),
        "broadcast": real(2, "255.255.255.255", UDP(sport=1, dport=2) / Raw(bytes(30))),
    }
    for name, packet in packets.items():
        book.add("foreign", name, [packet])
    book.add("foreign", "control to nowhere", [real(2, "10.0.0.9", UDP() / Raw(bytes(30)), tos=48 << 2)])
    book.add("foreign", "several", [packets["ARP"], packets["IPv6"], packets["multicast"]], host=3)


def control(book: Book) -> None:
    """From DSCP 48 on packets pass a queue of data, full or not."""
    burst = [frame(2, 1, psn=n) for n in range(4)]
    for dscp in (0, 46, 47, 48, 50, 63):
        late = datagram(2, 1, wire_bytes=CONTROL_BYTES, tos=dscp << 2)
        book.add("control", f"DSCP {dscp} behind data", [*burst, late])
    for dscp in (47, 48, 63):
        late = datagram(2, 1, wire_bytes=DATA_BYTES if dscp < 48 else CONTROL_BYTES, tos=dscp << 2)
        book.add("control", f"DSCP {dscp} meets a full queue", [*burst, late], queue_packets=4)
    acks = [frame(2, 1, psn=n, ip={"tos": 48 << 2}, wire_bytes=CONTROL_BYTES) for n in range(5)]
    book.add("control", "ACKs keep their order", [*burst, *acks], queue_packets=4)
    book.add("control", "control alone", acks)
    uplink = through(1, 0, 2, 7, 4)
    late = through(1, 0, 2, 7, 1, ip={"tos": 48 << 2}, wire_bytes=CONTROL_BYTES)
    book.add("control", "uplink, full", [*uplink, *late], queue_packets=4)
    flood = [datagram(2, 1, sport=n, tos=48 << 2) for n in range(10)]
    book.add("control", "more control than room", flood, queue_packets=4, reason=CONTROL_LIMIT)


def trimming(book: Book) -> None:
    """Bursts into queues of n packets: which are cut, and what is left of them."""
    burst = [frame(2, 1, psn=n, entropy=n) for n in range(12)]
    for limit in (2, 3, 4, 8, 11, 12):
        book.add("trim", f"{limit} of 12", burst, queue_packets=limit)
    book.add("trim", "one of 12", burst, queue_packets=1, reason=ONE_PACKET)
    book.add("trim", "unlimited", burst)
    book.add("trim", "uplink, 4 of 8", through(1, 0, 2, 7, 8), queue_packets=4)
    for name, ecn in (("not ECT", NOT_ECT), ("ECT(1)", ECT_1), ("CE", CE)):
        book.add("trim", f"{name} is cut as well", [frame(2, 1, psn=n, ecn=ecn) for n in range(6)], queue_packets=4)
    keys = {"dscp": {"tos": 10 << 2 | ECT_0}, "time to live": {"ttl": 3}, "flags": {"flags": "DF"}}
    for name, ip in keys.items():
        book.add("trim", f"of the {name}", [frame(2, 1, psn=n, ip=ip) for n in range(4)], queue_packets=2)
    refill = [(n / 100, frame(2, 1, psn=n)) for n in range(4)]
    refill += [(at, frame(2, 1, psn=psn)) for psn, at in enumerate((0.5, 1.2, 1.3, 3.5, 3.6, 3.7), 4)]
    book.add("trim", "room as packets leave", refill, queue_packets=4)
    tight = [(n / 100, frame(2, 1, psn=n)) for n in range(5)] + [(1.005, frame(2, 1, psn=5))]
    book.add("trim", "room less a header", tight, queue_packets=4, reason=CHARGED)
    book.add("trim", "real packets are dropped", [datagram(2, 1, sport=n) for n in range(8)], queue_packets=4)
    book.add(
        "trim", "real TCP is dropped", [real(2, 1, TCP(sport=n) / Raw(bytes(4042))) for n in range(3)], queue_packets=2
    )
    mixed = [frame(2, 1, psn=n) if n % 2 else datagram(2, 1, sport=n) for n in range(10)]
    book.add("trim", "both kinds", mixed, queue_packets=4)
    idle = [(0, frame(2, 1)), *((2.5 + n / 100, frame(2, 1, psn=n)) for n in range(1, 7))]
    book.add("trim", "idle in between", idle, queue_packets=3)
    book.add("trim", "other ports do not count", [*burst[:6], *(frame(2, 3, psn=n) for n in range(6))], queue_packets=4)
    short = [frame(2, 1, psn=n, wire_bytes=1024) for n in range(8)]
    book.add("trim", "short packets", short, queue_packets=4, reason=BYTES)
    other = [frame(2, 1, psn=n, port=4791) for n in range(6)]
    book.add("trim", "the magic number behind another port", other, queue_packets=4, reason=ANY_MAGIC)
    half = [frame(2, 1, psn=n, cut=70) for n in range(6)]
    book.add("trim", "half a transport header, dropped", half, queue_packets=4)
    for name, packets in (("frames", burst[:8]), ("datagrams", [datagram(2, 1, sport=n) for n in range(8)])):
        book.add("drop", f"{name}, 4 of 8", packets, queue_packets=4, trimming=False)
    book.add("drop", "none, 8 of 8", burst[:8], queue_packets=8, trimming=False)


def marking(book: Book) -> None:
    """By what a packet leaves behind: nothing up to kmin, all above kmax, in between by a hash."""
    between = {"kmin_packets": 2, "kmax_packets": 20}
    step = {"kmin_packets": 2, "kmax_packets": 2}
    low = {"kmin_packets": 1, "kmax_packets": 4}

    def datagrams(count: int, ecn: int) -> list[bytes]:
        return [datagram(2, 1, sport=n, tos=ecn) for n in range(count)]

    book.add("ecn", "off", datagrams(8, ECT_0))
    book.add("ecn", "below kmin", datagrams(3, ECT_0), **between)
    book.add("ecn", "between", datagrams(14, ECT_0), **between)
    book.add("ecn", "between, longer", datagrams(20, ECT_0), **between)
    book.add("ecn", "uplink, between", through(1, 0, 2, 7, 14), **between, marking=5)
    book.add("ecn", "uplink, below", through(1, 0, 2, 7, 3), **between, marking=5)
    for name, ecn in (("not ECT", NOT_ECT), ("ECT(1)", ECT_1), ("CE stays", CE)):
        book.add("ecn", f"{name}, between", datagrams(10, ecn), **between)
    book.add("ecn", "above kmax", datagrams(10, ECT_0), **low, reason=SERVICE_START)
    book.add("ecn", "uplink, above kmax", through(1, 0, 2, 7, 10), **low, reason=SERVICE_START, marking=5)
    book.add("ecn", "one threshold", datagrams(8, ECT_0), **step, reason=SERVICE_START)
    book.add("ecn", "exactly kmin behind", datagrams(3, ECT_0), **step)
    for name, ecn in (("not ECT", NOT_ECT), ("ECT(1)", ECT_1), ("CE stays", CE)):
        book.add("ecn", f"{name}, above kmax", datagrams(8, ecn), **low, reason=SERVICE_START)
    mixed = [datagram(2, 1, sport=n, tos=ECT_0 if n % 2 else NOT_ECT) for n in range(10)]
    book.add("ecn", "every other one", mixed, **low, reason=SERVICE_START)
    book.add(
        "ecn",
        "control is not marked",
        [*datagrams(3, ECT_0), datagram(2, 1, wire_bytes=64, tos=48 << 2 | ECT_0)],
        **step,
    )
    book.add("ecn", "DSCP stays", [datagram(2, 1, sport=n, tos=10 << 2 | ECT_0) for n in range(14)], **between)
    wrong = [datagram(2, 1, sport=n, tos=NOT_ECT, chksum=0x1234) for n in range(14)]
    book.add("ecn", "a wrong checksum stays wrong", wrong, **between)
    apart = [(1.1 * n, datagram(2, 1, sport=n, tos=ECT_0)) for n in range(5)]
    book.add("ecn", "packets apart", apart, **low)
    slow = [datagram(2, 1, sport=n, tos=ECT_0, wire_bytes=1024) for n in range(8)]
    book.add("ecn", "short packets", slow, **low, reason=BYTES)
    book.add("ecn", "marked and trimmed", through(1, 0, 2, 7, 12), queue_packets=10, **between, marking=5)


def in_guest(cases: list[Case], call: str) -> list[Observed]:
    """Runs the cases in the virtual stage."""
    with work_folder() as work:
        (work / "given.json").write_text(vectors.encode_cases(cases))
        (work / "script.py").write_text(
            "import json\n"
            "from pathlib import Path\n"
            "from tests.vectors import bmv2_switch, kernel_switch, vectors\n"
            "cases = vectors.decode_cases((WORK / 'given.json').read_text())\n"
            f"(WORK / 'came.json').write_text(json.dumps({call}))\n"
        )
        machine = VirtualMachine(work, memory_mib=512, cpu=None)
        machine.run("script", lambda *_: None, limit_s=600)
        return [vectors.observed_of(value) for value in json.loads((work / "came.json").read_text())]


class Capture:
    """A pcap in nanoseconds."""

    def __init__(self, path: Path) -> None:
        self._writer = PcapWriter(str(path), nano=True, linktype=1, endianness="<")
        self._written = 0

    def write(self, packet: Packet, epoch_ns: int) -> int:
        """Returns the packet's place."""
        seconds, nanoseconds = divmod(epoch_ns + packet.time_ns, 10**9)
        if not self._written:
            self._writer.write_header(None)
        self._writer.write_packet(packet.frame, sec=seconds, usec=nanoseconds)
        self._written += 1
        return self._written - 1

    def close(self) -> None:
        """To the disk."""
        self._writer.close()


def main() -> int:
    """Records all cases."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--date", required=True, help="of the recording, as it is to stand in its provenance")
    parser.add_argument("--dry", action="store_true", help="say what differs, write nothing")
    arguments = parser.parse_args()
    program = bmv2_switch.find()
    if program is None:
        print(bmv2_switch.NEEDED, file=sys.stderr)
        return 1
    book = Book()
    for chapter in (forwarding, paths, foreign, control, trimming, marking):
        chapter(book)
    names = [(case.group, case.name) for case in book.cases]
    assert len(set(names)) == len(names), sorted({name for name in names if names.count(name) > 1})
    bmv2 = in_guest(book.cases, f"bmv2_switch.run(cases, Path({str(program)!r}))")
    kernel = in_guest(book.cases, "kernel_switch.run(cases)")

    wrong = 0
    for case, reason, one, other in zip(book.cases, book.reasons, bmv2, kernel, strict=True):
        found = vectors.disagreements(one, other)
        if bool(found) != bool(reason):
            wrong += 1
            print(
                f"{case.group}, {case.name}: " + ("\n    ".join(["", *found]) or "no difference any more"),
                file=sys.stderr,
            )
    if wrong or arguments.dry:
        print(f"{len(book.cases)} cases, {wrong} of them not as said: nothing was written", file=sys.stderr)
        return 1

    given, came = Capture(vectors.IN_PCAP), Capture(vectors.OUT_PCAP)
    entries, first = [], 0
    for number, (case, reason, one, other) in enumerate(zip(book.cases, book.reasons, bmv2, kernel, strict=True)):
        epoch_ns = vectors.case_epoch_ns(number)
        for packet in case.packets:
            given.write(packet, epoch_ns)

        def side(observed: Observed, epoch_ns: int = epoch_ns) -> dict[str, Any]:
            out = [[packet.port, came.write(packet, epoch_ns)] for packet in observed.out]
            return {"out": out, "counters": observed.counters}

        settings = {name: value for name, value in case.__dict__.items() if name != "packets"}
        entry = {**settings, "in": [first, len(case.packets)], "bmv2": side(one)}
        if reason:
            entry |= {"difference": reason, "kernel": side(other)}
        first += len(case.packets)
        entries.append(entry)
    given.close()
    came.close()
    provenance = {
        "recorded": arguments.date,
        "bmv2": bmv2_switch.version(program),
        "scapy": SCAPY_VERSION,
        "program_sha256": hashlib.sha256(PROGRAM.read_bytes()).hexdigest(),
        **json.loads(PROGRAM.with_name("provenance.json").read_text()),
    }
    lines = ",\n  ".join(json.dumps(entry) for entry in entries)
    vectors.CASES.write_text(
        f'{{\n "provenance": {json.dumps(provenance, indent=1)},\n "cases": [\n  {lines}\n ]\n}}\n'
    )
    print(f"{len(entries)} cases, {sum(bool(reason) for reason in book.reasons)} of them with a difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
