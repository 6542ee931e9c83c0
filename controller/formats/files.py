"""The files that a name stands for, and their bytes: what cannot be read is one line."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from controller.errors import InputError

__all__ = ["check_size", "files_of", "open_file", "order_notes", "rank_of_name", "read_content", "read_head"]

_OF_RANKS: Final = ("router_trace_rank*.jsonl", "expert_distribution_recorder_*.pt", "*rank*", "*")
"""Names of traces of ranks in a folder; the first that matches says which files are meant."""
_HEAD_BYTES: Final = 1 << 16


def files_of(path: Path) -> list[Path]:
    """The file itself; of a folder the files of its ranks; of a pattern with * or ? or [ the files that match.

    In the order of the numbers in their names. Raises InputError where there is none.
    """
    try:
        if path.is_dir():
            for pattern in _OF_RANKS:
                found = [file for file in path.glob(pattern) if file.is_file() and not file.name.startswith(".")]
                if found:
                    return sorted(found, key=_by_number)
            if not os.access(path, os.R_OK | os.X_OK):
                raise InputError(f"{path} may not be read: check its permissions")
            raise InputError(f"{path} is a folder without files: name the matrix file, or a folder of one file a rank")
        if any(mark in str(path) for mark in "*?[") and not path.exists():
            found = [Path(name) for name in glob.glob(str(path)) if Path(name).is_file()]
            if not found:
                raise InputError(f"{path} matches no file: check the pattern")
            return sorted(found, key=_by_number)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, re.error):  # a zero byte in the name; a pattern that is none
        pass
    return [path]


def _by_number(path: Path) -> tuple[list[tuple[int, str]], str]:
    """rank2 before rank10."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part) if part.isdecimal() and len(part) < 4000 else -1, part) for part in parts], str(path)


def rank_of_name(path: Path) -> int | None:
    """The rank that a file's name says: ``rank3`` anywhere, or a last number after ``_`` or ``.`` or alone."""
    for pattern in (r"rank[_-]?(\d{1,6})(?!\d)", r"(?:^|[_.-])(\d{1,6})\.\w+$"):
        match = re.search(pattern, path.name)
        if match:
            return int(match[1])
    return None


def order_notes(path: Path, files: Sequence[Path], ordered: Collection[Path]) -> list[str]:
    """Says which rank each file was taken for, where those ``ordered`` do not say so, nor their names.

    Raises InputError where others do.
    """
    if not ordered:
        return []
    if len(ordered) < len(files):
        raise InputError(f"{min(ordered)} does not say its rank, but others do: give each file its rank in its name")
    return [
        f"{path}: neither records nor names say whose they are: ranks are in the order of the names, from 0 for {files[0].name} "
        f"to {len(files) - 1} for {files[-1].name}"
    ]


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """For reading bytes. Raises InputError, also for what goes wrong with the file while it is open."""
    try:
        if not (path.is_file() or path.is_dir()) and path.exists():
            raise InputError(f"{path} is a pipe or a device, and formats are told by reading twice: give a file")
        with path.open("rb") as file:
            yield file
    except MemoryError:
        raise _too_large(path) from None
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder: name the file in it") from None
    except PermissionError:
        raise InputError(f"{path} may not be read: check its permissions") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        if "\0" not in str(path):
            raise
        raise InputError(f"{str(path)!r} cannot be read: {error}") from None


def _too_large(path: Path) -> InputError:
    return InputError(f"{path} does not fit into this machine's memory: choose a part of it, or a larger machine")


def _available_bytes() -> int:
    """Memory that can be had (Linux); what no file has elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 2**63
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 2**63)


def read_content(path: Path) -> bytes:
    """All of it. Raises InputError, also where memory would not hold it."""
    with open_file(path) as file:
        check_size(path, file)
        return file.read()


def check_size(path: Path, file: BinaryIO) -> None:
    """Raises InputError where memory would not hold an open file."""
    if os.fstat(file.fileno()).st_size > _available_bytes():
        raise _too_large(path)


def read_head(path: Path) -> bytes:
    """Enough of its start to tell its format."""
    with open_file(path) as file:
        return file.read(_HEAD_BYTES)
