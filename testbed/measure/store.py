"""Files of results: whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from controller.errors import CannotRunError, InputError

__all__ = ["alone_in", "hold", "table_bytes", "write_atomically", "write_table"]


def hold(out: Path, folder: Path) -> int:
    """Makes ``folder``, which is ``out`` or in it, and locks it; closing the descriptor, or the process's end, lets others in.

    Raises InputError where ``out`` is a file, and CannotRunError where it cannot be written or another command holds it.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file, not a folder: choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Held on the folder itself, the lock leaves no file.
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CannotRunError(
            f"{error.filename or out} cannot be written: {error.strerror}; choose another --out"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            raise CannotRunError(f"{out} is in use by another command: wait for it, or choose another --out") from None
        raise CannotRunError(f"{out} cannot be locked: {error.strerror}; choose another --out") from None
    return lock


@contextlib.contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """See hold. A folder that stays empty goes again."""
    missing = [path for path in (out, *out.parents) if not path.exists()]
    lock = hold(out, out)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for path in missing:
                path.rmdir()
        os.close(lock)


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file in one step, so that a reader, or a kill, never meets half of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_table(path: Path, columns: dict[str, NDArray[Any]]) -> None:
    """A Parquet file with one column an array."""
    write_atomically(path, table_bytes(columns))


def table_bytes(columns: dict[str, NDArray[Any]]) -> bytes:
    """The content of such a file. Raises CannotRunError where pyarrow is missing."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise CannotRunError("pyarrow is missing: run make setup") from None
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content
