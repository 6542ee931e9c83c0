"""What a paced interface leaves outside of itself: maps pinned in the BPF file system, and a note of how it was before."""

from __future__ import annotations

import json
import os
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.errors import CannotRunError
from controller.nic.rtnetlink import Qdisc

__all__ = ["BPF_FS", "Notes", "forget", "loaded_interfaces", "pin_folder", "read_notes", "write_notes"]

BPF_FS: Final = Path("/sys/fs/bpf")
_PINS: Final = BPF_FS / "incastfree"
_NOTES: Final = Path("/run/incastfree")


@dataclass(frozen=True)
class Notes:
    """How an interface was before load, and what it was loaded with."""

    index: int
    """Of the interface: another one may come to have its name."""
    clsact: bool
    line_rate_bps: str
    program: str
    """Hash of the object that was loaded."""
    before: tuple[Qdisc, ...]
    root_handle: int = 0
    """Of the root qdisc that paces; 0 until it does."""


def _quote(interface: str) -> str:
    """The BPF file system takes no dots (kernel/bpf/inode.c), the names of VLAN interfaces have them."""
    return urllib.parse.quote(interface, safe="").replace(".", "%2E")


def pin_folder(interface: str) -> Path:
    """Where the maps of an interface are pinned."""
    return _PINS / _quote(interface)


def loaded_interfaces() -> list[str]:
    """Interfaces whose rates are pinned. Raises CannotRunError without the right to look."""
    try:
        return sorted(urllib.parse.unquote(path.name) for path in _PINS.iterdir())
    except FileNotFoundError:
        return []
    except PermissionError:
        raise CannotRunError("what is loaded can be seen by root only: run as root") from None


def _note(interface: str) -> Path:
    return _NOTES / f"{_quote(interface)}.json"


def read_notes(interface: str) -> Notes | None:
    """None where there are none, or none that this version wrote."""
    try:
        found = json.loads(_note(interface).read_text())
        qdiscs = tuple(
            Qdisc(parent, handle, kind, bytes.fromhex(options)) for parent, handle, kind, options in found["before"]
        )
        return Notes(**{**found, "before": qdiscs})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_notes(interface: str, notes: Notes) -> None:
    """The whole file or, if that is interrupted, the one before."""
    _NOTES.mkdir(parents=True, exist_ok=True)
    qdiscs = [(qdisc.parent, qdisc.handle, qdisc.kind, qdisc.options.hex()) for qdisc in notes.before]
    draft = _note(interface).with_suffix(".new")
    draft.write_text(json.dumps({**notes.__dict__, "before": qdiscs}))
    draft.rename(_note(interface))


def forget(interface: str) -> None:
    """Removes the pins and the note, and the folders that they were the last of."""
    folder = pin_folder(interface)
    if folder.is_dir():
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    for path in (_note(interface), _note(interface).with_suffix(".new")):
        path.unlink(missing_ok=True)
    for parent in (_PINS, _NOTES):
        try:
            os.rmdir(parent)
        except OSError:
            continue  # others are in it, or it never was
