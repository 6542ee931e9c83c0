"""What the tests of the pacer on an interface share: a guest with eth0, whose other end is the namespace peer."""

from __future__ import annotations

PREPARE = """
import contextlib, io, os, socket, struct, subprocess, sys, time
from testbed.stage.console import say
from pathlib import Path
from controller.cli.main import main
from controller.nic.rtnetlink import ROOT, NetlinkError, Qdisc, RtNetlink

def sh(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(command + ": " + done.stderr)
    return done.stdout

def incastfree(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(w) for w in words])
        except SystemExit as error:
            code = error.code
    return code, out.getvalue(), err.getvalue()

sh("ip netns add peer; ip link add eth0 type veth peer name eth0 netns peer")
sh("ip addr add 10.9.0.1/24 dev eth0; ip link set eth0 up; ip link set lo up")
sh("ip -n peer link set eth0 up; ip -n peer link set lo up")
for last in (2, 3, 4):
    sh(f"ip -n peer addr add 10.9.0.{last}/24 dev eth0")
time.sleep(1)
open("/tmp/d.csv", "w").write("0,1000,2000,4000\\n0,0,0,0\\n0,0,0,0\\n0,0,0,0\\n")
open("/tmp/peers.toml", "w").write('0 = "10.9.0.1"\\n1 = "10.9.0.2"\\n2 = "10.9.0.3"\\n3 = "10.9.0.4"\\n')
def picture(interface):
    # All that a load could leave: qdiscs with their options, filters, pins, notes.
    with RtNetlink() as netlink:
        index = socket.if_nametoindex(interface)
        qdiscs = sorted(map(str, netlink._all_qdiscs(index)))
        hooks = [netlink.filters(index, egress=egress) for egress in (True, False)]
    files = sorted(str(path) for top in ("/sys/fs/bpf", "/run") for path in Path(top).rglob("*"))
    return str(qdiscs), str(hooks), str([file for file in files if not file.startswith("/run/work/")])

LOAD = ["load", "/tmp/d.csv", "--unit", "wire-bytes", "--dev", "eth0", "--rank", 0, "--peers", "/tmp/peers.toml"]
"""

CAPTURE = r"""
import ctypes, signal

class Capture:
    # What comes in at the other end of eth0: (ns, address, bytes on the wire), each as the kernel hands it over.
    def __init__(self):
        self.pid = os.fork()
        if self.pid:
            time.sleep(0.01)
            return
        ctypes.CDLL(None).setns(os.open("/run/netns/peer", os.O_RDONLY), 0)
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        sock.setsockopt(socket.SOL_SOCKET, 33, 1 << 28)  # SO_RCVBUFFORCE
        sock.setsockopt(263, 15, 1)  # SOL_PACKET, PACKET_VNET_HDR
        sock.bind(("eth0", 0))
        found = []
        def end(*_):
            with open("/tmp/capture", "w") as file:
                file.writelines(f"{t} {address} {wire}\n" for t, address, wire in found)
            os._exit(0)
        signal.signal(signal.SIGTERM, end)
        while True:
            data, sender = sock.recvfrom(70000)
            if sender[2] == 4:  # PACKET_OUTGOING
                continue
            now = time.monotonic_ns()
            kind, _, gso_bytes = struct.unpack_from("=xBHH", data)
            frame, segments = data[10:], 1
            tags = 0
            while frame[12 + tags : 14 + tags] in (b"\x81\x00", b"\x88\xa8"):
                tags += 4
            protocol, ip = frame[12 + tags : 14 + tags], frame[14 + tags :]
            if protocol == b"\x08\x00":
                address = socket.inet_ntop(socket.AF_INET, ip[16:20])
                headers = 14 + tags + 20 + (8 if ip[9] == 17 else (ip[32] >> 4) * 4)
            elif protocol == b"\x86\xdd":
                address, headers = socket.inet_ntop(socket.AF_INET6, ip[24:40]), 62 + tags
            else:
                continue
            if kind:
                segments = -(-(len(frame) - headers) // gso_bytes)
            wire = max(60, len(frame) + (segments - 1) * headers) + 24 * segments
            found.append((now, address, wire))

    def end(self):
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)
        rows = [line.split() for line in open("/tmp/capture")]
        return [(int(t), address, int(wire)) for t, address, wire in rows]

def excess_bytes(rows, bytes_per_ns):
    # By how much more came in, in any window of time, than the rate allows.
    sent, lowest, worst = 0, None, 0.0
    for t, _, wire in rows:
        here = sent - bytes_per_ns * t
        lowest = here if lowest is None else min(lowest, here)
        sent += wire
        worst = max(worst, sent - bytes_per_ns * t - lowest)
    return worst
"""
"""Follows PREPARE."""
