"""BMv2's runtime interface over Thrift, for what P4Runtime has no call for: queue rates, queue depths, registers.

The bindings (bm_runtime, sswitch_runtime) are those that BMv2 installs, on Debian's python3-thrift.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from controller.errors import CannotRunError

__all__ = ["QueueControl", "load_bindings"]

_PAUSE_S: Final = 0.1


def load_bindings(python_paths: Iterable[str]) -> None:
    """Makes BMv2's own bindings importable. Raises CannotRunError where they or Thrift are missing."""
    # After our own packages: beside BMv2's lie others, of other versions.
    places = list(python_paths)
    sys.path += [path for path in places if path not in sys.path]
    try:
        for name in ("thrift.Thrift", "bm_runtime.standard.Standard", "sswitch_runtime.SimpleSwitch"):
            importlib.import_module(name)
    except ImportError as error:
        raise CannotRunError(
            f"the BMv2 fabric sets queue rates over Thrift, and {error.name} is missing from Python's path"
            f"{''.join(f' and {place}' for place in places)}: install python3-thrift, and BMv2 with its Python modules"
        ) from None


class QueueControl:
    """Queues and registers of one switch. Whatever goes wrong is a CannotRunError that begins with the switch's name."""

    def __init__(self, name: str, port: int, python_paths: Iterable[str], *, timeout_s: float = 30.0) -> None:
        """Connects to 127.0.0.1, waiting for the switch at most ``timeout_s``. ``python_paths``: where its bindings are."""
        self._where = f"{name} (Thrift, 127.0.0.1:{port})"
        load_bindings(python_paths)
        transport = importlib.import_module("thrift.transport.TTransport")
        sockets = importlib.import_module("thrift.transport.TSocket")
        binary = importlib.import_module("thrift.protocol.TBinaryProtocol")
        multiplexed = importlib.import_module("thrift.protocol.TMultiplexedProtocol")
        standard = importlib.import_module("bm_runtime.standard.Standard")
        switch = importlib.import_module("sswitch_runtime.SimpleSwitch")
        self._errors: tuple[type[Exception], ...] = (importlib.import_module("thrift.Thrift").TException, OSError)
        self._transport = transport.TBufferedTransport(sockets.TSocket("127.0.0.1", port))
        protocol = binary.TBinaryProtocol(self._transport)
        self._standard: Any = standard.Client(multiplexed.TMultiplexedProtocol(protocol, "standard"))
        self._queues: Any = switch.Client(multiplexed.TMultiplexedProtocol(protocol, "simple_switch"))
        _await_listener(self._where, port, timeout_s)
        with self._explained("connecting"):  # only now, since Thrift writes half a line about each refusal
            self._transport.open()

    def close(self) -> None:
        """Ends the connection; the switch keeps what was set."""
        self._transport.close()

    def set_queue_rate(self, port: int, priority: int, packets_per_s: int) -> None:
        """Of one port and priority: each has a limiter of its own, in whole packets a second."""
        self._call(
            f"the rate of queue {port}/{priority}",
            lambda: self._queues.set_egress_priority_queue_rate(port, priority, packets_per_s),
        )

    def set_queue_depth(self, port: int, priority: int, packets: int) -> None:
        """How many packets may wait, without the one in service; what comes beyond is lost and counted nowhere."""
        self._call(
            f"the depth of queue {port}/{priority}",
            lambda: self._queues.set_egress_priority_queue_depth(port, priority, packets),
        )

    def write_register(self, register: str, index: int, value: int) -> None:
        """One place of a register array of the P4 program."""
        self._call(f"register {register}[{index}]", lambda: self._standard.bm_register_write(0, register, index, value))

    def read_register(self, register: str, index: int) -> int:
        """The same back."""
        return int(
            self._call(f"register {register}[{index}]", lambda: self._standard.bm_register_read(0, register, index))
        )

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        with self._explained(what):
            return call()

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise CannotRunError(f"{self._where}: {what} was refused ({reason}): its log may say why") from None


def _await_listener(where: str, port: int, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=timeout_s):
            return
        if time.monotonic() >= end:
            raise CannotRunError(f"{where}: nobody answers within {timeout_s:g} s: is the switch running?")
        time.sleep(_PAUSE_S)
