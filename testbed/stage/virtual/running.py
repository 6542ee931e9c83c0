"""Which of the guest's programs is computing, as the host sees it: for a guest whose clock stands still.

Each address space of a User-Mode-Linux guest is a process of the host, a child of the kernel's. The busiest of them runs the
program; its command line and environment lie at the top of its stack, where execve has put them (fs/exec.c, fs/binfmt_elf.c).
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Running", "busiest"]

_SAMPLE_S: Final = 0.2
_TASK_TOP: Final = 0x7FC0000000
"""Above it the kernel keeps pages of its own in every address space (STUB_START, arch/um)."""
_MOST_STACK_BYTES: Final = 1 << 20
_VARIABLE: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*=")
_PLATFORM: Final = b"x86_64"
"""Lies below the words, and 16 random bytes without an end of their own below it (AT_PLATFORM, AT_RANDOM: fs/binfmt_elf.c)."""
_RANDOM_BYTES: Final = 16
_LONGEST: Final = 80


@dataclass(frozen=True)
class Running:
    """A program of the guest."""

    command: str
    """Its words, cut to 80 characters."""
    rank: int | None
    """From its environment."""


def busiest(supervisor: int) -> Running | None:
    """The program that computes most below the process ``supervisor`` (supervise.py); None if none does, or none can be read."""
    kernels = _children(supervisor)
    before = {pid: _ticks(pid) for kernel in kernels for pid in _children(kernel)}
    time.sleep(_SAMPLE_S)
    used = {pid: _ticks(pid) - ticks for pid, ticks in before.items()}
    busy = max(used, key=lambda pid: used[pid], default=None)
    if busy is None or used[busy] <= 0:
        return None
    with contextlib.suppress(OSError, ValueError):
        return parse_stack(_stack(busy))
    return None


def parse_stack(stack: bytes) -> Running | None:
    """From the top of a stack: argument strings, environment strings, the path that was executed, zeros."""
    strings = stack.rstrip(b"\0").split(b"\0")
    if len(strings) < 2:
        return None
    strings.pop()  # the path
    end = len(strings)
    while end and _VARIABLE.match(strings[end - 1]):
        end -= 1
    rank: int | None = None
    for entry in strings[end:]:
        if entry.startswith(b"RANK=") and entry[5:].isdigit():
            rank = int(entry[5:])
    words: list[str] = []
    for entry in reversed(strings[:end]):
        text = entry.decode(errors="replace")
        platform = entry.endswith(_PLATFORM) and len(entry) <= _RANDOM_BYTES + len(_PLATFORM)
        shown = " ".join(text.split())
        if not entry or platform or not shown.isprintable():
            break
        words.insert(0, shown)
    command = " ".join(words)
    return Running(command[:_LONGEST] or "a program", rank)


def _stack(pid: int) -> bytes:
    """What lies at the top of the guest's part of an address space."""
    top = b""
    with open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as maps:
        regions = [(int(a, 16), int(b, 16)) for a, b in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw.s", maps.read(), re.M)]
    below = [region for region in regions if region[1] < _TASK_TOP]
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        start = None
        for begin, end in reversed(below):
            if (start is not None and end != start) or len(top) > _MOST_STACK_BYTES:
                break
            top = os.pread(memory.fileno(), end - begin, begin) + top
            start = begin
    return top


def _children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            if int((path / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.name))
    return found


def _ticks(pid: int) -> int:
    """Processor time of a process."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0
