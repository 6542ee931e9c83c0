"""What the tests of the pacer on an interface share: a guest with eth0, whose other end is the namespace peer."""

from __future__ import annotations

PREPARE = """
import contextlib, io, os, socket, struct, subprocess, sys, time
from testbed.stage.console import say
from pathlib import Path
from controller.cli.main import main
from controller.nic.rtnetlink import RtNetlink

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
        qdiscs = netlink._all_qdiscs(socket.if_nametoindex(interface))
    files = sorted(str(path) for top in ("/sys/fs/bpf", "/run") for path in Path(top).rglob("*"))
    hooks = sh(f"tc filter show dev {interface} egress; tc filter show dev {interface} ingress")
    return str(sorted(map(str, qdiscs))), hooks, str([file for file in files if not file.startswith("/run/work/")])

LOAD = ["load", "/tmp/d.csv", "--unit", "wire-bytes", "--dev", "eth0", "--rank", 0, "--peers", "/tmp/peers.toml"]
"""
