"""Files of results: whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from controller.errors import CannotRunError

__all__ = ["table_bytes", "write_atomically", "write_table"]


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
