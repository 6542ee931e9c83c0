"""Importers of demands: one file a format, which is told by a file's content. docs/formats.md says what each assumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from controller.errors import InputError
from controller.formats import (
    deepep,
    htsim,
    matrices,
    megatron,
    npy_matrix,
    parquet,
    sglang,
    splits,
    vllm,
)
from controller.formats.files import files_of, read_head
from controller.formats.named_arrays import npz_names
from controller.formats.torch_file import EMPTY_ZIP_MAGIC, PICKLE_MAGIC, ZIP_MAGIC, Tensor, read_torch, refuse_pickle
from controller.formats.trace import AUTO, TOKEN_COPIES, Chosen, Place, Reading, Trace

__all__ = [
    "AUTO",
    "FORMATS",
    "TOKEN_COPIES",
    "Chosen",
    "Place",
    "Reading",
    "Trace",
    "detect",
    "files_of",
    "read_trace",
]

Reader = Callable[[Path, Sequence[Path], Reading], Trace]

_READERS: Final[dict[str, Reader]] = {
    "csv": matrices.read_csv,
    "npy": matrices.read_npy,
    "npz": matrices.read_npz,
    "parquet": parquet.read,
    "torch": matrices.read_torch_matrix,
    "htsim": htsim.read,
    "sglang": sglang.read,
    "vllm": vllm.read,
    "megatron": megatron.read,
    "deepep": deepep.read,
    "splits": splits.read,
}
FORMATS: Final = (AUTO, *_READERS)


def read_trace(path: Path, reading: Reading | None = None) -> Trace:
    """The demands of a file, of a folder with a file a rank, or of the files that a pattern names.

    Raises InputError for what cannot be read, and CannotRunError where a package is missing that would read it.
    """
    reading = reading or Reading()
    if reading.format not in FORMATS:
        raise InputError(f"format {reading.format!r} is not known: use one of {', '.join(FORMATS)}")
    files = files_of(path)
    kind = detect(files[0]) if reading.format == AUTO else reading.format
    return _READERS[kind](path, files, reading)


def detect(path: Path) -> str:
    """The name of a file's format, by its first bytes, and by its names where it holds some. Raises InputError."""
    head = read_head(path)
    if not head:
        raise InputError(f"{path} is empty: it holds neither a matrix nor a trace")
    for magic, kind in ((npy_matrix.MAGIC, "npy"), (parquet.MAGIC, "parquet")):
        if head.startswith(magic):
            return kind
    if head.startswith(ZIP_MAGIC):
        return _in_zip(path)
    if head.startswith(PICKLE_MAGIC) and head[1:2] <= b"\x05":
        raise refuse_pickle(path, head)
    if head.startswith(b"\x1f\x8b"):
        raise InputError(f"{path} is compressed: gunzip it first")
    if head.startswith(EMPTY_ZIP_MAGIC):
        raise InputError(f"{path} is a zip file that holds no array: save a matrix with numpy.savez")
    if path.suffix in (".pt", ".pth"):
        raise InputError(
            f"{path} is no file of torch.save, which is a zip, but perhaps an old pickle: save it with torch.save of PyTorch 1.6 or later"
        )
    return _in_text(path, head.removeprefix(b"\xef\xbb\xbf").lstrip())


def _in_text(path: Path, text: bytes) -> str:
    if text.startswith((b"{", b"[")):
        return _in_json(path, text)
    if htsim.is_text(text):
        return "htsim"
    is_sglang = text.partition(b"\n")[0].replace(b" ", b"").strip() == sglang.CSV_HEADER
    return "sglang" if is_sglang else "csv"


def _in_zip(path: Path) -> str:
    names = npz_names(path)
    if names:
        return _by_names(names) or "npz"
    value = read_torch(path)
    if isinstance(value, Tensor):
        return "torch"
    if sglang.is_dump(value):
        return "sglang"
    first = value[0] if isinstance(value, list) and value else value
    kind = _by_names([name for name in first if isinstance(name, str)]) if isinstance(first, dict) else None
    if kind is None:
        raise InputError(
            f"{path} holds neither a matrix nor a dump that is known: see docs/formats.md, or give --format"
        )
    return kind


def _by_names(names: Sequence[str]) -> str | None:
    """DeepEP's names before those of splits."""
    if any(name in deepep.NAMES for name in names):
        return "deepep"
    return "splits" if any(name in splits.SENT for name in names) else None


def _in_json(path: Path, text: bytes) -> str:
    """By the names that its first 64 KB say."""
    for mark, kind in (
        (megatron.KEY, "megatron"),
        (vllm.META.encode(), "vllm"),
        (vllm.STATS.encode(), "vllm"),
        (b'"record_type"', "vllm"),
        (b'"traceEvents"', "splits"),
        *((f'"{name}"'.encode(), "deepep") for name in deepep.NAMES),
        *((f'"{name}"'.encode(), "splits") for name in splits.SENT),
        (b'"all_to_all', "splits"),
        (b'"schemaVersion"', "splits"),
    ):
        if mark in text:
            return kind
    raise InputError(f"{path} is JSON of no format that is known: see docs/formats.md, or give --format")
