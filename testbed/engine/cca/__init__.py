"""Congestion control: the interface that a user writes a class for, and what finds that class."""

from __future__ import annotations

import abc
import os
import pathlib
from dataclasses import dataclass
from typing import ClassVar, Final

from controller.errors import InputError
from controller.user_file import compile_file, execute_file

__all__ = ["BUILT_IN", "KINDS", "Control", "Network", "Path", "check", "load"]

# No NumPy here: in a small virtual machine its import costs more than a run.

BUILT_IN: Final = ("none", "nscc", "dcqcn", "dcqcn-paper", "fallback")
KINDS: Final = ("window", "rate")


@dataclass(frozen=True)
class Network:
    """What is the same for all flows of a run."""

    mtu_bytes: int
    """On the wire, headers included."""
    header_bytes: int
    """Of one packet, inside the MTU: 64."""
    rtt_ns: float
    """RTT0: of the longest path without queues, in fabric time."""
    trimming: bool
    """Whether a full queue cuts packets down to their headers (the sender gets a NACK) or drops them."""
    seed: int = 0
    """Of the experiment: what a control draws must come from it, or no run can be repeated."""


@dataclass(frozen=True, slots=True)
class Path:
    """One pair of hosts."""

    source: int
    destination: int
    line_rate_bps: float
    """Of the sender's NIC."""
    rtt_ns: float
    """RTT0 for every pair, in fabric time, as in the reference simulator: samples tell which pairs are nearer."""
    rate_bps: float = 0.0
    """That the schedule paces the flow at; 0.0 under a schedule that paces none."""

    @property
    def ceiling_bps(self) -> float:
        """What no rate gets above: the schedule's own, or the line rate."""
        return self.rate_bps or self.line_rate_bps


class Control(abc.ABC):
    """Congestion control of one flow; subclass it in a file of your own.

    Every method but ``on_sent`` returns what the flow may do from then on: with ``kind`` "window" the bytes
    that may be in flight, with "rate" bits/s. Times (``now_ns``) are fabric nanoseconds since the start of
    the phase, sizes are bytes on the wire. ``rtt_ns`` is 0.0 where no sample is valid, as after a
    retransmission, when it is not known which transmission was answered.
    """

    __slots__ = ("network", "path")

    kind: ClassVar[str] = "window"
    """Of what the methods return: one of KINDS."""

    def __init__(self, network: Network, path: Path) -> None:
        self.network = network
        self.path = path

    @abc.abstractmethod
    def start(self) -> float:
        """The first window or rate."""

    @abc.abstractmethod
    def on_ack(self, now_ns: float, newly_bytes: int, rtt_ns: float, marked: bool, in_flight_bytes: int) -> float:
        """An ACK, which may stand for several packets.

        ``newly_bytes`` is the growth of the receiver's received-byte counter, and may be 0; ``in_flight_bytes``
        is what is out without them. ``marked``: the packet that caused the ACK carried an ECN mark.
        """

    @abc.abstractmethod
    def on_nack(self, now_ns: float, size_bytes: int, rtt_ns: float, in_flight_bytes: int) -> float:
        """A packet of ``size_bytes`` was trimmed; ``in_flight_bytes`` still contains it."""

    @abc.abstractmethod
    def on_timeout(self, now_ns: float, size_bytes: int, in_flight_bytes: int) -> float:
        """A packet counts as lost since its RTO has passed; ``in_flight_bytes`` no longer contains it.

        A loss that SACKs show is mended without a call: the ACK has told of delay and marks.
        """

    def on_sent(self, now_ns: float, size_bytes: int, in_flight_bytes: int) -> float | None:
        """A packet was sent, and ``in_flight_bytes`` contains it; None leaves window or rate as it is.

        Called only where a subclass overrides it: it would be called for every packet.
        """
        del now_ns, size_bytes, in_flight_bytes
        return None


def check(name: str, base: pathlib.Path) -> str:
    """What ``load`` takes, from what the user wrote; relative files lie in ``base``. Executes no user code.

    Raises InputError where there is no such congestion control, or no such file, or it is not Python.
    """
    if name in BUILT_IN:
        return name
    if not name.endswith(".py"):
        raise _unknown(name)
    path = os.path.abspath(base / name)
    compile_file(path, "cc")
    return path


def load(name: str) -> type[Control] | None:
    """The class of a built-in congestion control or of a Python file, which is executed; None for "none".

    Raises InputError where the file does not give exactly one class that can be used.
    """
    if name == "none":
        return None
    if name == "nscc":
        from testbed.engine.cca.nscc import Nscc

        return Nscc
    if name in ("dcqcn", "dcqcn-paper"):
        from testbed.engine.cca.dcqcn import Dcqcn, DcqcnPaper

        return Dcqcn if name == "dcqcn" else DcqcnPaper
    if name == "fallback":
        from testbed.engine.cca.fallback import Fallback

        return Fallback
    if not name.endswith(".py"):
        raise _unknown(name)
    found = _execute(name)
    if len(found) != 1:
        names = f"{len(found)} of them ({', '.join(each.__name__ for each in found)})" if found else "none"
        raise InputError(f"{name}: must define one subclass of testbed.engine.cca.Control, but defines {names}")
    control = found[0]
    if control.kind not in KINDS:
        raise InputError(f"{name}: {control.__name__}.kind is {control.kind!r}: give one of {', '.join(KINDS)}")
    if control.__abstractmethods__:
        missing = ", ".join(sorted(control.__abstractmethods__))
        raise InputError(f"{name}: {control.__name__} lacks what every control must have: define {missing}")
    return control


def _unknown(name: str) -> InputError:
    import difflib

    close = difflib.get_close_matches(name.lower(), BUILT_IN, n=1)
    hint = f": did you mean {close[0]!r}?" if close else ""
    return InputError(f"cc {name!r} is not known{hint} (built in: {', '.join(BUILT_IN)}; or a Python file)")


def _execute(path: str) -> list[type[Control]]:
    """The subclasses of Control that the file defines, as opposed to those that it imports."""
    module = execute_file(path, "cc")
    found = {
        value: None
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Control) and value.__module__ == module.__name__
    }
    return list(found)
