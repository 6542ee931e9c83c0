"""Waits until interfaces can carry packets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from controller.errors import CannotRunError

__all__ = ["wait_for_carriers"]

_POLL_S: Final = 0.05
_SETTLE_S: Final = 0.2
"""linkwatch raises the state a moment before it gives the interface its queue (net/core/link_watch.c)."""
_UP: Final = 1
_LEAST_LIMIT_S: Final = 20.0
_CARRIERS_PER_S: Final = 20
"""A fifth of what the kernel raises."""


def wait_for_carriers(folder: Path = Path("/sys/class/net")) -> None:
    """Returns when every interface of this network namespace that was set up, but for lo, is operational.

    What is sent before is lost without a trace. ``folder`` must show this namespace: the guest mounts it.
    Raises CannotRunError with the name of one that is not, after a time that grows with their number.
    """
    waiting = [path for path in sorted(folder.iterdir()) if path.name != "lo" and _is_up(path)]
    end_s = time.monotonic() + _LEAST_LIMIT_S + len(waiting) / _CARRIERS_PER_S
    while waiting := [path for path in waiting if (path / "operstate").read_text().strip() != "up"]:
        if time.monotonic() > end_s:
            raise CannotRunError(
                f"{len(waiting)} interfaces of the network do not come up, {waiting[0].name} among them: see dmesg"
            )
        time.sleep(_POLL_S)
    time.sleep(_SETTLE_S)


def _is_up(interface: Path) -> bool:
    return bool(int((interface / "flags").read_text(), 16) & _UP)
