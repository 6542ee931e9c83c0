"""Frames into and out of interfaces, at times of the virtual stage's clock."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import time
from typing import Final

from tests.vectors.vectors import SERVICE_NS, Case

_ETH_P_ALL: Final = 3
_SO_TIMESTAMPNS: Final = 35
_SO_RCVBUFFORCE: Final = 33
_TIMESPEC: Final = struct.Struct("@qq")
_AHEAD_NS: Final = 50_000_000


class Tap:
    """A raw socket on one interface."""

    def __init__(self, interface: str) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 24)
        self._socket.bind((interface, 0))
        self._socket.setblocking(False)

    def send(self, frame: bytes) -> None:
        """Puts a frame on the wire. Where the interface's own program drops it, it is counted there."""
        try:
            self._socket.send(frame)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise

    def drain(self, *, outgoing: bool) -> list[tuple[int, bytes]]:
        """(time in ns, frame) of what has passed since the last call: sent by the interface, or received by it."""
        frames = []
        with contextlib.suppress(BlockingIOError):
            while True:
                frame, control, _, address = self._socket.recvmsg(65536, 64)
                if (address[2] == socket.PACKET_OUTGOING) == outgoing:
                    seconds, nanoseconds = _TIMESPEC.unpack(control[0][2][: _TIMESPEC.size])
                    frames.append((seconds * 10**9 + nanoseconds, frame))
        return frames


def play(case: Case, tap: Tap) -> int:
    """Sends a case's packets at their times, and waits until all queues are empty; returns when the case began."""
    began_ns = time.time_ns() + _AHEAD_NS
    for packet in case.packets:
        ahead_ns = began_ns + packet.time_ns - time.time_ns()
        if ahead_ns > 0:
            time.sleep(ahead_ns / 1e9)
        tap.send(packet.frame)
    time.sleep((5 + len(case.packets)) * SERVICE_NS / 1e9)
    return began_ns
