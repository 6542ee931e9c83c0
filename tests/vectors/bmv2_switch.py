"""BMv2 under the cases. Runs in the virtual stage, as root: there a burst arrives at once, however busy the machine is."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from testbed.fabric.bmv2 import PROGRAM
from testbed.fabric.tables import OnePort
from tests.vectors.vectors import MARK_SALT, MTU_BYTES, SERVICE_NS, SLOW_PORTS, Case, network
from tests.vectors.wires import Tap, play

NEEDED: Final = (
    "needs BMv2: put simple_switch_grpc on the PATH, or its place into INCASTFREE_BMV2 (packages of the p4lang project, or "
    "built from github.com/p4lang/behavioral-model)"
)
_THRIFT_PORT: Final = 9090
_STARTS_S: Final = 30
_CONTROL_BYTES: Final = 64
_DATA, _CONTROL = 0, 1
_PRIORITIES: Final = 2
_ANY_DEPTH: Final = 1000
_FIRST_ADDRESS: Final = 0x0A000001
_INGRESS: Final = "FabricIngress."
_COUNTERS: Final = ("trims", "drops", "marks", "control_packets", "FabricIngress.forward.foreign")
_REGISTERS: Final = ("data_in", "data_out", "queue_limit", "ecn_kmin", "ecn_kmax")


def find() -> Path | None:
    """simple_switch_grpc, where it is."""
    program = os.environ.get("INCASTFREE_BMV2") or shutil.which("simple_switch_grpc")
    return Path(program) if program else None


def environment(program: Path) -> dict[str, str]:
    """A switch that was built outside the system brings its libraries along."""
    return {**os.environ, "LD_LIBRARY_PATH": f"{program.resolve().parent.parent / 'lib'}"}


def version(program: Path) -> str:
    """As it says itself."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, env=environment(program))
    return said.stdout.split("\n")[0].strip()


class _Thrift:
    """The switch's own runtime interface: BMv2 has no other for queues and registers."""

    def __init__(self, program: Path) -> None:
        # After our own packages: there are others of BMv2's beside them.
        sys.path += [
            str(path) for path in sorted((program.resolve().parent.parent / "lib").glob("python3*/*-packages"))
        ]
        ttypes = importlib.import_module("bm_runtime.standard.ttypes")
        transport = importlib.import_module("thrift.transport.TTransport")
        protocol = importlib.import_module("thrift.protocol.TMultiplexedProtocol")
        self._ttypes = ttypes
        self._buffered = transport.TBufferedTransport(
            importlib.import_module("thrift.transport.TSocket").TSocket("127.0.0.1", _THRIFT_PORT)
        )
        binary = importlib.import_module("thrift.protocol.TBinaryProtocol").TBinaryProtocol(self._buffered)
        self.standard = importlib.import_module("bm_runtime.standard.Standard").Client(
            protocol.TMultiplexedProtocol(binary, "standard")
        )
        self.queues = importlib.import_module("sswitch_runtime.SimpleSwitch").Client(
            protocol.TMultiplexedProtocol(binary, "simple_switch")
        )

    def open(self) -> None:
        """Waits until the switch listens."""
        for _ in range(10 * _STARTS_S):
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", _THRIFT_PORT)):
                self._buffered.open()  # only now, since it writes half a line about each refusal
                return
            time.sleep(0.1)
        raise TimeoutError(f"BMv2 does not listen on 127.0.0.1:{_THRIFT_PORT}")

    def add(self, table: str, key: int, action: str, *parameters: bytes) -> None:
        """An entry with one exact key of 32 bits."""
        types = self._ttypes
        match = types.BmMatchParam(type=types.BmMatchParamType.EXACT, exact=types.BmMatchParamExact(_word(key)))
        name = f"{_INGRESS}forward."
        self.standard.bm_mt_add_entry(
            0, name + table, [match], name + action, list(parameters), types.BmAddEntryOptions(priority=0)
        )

    def set_identity(self, path_salt: int, mark_salt: int, trimming: bool) -> None:
        """The salts, and whether it trims."""
        name = f"{_INGRESS}forward."
        parameters = [_word(path_salt), _word(mark_salt), bytes([trimming])]
        self.standard.bm_mt_set_default_action(0, f"{name}identity", f"{name}set_identity", parameters)


