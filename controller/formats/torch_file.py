"""Files of torch.save (a zip of a pickle and its tensors' numbers), read without torch and without running anything in them."""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError
from controller.formats.files import open_file, rank_of_name
from controller.formats.pickles import Numbers, TensorRef, read_pickle

__all__ = [
    "DAMAGE",
    "EMPTY_ZIP_MAGIC",
    "PICKLE_MAGIC",
    "ZIP_MAGIC",
    "Tensor",
    "items_of",
    "member_names",
    "plain_list",
    "read_torch",
    "refuse_pickle",
]

ZIP_MAGIC: Final = b"PK\x03\x04"
EMPTY_ZIP_MAGIC: Final = b"PK\x05\x06"
PICKLE_MAGIC: Final = b"\x80"
_EXPANDED: Final = 1 << 20
_LEGACY_MAGIC: Final = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The number 0x1950a86a20f9469cfc6c as a pickle holds it: torch.serialization's MAGIC_NUMBER."""
_DTYPES: Final = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
_DTYPE_NAMES: Final = {
    "float64": "f8",
    "float32": "f4",
    "float16": "f2",
    "int64": "i8",
    "int32": "i4",
    "int16": "i2",
    "int8": "i1",
    "uint8": "u1",
    "uint16": "u2",
    "uint32": "u4",
    "uint64": "u8",
    "bool": "?",
}
DAMAGE: Final = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    struct.error,
    NotImplementedError,
    RuntimeError,
    ValueError,
    KeyError,
    IndexError,
    OverflowError,
    UnicodeError,
    MemoryError,
)
"""What zipfile raises for what is no zip, encrypted, compressed in an unknown way, or too large to be."""


@dataclass(frozen=True)
class Tensor:
    """A tensor whose numbers are still in the file."""

    path: Path
    member: str
    dtype: np.dtype[Any]
    ref: TensorRef

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.ref.shape

    def array(self) -> NDArray[Any]:
        """The numbers, read now. Raises InputError where they are not there."""
        damaged = InputError(
            f"{self.path} is damaged: a tensor of {_shown(self.shape)} has not so many numbers; write it anew"
        )
        if 0 in self.shape:
            return np.zeros(self.shape, dtype=self.dtype)
        # A stride of 0 uses a number many times: a tensor that does may not be large, so that none outgrows the file.
        ref, itemsize = self.ref, self.dtype.itemsize
        span = 1 + sum((size - 1) * step for size, step in zip(ref.shape, ref.stride, strict=True))
        with open_file(self.path) as file:
            try:
                with zipfile.ZipFile(file) as archive:
                    info = archive.getinfo(self.member)
                    held = info.file_size // itemsize
                    if info.compress_type != zipfile.ZIP_STORED or info.file_size > file.seek(0, io.SEEK_END):
                        raise damaged
                    if ref.offset + span > held or math.prod(ref.shape) > max(held, _EXPANDED):
                        raise damaged
                    storage = np.empty(span, dtype=self.dtype)
                    if span == held:
                        with archive.open(info) as stream:
                            filled = _read_into(stream, storage)
                    else:
                        file.seek(_start(file, info) + ref.offset * itemsize)
                        filled = file.readinto(storage.view(np.uint8).data)  # type: ignore[attr-defined]
            except DAMAGE:
                raise damaged from None
        if filled != span * itemsize:
            raise damaged
        strides = tuple(step * itemsize for step in ref.stride)
        return np.lib.stride_tricks.as_strided(storage, ref.shape, strides)


