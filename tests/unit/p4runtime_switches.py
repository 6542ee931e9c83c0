"""What the tests of P4Runtime program, and what they program it with.

conftest.py has the switches as fixtures. It must not import this file before one is asked for: the bindings may be missing.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import pytest

from controller.errors import CannotRunError
from testbed.fabric.bmv2 import P4INFO
from testbed.fabric.bmv2.p4runtime import SwitchClient
from testbed.fabric.bmv2.pipeline import Entry, Pipeline
from testbed.fabric.tables import SwitchTables, fabric_tables
from testbed.topology import leaf_spine, wire

PATH_SALT, MARK_SALT = 0xDEADBEEF, 0x01020304


class Switch(Protocol):
    """What the tests program."""

    port: int

    def kill(self) -> None: ...


class Bmv2:
    """A simple_switch_grpc without interfaces, device 1."""

    def __init__(self, program: str, log: Path) -> None:
        self.port, thrift_port = free_port(), free_port()
        environment = dict(os.environ)
        libraries = Path(program).resolve().parent.parent / "lib"
        if libraries.is_dir():
            # Of an installation outside the system's folders.
            old = environment.get("LD_LIBRARY_PATH")
            environment["LD_LIBRARY_PATH"] = f"{libraries}:{old}" if old else str(libraries)
        command = [program, "--no-p4", "--device-id", "1", "--thrift-port", str(thrift_port)]
        command += ["--", "--grpc-server-addr", f"127.0.0.1:{self.port}"]
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=log.parent)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def connect(switch: Switch, pipeline: Pipeline, **options: Any) -> SwitchClient:
    return SwitchClient("leaf1", switch.port, pipeline, **options)


def leaf(hosts: int = 10, hosts_per_leaf: int = 4) -> SwitchTables:
    return fabric_tables(network(hosts, hosts_per_leaf), PATH_SALT).switches[0]


def network(hosts: int, hosts_per_leaf: int) -> Any:
    return wire(leaf_spine(hosts, hosts_per_leaf, Fraction(800), Fraction(1000), {}, {}))


def route(host: int, port: int = 1) -> Entry:
    return Entry("route", (0x0A000001 + host,), "forward", (port,))


def line_of(call: Callable[[], object]) -> str:
    """Of the CannotRunError that it ends in; the name and address that it begins with are checked, and cut off."""
    with pytest.raises(CannotRunError) as caught:
        call()
    line = str(caught.value)
    assert "\n" not in line
    match = re.fullmatch(r"leaf1 \(127\.0\.0\.1:\d+\): (.*)", line)
    assert match, line
    return match[1]


def altered(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    """A copy of the p4info with other text in it."""
    text = P4INFO.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "altered.p4info.txt"
    path.write_text(text)
    return path