def _word(value: int) -> bytes:
    return (value & 0xFFFFFFFF).to_bytes(4, "big")


class Bmv2Switch:
    """A switch with the fabric's program and the tables of leaf1."""

    def __init__(self, program: Path) -> None:
        _, self._wiring, self._leaf = network()
        numbers = range(1, len(self._leaf.ports) + 1)
        for number in numbers:
            for command in (
                f"link add s{number} mtu 9000 type veth peer name t{number} mtu 9000",
                f"link set s{number} up arp off",
                f"link set t{number} up arp off",
            ):
                subprocess.run(["ip", *command.split()], check=True)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        time.sleep(1)
        interfaces = [word for number in numbers for word in ("-i", f"{number}@s{number}")]
        options = ["--grpc-server-addr", "127.0.0.1:9559", "--priority-queues", str(_PRIORITIES)]
        self._process = subprocess.Popen(
            [str(program), *interfaces, "--thrift-port", str(_THRIFT_PORT), str(PROGRAM), "--", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(program),
        )
        self._taps = {number: Tap(f"t{number}") for number in numbers}
        self._thrift = thrift = _Thrift(program)
        thrift.open()
        number_of = self._leaf.number_of
        for place, port in enumerate(self._leaf.members):
            thrift.add("members", place, "forward", number_of(port).to_bytes(2, "big"))
        for host, way in self._leaf.routes.items():
            if isinstance(way, OnePort):
                thrift.add("route", _FIRST_ADDRESS + host, "forward", number_of(way.port).to_bytes(2, "big"))
            else:
                thrift.add("route", _FIRST_ADDRESS + host, "spread", _word(way.first), _word(way.ways))
        for port in SLOW_PORTS:
            # BMv2 counts packets: data as if full, control as if headers alone.
            data_pps = 10**9 // SERVICE_NS
            thrift.queues.set_egress_priority_queue_rate(port, _DATA, data_pps)
            thrift.queues.set_egress_priority_queue_rate(port, _CONTROL, data_pps * MTU_BYTES // _CONTROL_BYTES)
            for priority in (_DATA, _CONTROL):
                # More than any case needs: the program has a limit of its own, and counts what finds it reached.
                thrift.queues.set_egress_priority_queue_depth(port, priority, _ANY_DEPTH)

    def close(self) -> None:
        """Ends the switch."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def run(self, case: Case) -> dict[str, Any]:
        """One case, on registers and counters that have forgotten all others."""
        standard = self._thrift.standard
        for name in _REGISTERS:
            standard.bm_register_reset(0, name)
        for name in _COUNTERS:
            standard.bm_counter_reset_all(0, name)
        # The kernel draws marks by a port's index in the whole fabric.
        index = self._leaf.port_of(case.marking)
        self._thrift.set_identity(self._leaf.salt, MARK_SALT + index - case.marking, case.trimming)
        standard.bm_register_write(0, "ecn_kmin", 0, case.kmin_packets)
        standard.bm_register_write(0, "ecn_kmax", 0, case.kmax_packets)
        for port in SLOW_PORTS:
            standard.bm_register_write(0, "queue_limit", port, case.queue_packets)
        self._drain()
        began_ns = play(case, self._taps[case.ingress])
        if self._process.poll() is not None:
            raise RuntimeError(f"BMv2 ended with code {self._process.returncode} in case {case.name}")
        return {
            "out": [[port, time_ns - began_ns, frame.hex()] for port, time_ns, frame in self._drain()],
            "counters": self._counters(),
        }

    def _drain(self) -> list[tuple[int, int, bytes]]:
        return [(number, *captured) for number, tap in self._taps.items() for captured in tap.drain(outgoing=False)]

    def _counters(self) -> dict[str, dict[int, int]]:
        counted: dict[str, dict[int, int]] = {}
        for name in _COUNTERS:
            for port in self._taps:
                packets = self._thrift.standard.bm_counter_read(0, name, port).packets
                if packets:
                    counted.setdefault(name.rsplit(".", 1)[-1], {})[port] = packets
        return counted


def run(cases: list[Case], program: Path) -> list[dict[str, Any]]:
    """What each case gave."""
    switch = Bmv2Switch(program)
    try:
        return [switch.run(case) for case in cases]
    finally:
        switch.close()
