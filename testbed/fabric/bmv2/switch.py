"""A switch of BMv2 as a Mininet switch: one simple_switch_grpc, on interfaces that exist already."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from controller.errors import CannotRunError
from testbed.fabric.bmv2.installation import Installation
from testbed.net import FabricSwitch

__all__ = ["CONTROL", "DATA", "Bmv2Options", "Bmv2Switch"]

DATA, CONTROL = 0, 1
"""Priorities of p4src/headers.p4: in BMv2 0 is the lowest."""
_PRIORITIES: Final = 2
_THRIFT_PORT: Final = 9090
_GRPC_PORT: Final = 9590
_LAST_LINE: Final = 160
_PIDFD_GETFD: Final = 438
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_BUFFER_BYTES: Final = 1_000_000_000


def _get_descriptor(process: int, number: int) -> int:
    """Another process's descriptor (pidfd_getfd, Linux 5.6)."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.syscall(_PIDFD_GETFD, process, number, 0))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


@contextlib.contextmanager
def _descriptor(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


@dataclass(frozen=True)
class Bmv2Options:
    """What all switches of a network are started with."""

    installation: Installation
    logs: Path
    """Folder for a log a switch."""


class Bmv2Switch(FabricSwitch):
    """Its process is alive from ``start`` to ``stop``.

    gRPC listens on 127.0.0.1; Thrift, which cannot be told, on all addresses of the network namespace, which is our own.
    """

    def __init__(self, name: str, *, options: Bmv2Options, index: int, **params: Any) -> None:
        """``index``: its place in the wiring; device id and listening ports follow from it."""
        self._options = options
        self.device_id = index + 1
        self.thrift_port = _THRIFT_PORT + index
        self.grpc_port = _GRPC_PORT + index
        self.log = options.logs / f"{name}.log"
        self.interfaces: list[str] = []
        """By the switch's own port numbers, from 1."""
        self.python_paths = options.installation.python_paths
        self._process: subprocess.Popen[bytes] | None = None
        super().__init__(name, **params)

    def start(self, controllers: Iterable[Any]) -> None:
        """Starts the process without a program: that comes over P4Runtime."""
        del controllers
        interfaces = [
            word for number, name in enumerate(self.interfaces, 1) for word in ("--interface", f"{number}@{name}")
        ]
        command = [
            str(self._options.installation.program),
            "--no-p4",
            "--log-console",
            "--log-level",
            "info",
            "--device-id",
            str(self.device_id),
            "--thrift-port",
            str(self.thrift_port),
            *interfaces,
            "--",
            "--grpc-server-addr",
            f"127.0.0.1:{self.grpc_port}",
            "--priority-queues",
            str(_PRIORITIES),
        ]
        with self.log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._options.installation.environment(),
                    cwd=self.log.parent,
                )
            except OSError as error:
                raise CannotRunError(f"{command[0]} cannot be started: {error.strerror}") from None

    def widen_buffers(self) -> None:
        """Lifts the limits of the process's packet sockets. To be called when it listens.

        What is on a long link is charged to the socket that sent it (net/core/sock.c): at the default of some 200 KiB the
        switch would wait for its links, like a window that nobody asked for.
        """
        assert self._process is not None
        with _descriptor(os.pidfd_open(self._process.pid)) as process:
            for name in os.listdir(f"/proc/{self._process.pid}/fd"):
                try:
                    copied = _get_descriptor(process, int(name))
                except OSError as error:
                    if error.errno != errno.EBADF:
                        raise
                    continue  # closed meanwhile: where the clock runs on, the process does too
                with _descriptor(copied) as fd:
                    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                        continue
                    with socket.socket(fileno=os.dup(fd)) as own:
                        if own.family == socket.AF_PACKET:
                            own.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES)
                            own.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)

    def check(self) -> None:
        """Raises CannotRunError where the process has ended, with the last line of its log."""
        code = self._process.poll() if self._process else 0
        if code is None:
            return
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        raise CannotRunError(f"{self.name}: BMv2 ended {how}: {last[:_LAST_LINE]}")

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803 (Mininet's name)
        """Ends the process."""
        del deleteIntfs
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