def _start(file: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Where a stored entry's bytes begin: after its local header, of 30 bytes, its name and its extra field."""
    file.seek(info.header_offset)
    header = file.read(30)
    if len(header) != 30 or not header.startswith(ZIP_MAGIC):
        raise ValueError
    name, extra = struct.unpack_from("<HH", header, 26)
    return info.header_offset + 30 + int(name) + int(extra)


def _read_into(stream: Any, storage: NDArray[Any]) -> int:
    view = storage.view(np.uint8).data
    filled = 0
    while filled < len(view):
        part = stream.read(min(1 << 20, len(view) - filled))
        if not part:
            break
        view[filled : filled + len(part)] = part
        filled += len(part)
    return filled


def _shown(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape) or "one number"


def member_names(path: Path) -> list[str]:
    """What a zip file holds. Raises InputError where it is damaged."""
    with open_file(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return archive.namelist()
        except DAMAGE:
            raise InputError(f"{path} is a damaged zip file: write it anew") from None


def refuse_pickle(path: Path, head: bytes) -> InputError:
    """The error for a file that is a pickle itself."""
    if _LEGACY_MAGIC in head[:64]:
        return InputError(
            f"{path} is in torch's format from before version 1.6, which is not read: load it in torch and save it again"
        )
    return InputError(f"{path} is a bare pickle, which is not read: save it with torch.save, or as NPY or NPZ")


def read_torch(path: Path) -> Any:
    """What was saved: dictionaries, lists and numbers, with a Tensor for each tensor.

    Raises InputError for what is damaged, and for a pickle that would run something.
    """
    with open_file(path) as file:
        head = file.read(64)
        if head.startswith(PICKLE_MAGIC):
            raise refuse_pickle(path, head)
        size = file.seek(0, io.SEEK_END)
        try:
            with zipfile.ZipFile(file) as archive:
                names = set(archive.namelist())
                found = [name for name in names if name == "data.pkl" or name.endswith("/data.pkl")]
                if len(found) != 1:
                    raise InputError(f"{path} is a zip file without one data.pkl: it was not saved by torch.save")
                info = archive.getinfo(found[0])
                if info.compress_type != zipfile.ZIP_STORED or info.file_size > size:
                    raise InputError(f"{path} is compressed, as torch.save does not: save it with torch.save")
                data = archive.read(info)
                prefix = found[0][: -len("data.pkl")]
                order = b"little"
                if f"{prefix}byteorder" in names:
                    with archive.open(f"{prefix}byteorder") as stream:
                        order = stream.read(6)
        except DAMAGE:
            raise InputError(f"{path} is a damaged file of torch.save: write it anew") from None
    value = read_pickle(str(path), data)
    return _with_tensors(path, prefix, ">" if order == b"big" else "<", value)


def _with_tensors(path: Path, prefix: str, order: str, value: Any) -> Any:
    """The same with a Tensor in place of each reference, in dictionaries and lists, two levels and more down.

    Each container is visited once, whatever refers to it, and without recursion.
    """
    if isinstance(value, TensorRef):
        return _tensor(path, prefix, order, value)
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        container = waiting.pop()
        if id(container) in seen:
            continue
        seen.add(id(container))
        entries: Any = ()
        if isinstance(container, dict):
            entries = list(container.items())
        elif isinstance(container, list):
            entries = enumerate(container)
        for key, item in entries:
            if isinstance(item, TensorRef):
                container[key] = _tensor(path, prefix, order, item)
            elif isinstance(item, (dict, list)):
                waiting.append(item)
    return value


def _tensor(path: Path, prefix: str, order: str, ref: TensorRef) -> Tensor:
    kind = _DTYPE_NAMES.get(ref.dtype) if ref.dtype else _DTYPES.get(ref.storage.kind)
    if kind is None:
        raise InputError(
            f"{path} holds a tensor of {(ref.dtype or ref.storage.kind)[:40]}, which is not read: save int32, int64 or float"
        )
    dtype = np.dtype(kind if kind == "?" else order + kind)
    return Tensor(path, f"{prefix}data/{ref.storage.key}", dtype, ref)


def plain_list(value: Any) -> Any:
    """A list, and the lists in it, with their runs of numbers decoded; other values as they are."""
    if not isinstance(value, list):
        return value
    return [_decoded(item) if isinstance(item, list) else item for item in _decoded(value)]


def _decoded(items: list[Any]) -> list[Any]:
    return [inner for item in items for inner in (item if isinstance(item, Numbers) else (item,))]


def items_of(path: Path) -> tuple[dict[str, Any], int | None]:
    """The dictionary that a file holds, and the rank that it or the file's name says. Raises InputError."""
    value = read_torch(path)
    if not isinstance(value, dict):
        raise InputError(f"{path} holds {_kind(value)}, not a dictionary with names: save one")
    return value, rank_of_name(path)


def _kind(value: Any) -> str:
    return f"a tensor of {_shown(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
