"""Writes files as torch.save does, without torch: a zip of data.pkl, of protocol 2, and one entry for each tensor's numbers."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

STORAGES = {
    "f8": "DoubleStorage",
    "f4": "FloatStorage",
    "i8": "LongStorage",
    "i4": "IntStorage",
    "i2": "ShortStorage",
    "i1": "CharStorage",
    "u1": "ByteStorage",
    "b1": "BoolStorage",
}


class _Writer:
    """The opcodes that Python's pickle module writes for such values, by hand."""

    def __init__(self) -> None:
        self.out = io.BytesIO()
        self.storages: list[NDArray[Any]] = []
        self.memo = 0

    def put(self) -> None:
        self.out.write(b"q" + bytes([self.memo]) if self.memo < 256 else b"r" + struct.pack("<I", self.memo))
        self.memo += 1

    def value(self, value: Any) -> None:
        out = self.out
        if value is None:
            out.write(b"N")
        elif isinstance(value, bool):
            out.write(b"\x88" if value else b"\x89")
        elif isinstance(value, int):
            if 0 <= value < 256:
                out.write(b"K" + bytes([value]))
            elif 0 <= value < 65536:
                out.write(b"M" + struct.pack("<H", value))
            elif -(2**31) <= value < 2**31:
                out.write(b"J" + struct.pack("<i", value))
            else:
                raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
                out.write(b"\x8a" + bytes([len(raw)]) + raw)
        elif isinstance(value, float):
            out.write(b"G" + struct.pack(">d", value))
        elif isinstance(value, str):
            raw = value.encode()
            out.write(b"X" + struct.pack("<I", len(raw)) + raw)
            self.put()
        elif isinstance(value, list):
            out.write(b"]")
            self.put()
            for first in range(0, len(value), 1000):
                out.write(b"(")
                for item in value[first : first + 1000]:
                    self.value(item)
                out.write(b"e")
        elif isinstance(value, dict):
            out.write(b"}")
            self.put()
            if value:
                out.write(b"(")
                for key, item in value.items():
                    self.value(key)
                    self.value(item)
                out.write(b"u")
        elif isinstance(value, np.ndarray):
            self.tensor(value)
        else:
            raise TypeError(type(value))

    def tensor(self, array: NDArray[Any]) -> None:
        out = self.out
        out.write(b"ctorch._utils\n_rebuild_tensor_v2\n")
        self.put()
        out.write(b"((")
        self.value("storage")
        out.write(b"ctorch\n" + STORAGES[array.dtype.str[1:]].encode() + b"\n")
        self.put()
        self.value(str(len(self.storages)))
        self.value("cpu")
        self.value(array.size)
        out.write(b"t")
        self.put()
        out.write(b"Q")
        self.value(0)
        for sizes in (array.shape, tuple(step // array.itemsize for step in np.ascontiguousarray(array).strides)):
            out.write(b"(")
            for size in sizes:
                self.value(size)
            out.write(b"t")
            self.put()
        out.write(b"\x89ccollections\nOrderedDict\n")
        self.put()
        out.write(b")R")
        self.put()
        out.write(b"t")
        self.put()
        out.write(b"R")
        self.put()
        self.storages.append(np.ascontiguousarray(array))


def save(path: Path, value: Any) -> Path:
    """``value``: dictionaries, lists, text, numbers, and arrays, which become tensors."""
    writer = _Writer()
    writer.out.write(b"\x80\x02")
    writer.value(value)
    writer.out.write(b".")
    return archive(path, writer.out.getvalue(), writer.storages)


def archive(path: Path, pickle: bytes, storages: list[NDArray[Any]] | None = None) -> Path:
    """A file around any pickle. Times in it are fixed, so that the same value makes the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        entries = [("data.pkl", pickle), ("byteorder", b"little")]
        entries += [(f"data/{number}", array.tobytes()) for number, array in enumerate(storages or [])]
        for name, content in [*entries, ("version", b"3\n")]:
            file.writestr(zipfile.ZipInfo(f"archive/{name}"), content)
    return path
