"""Offloads of a network interface, which a packet socket behind a veth must not meet."""

from __future__ import annotations

import array
import contextlib
import fcntl
import socket
import struct
from typing import Final

__all__ = ["switch_off_offloads"]

_SIOCETHTOOL: Final = 0x8946
_SETTINGS: Final = (0x15, 0x17, 0x19, 0x1F, 0x24, 0x2C)
"""Receive and transmit checksums, scatter-gather, TSO, GSO, GRO (include/uapi/linux/ethtool.h, ETHTOOL_S*)."""
_VALUE: Final = struct.Struct("=II")


def switch_off_offloads(interface: str) -> None:
    """Of an interface of this process's network namespace. What it does not have it cannot switch off.

    Else a packet reaches a switch that is a process without its checksum, or as one of many segments.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for setting in _SETTINGS:
            value = array.array("B", _VALUE.pack(setting, 0))
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            with contextlib.suppress(OSError):
                fcntl.ioctl(control, _SIOCETHTOOL, request)
