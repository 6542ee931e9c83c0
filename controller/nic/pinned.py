"""A NIC whose rate table somebody else has pinned: a program of ``incastfree exec`` finds its host's so.

The device is a JSON file that says where: ``table``, the pinned map; ``entry`` of so many ``entries``, this NIC's;
``line_rates_bps``, as text, one a rank; ``mtu_bytes``. A flow's slot is the rank that it goes to.
"""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

from controller.errors import CannotRunError, InputError
from controller.nic import Capabilities, Nic, Steps
from controller.nic.libbpf import get_pinned_map
from controller.nic.rate_table import RATE_ONE, RATE_SLOTS, TABLE_BYTES, RateTable

__all__ = ["PinnedNic", "attach", "line_rate_bps", "load", "read_description", "unload"]


class PinnedNic(Nic):
    """One entry of a pinned array of rate tables."""

    def __init__(self, fd: int, table: RateTable) -> None:
        """Use attach."""
        self._fd = fd
        self._table = table

    @property
    def capabilities(self) -> Capabilities:
        """As of the ebpf backend, whose table it is."""
        return Capabilities(
            steps=RATE_ONE,
            slots=RATE_SLOTS,
            update_ns=300,
            update_basis="measured",
            update_source="benchmarks/controller_speed: 1,000 rates from Python on an EPYC; 2,300 ns without the C part",
        )

    def write_rates(self, steps: Steps) -> None:
        """All at once."""
        self._table.write(steps)

    def read_rates(self) -> tuple[int, bytes]:
        """(generation, little-endian uint32 a slot)."""
        return self._table.read()

    def close(self) -> None:
        """The NIC goes on pacing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_description(device: str) -> dict[str, Any]:
    """The JSON file. Raises InputError where it is none of ours."""
    try:
        found = json.loads(Path(device).read_text(encoding="utf-8"))
        entry, entries = int(found["entry"]), int(found["entries"])
        rates = [Fraction(text) for text in found["line_rates_bps"]]
        return {
            "table": str(found["table"]),
            "entry": entry,
            "entries": entries,
            "line_rates_bps": rates,
            "mtu_bytes": int(found["mtu_bytes"]),
        }
    except OSError as error:
        raise InputError(f"{device} cannot be read: {error.strerror}: it is what INCASTFREE_NIC names") from None
    except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise InputError(f"{device} does not describe a NIC ({error!r}): give the file of incastfree exec") from None


def attach(device: str) -> PinnedNic:
    """Opens the table. Raises InputError for a file that is none, CannotRunError where nothing is pinned."""
    found = read_description(device)
    path = Path(found["table"])
    try:
        tables = get_pinned_map(path, TABLE_BYTES, found["entries"])
    except FileNotFoundError:
        raise CannotRunError(f"{path}: no rate table is pinned there: run inside incastfree exec") from None
    except PermissionError:
        raise CannotRunError(f"{path} can be opened by root only: run as root") from None
    memory = tables.map_memory()[found["entry"] * tables.stride_bytes :]
    return PinnedNic(tables.fd, RateTable(memory))


def load(device: str, line_rate: Fraction, **options: Any) -> PinnedNic:
    """It paces already, at the line rate that it has: the same as attach."""
    del line_rate, options
    return attach(device)


def line_rate_bps(device: str) -> Fraction:
    """What the file says."""
    found = read_description(device)
    rate: Fraction = found["line_rates_bps"][found["entry"]]
    return rate


def unload(device: str) -> None:
    """Goes with the run that pinned it. Raises CannotRunError."""
    raise CannotRunError(f"{device}: the NICs of incastfree exec end with their run")
