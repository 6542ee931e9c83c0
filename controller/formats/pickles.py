"""Pickles, read without running anything in them.

This is no unpickler: it knows the opcodes (Python's pickletools documents them) that tensors, numbers, text, lists, tuples and
dictionaries are made of, and imports nothing. A global is a pair of names; calling one is looked up in a table of those
that mean data (a tensor's rebuilding, an ordered dictionary), of which the result is a description. All else is refused with its
name. Memory stays in proportion to the pickle: every object comes from at least one byte of it, and runs of whole numbers, as
long lists of tokens are, are kept as they stand there.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from controller.errors import InputError

__all__ = ["Described", "Global", "Numbers", "StorageRef", "TensorRef", "read_pickle"]

_MOST_DIMENSIONS: Final = 16


@dataclass(frozen=True)
class Global:
    """A name that the pickle refers to. It is never imported."""

    module: str
    name: str

    def __str__(self) -> str:
        """To be shown: a damaged file's names may hold line breaks."""
        shown = f"{self.module}.{self.name}"[:60]
        return "".join(letter if letter.isprintable() else "?" for letter in shown)


@dataclass(frozen=True)
class StorageRef:
    """Where a tensor's numbers are: an entry of the archive."""

    kind: str
    """Such as IntStorage."""
    key: str
    numbers: int


@dataclass(frozen=True)
class TensorRef:
    """A tensor as torch.save describes it; dtype is empty where its storage says it."""

    storage: StorageRef
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str = ""


@dataclass(frozen=True)
class Described:
    """What a call of a global that means data has come to, where nothing here needs its value."""

    name: str


@dataclass(frozen=True)
class Numbers:
    """Whole numbers that follow each other in a list, undecoded: opcodes BININT1, BININT2 and BININT."""

    raw: bytes

    def __iter__(self) -> Iterator[int]:
        place, raw = 0, self.raw
        while place < len(raw):
            code = raw[place]
            size, form = _WHOLE[code]
            yield int(struct.unpack_from(form, raw, place + 1)[0])
            place += size


_WHOLE: Final = {ord("K"): (2, "<B"), ord("M"): (3, "<H"), ord("J"): (5, "<i")}
_RUN: Final = re.compile(rb"(?:K.|M..|J....){8,1000}", re.DOTALL)
"""Bounded: a pattern without an end would remember every number, to go back to it."""
_MARK: Final = object()
_DTYPE_NAMES: Final = frozenset(
    (
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
        "uint16",
        "uint32",
        "uint64",
    )
)


def read_pickle(where: str, data: bytes) -> Any:
    """What a pickle of protocol 2 or above describes: plain Python values, TensorRef, Described, and Numbers inside lists.

    ``where`` starts the error line. Raises InputError for what is damaged, and for what would have to be run.
    """
    try:
        return _Reader(where, data).read()
    except (IndexError, struct.error, UnicodeDecodeError, ValueError, KeyError, TypeError, OverflowError):
        raise InputError(f"{where} is a damaged pickle: write it anew") from None


class _Reader:
    """A stack machine over the bytes."""

    def __init__(self, where: str, data: bytes) -> None:
        self._where = where
        self._data = data
        self._place = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def read(self) -> Any:
        data, stack = self._data, self._stack
        if data[:1] != b"\x80" or data[1] < 2:
            self._refuse("is a pickle of protocol 0 or 1, which is not read: save it with torch.save")
        while True:
            code = data[self._place]
            if code in _WHOLE:
                run = _RUN.match(data, self._place)
                if run:
                    stack.append(Numbers(run[0]))
                    self._place = run.end()
                    continue
            self._place += 1
            if code == ord("."):
                if len(stack) != 1 or stack[0] is _MARK:
                    raise ValueError
                return stack[0]
            step = _STEPS.get(code)
            if step is None:
                self._refuse(
                    f"has opcode {code:#04x}, which no saved tensor needs, and which is not run: save tensors, lists and numbers alone"
                )
            step(self)

    def _refuse(self, why: str) -> NoReturn:
        raise InputError(f"{self._where} {why}")

    def _take(self, size: int) -> bytes:
        end = self._place + size
        if size < 0 or end > len(self._data):
            raise ValueError
        taken = self._data[self._place : end]
        self._place = end
        return taken

    def _number(self, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def _line(self) -> str:
        end = self._data.index(b"\n", self._place)
        return self._take(end + 1 - self._place)[:-1].decode()

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK or isinstance(value, Numbers):
            raise ValueError  # a run where one number was meant is split before: see _split
        return value

    def _split(self) -> None:
        """Makes the single numbers of a run on top of the stack, where they are not items of a list."""
        if self._stack and isinstance(self._stack[-1], Numbers):
            self._stack.extend(self._stack.pop())

    def _since_mark(self) -> list[Any]:
        stack = self._stack
        place = len(stack) - 1
        while stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise ValueError
        items = stack[place + 1 :]
        del stack[place:]
        return items

    def proto(self) -> None:
        if not 2 <= self._number("<B") <= 5:
            raise ValueError

    def frame(self) -> None:
        self._number("<Q")

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def mark(self) -> None:
        self._stack.append(_MARK)

    def pop(self) -> None:
        self._split()
        self._stack.pop()

    def pop_mark(self) -> None:
        self._since_mark()

    def float_(self) -> None:
        self.push(struct.unpack(">d", self._take(8))[0])

    def long_(self, form: str) -> None:
        self.push(int.from_bytes(self._take(self._number(form)), "little", signed=True))

    def text(self, form: str) -> None:
        self.push(self._take(self._number(form)).decode("utf-8", "surrogatepass"))

    def bytes_(self, form: str) -> None:
        self.push(self._take(self._number(form)))

    def tuple_of(self, size: int) -> None:
        self._split()
        items = [self._pop() for _ in range(size)]
        self.push(tuple(reversed(items)))

    def tuple_(self) -> None:
        self.push(tuple(_flat(self._since_mark())))

    def list_(self) -> None:
        self.push(self._since_mark())

    def append(self) -> None:
        self._split()
        value = self._pop()
        if type(self._stack[-1]) is not list:
            raise ValueError
        self._stack[-1].append(value)

    def appends(self) -> None:
        items = self._since_mark()
        if type(self._stack[-1]) is not list:
            raise ValueError
        self._stack[-1].extend(items)

    def dict_(self) -> None:
        self.push(_pairs({}, _flat(self._since_mark())))

    def setitem(self) -> None:
        self._split()
        value, key = self._pop(), self._pop()
        if type(self._stack[-1]) is not dict:
            raise ValueError
        _pairs(self._stack[-1], [key, value])

    def setitems(self) -> None:
        items = _flat(self._since_mark())
        if type(self._stack[-1]) is not dict:
            raise ValueError
        _pairs(self._stack[-1], items)

    def put(self, form: str) -> None:
        self._remember(self._number(form))

    def memoize(self) -> None:
        self._remember(len(self._memo))

    def _remember(self, index: int) -> None:
        self._split()
        value = self._stack[-1]
        if value is _MARK:
            raise ValueError
        self._memo[index] = value

    def get(self, form: str) -> None:
        self.push(self._memo[self._number(form)])

    def global_(self) -> None:
        module = self._line()
        self.push(Global(module, self._line()))

    def stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError
        self.push(Global(module, name))

    def persistent(self) -> None:
        """torch.save: ("storage", its class, key, device, numbers)."""
        self._split()
        known = self._pop()
        if not (isinstance(known, tuple) and len(known) == 5 and known[0] == "storage"):
            self._refuse("has a reference that is no storage of a tensor: save tensors, lists and numbers alone")
        _, kind, key, _, numbers = known
        if not isinstance(kind, Global) or not isinstance(key, str) or type(numbers) is not int or numbers < 0:
            raise ValueError
        if kind.module not in ("torch", "torch.storage") or not kind.name.endswith("Storage"):
            self._refuse(f"names {kind} as a storage, which is none of torch's")
        self.push(StorageRef(kind.name, key, numbers))

    def reduce(self) -> None:
        self._split()
        given, called = self._pop(), self._pop()
        if not isinstance(called, Global) or not isinstance(given, tuple):
            raise ValueError
        make = _CALLS.get((called.module, called.name))
        if make is None:
            self._refuse(
                f"calls {called}, which is not data and is not run: save tensors, lists, numbers and text alone"
            )
        self.push(make(given))

    def build(self) -> None:
        """The state of an object: of an ordered dictionary or a tensor it is nothing that is needed."""
        self._split()
        self._pop()
        if not isinstance(self._stack[-1], (dict, TensorRef, Described)):
            self._refuse("sets the state of an object that is none of torch's: save tensors, lists and numbers alone")


def _flat(items: list[Any]) -> list[Any]:
    if not any(isinstance(item, Numbers) for item in items):
        return items
    return [inner for item in items for inner in (item if isinstance(item, Numbers) else (item,))]


def _pairs(into: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise ValueError
    for key, value in zip(items[::2], items[1::2], strict=True):
        # Nothing nested: hashing a tuple of tuples of tuples would end the process.
        if key is not None and not isinstance(key, (str, int, float, bytes)):
            raise ValueError
        into[key] = value
    return into


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > _MOST_DIMENSIONS:
        raise ValueError
    for number in value:
        if type(number) is not int or not 0 <= number < 2**63:
            raise ValueError
    return value


def _tensor(given: tuple[Any, ...]) -> TensorRef:
    """torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks, metadata)."""
    storage, offset, shape, stride = given[:4]
    if not isinstance(storage, StorageRef) or type(offset) is not int or not 0 <= offset < 2**63:
        raise ValueError
    shape, stride = _sizes(shape), _sizes(stride)
    if len(shape) != len(stride):
        raise ValueError
    return TensorRef(storage, offset, shape, stride)


def _tensor_of_dtype(given: tuple[Any, ...]) -> TensorRef:
    """torch._utils._rebuild_tensor_v3(storage, offset, size, stride, requires_grad, hooks, dtype, metadata)."""
    plain = _tensor(given)
    dtype = given[6]
    if not isinstance(dtype, Global) or dtype.module != "torch" or dtype.name not in _DTYPE_NAMES:
        raise ValueError
    return TensorRef(plain.storage, plain.offset, plain.shape, plain.stride, dtype.name)


def _parameter(given: tuple[Any, ...]) -> TensorRef:
    if not isinstance(given[0], TensorRef):
        raise ValueError
    return given[0]


def _ordered(given: tuple[Any, ...]) -> dict[Any, Any]:
    if given:
        raise ValueError
    return {}


_CALLS: Final[dict[tuple[str, str], Callable[[tuple[Any, ...]], Any]]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_of_dtype,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): _ordered,
    ("torch", "Size"): lambda given: _sizes(given[0]),
    ("torch", "device"): lambda _given: Described("torch.device"),
}

_STEPS: Final[dict[int, Callable[[_Reader], None]]] = {
    0x80: _Reader.proto,
    0x95: _Reader.frame,
    ord("N"): lambda reader: reader.push(None),
    0x88: lambda reader: reader.push(True),
    0x89: lambda reader: reader.push(False),
    ord("K"): lambda reader: reader.push(reader._number("<B")),
    ord("M"): lambda reader: reader.push(reader._number("<H")),
    ord("J"): lambda reader: reader.push(reader._number("<i")),
    0x8A: lambda reader: reader.long_("<B"),
    0x8B: lambda reader: reader.long_("<i"),
    ord("G"): _Reader.float_,
    ord("X"): lambda reader: reader.text("<I"),
    0x8C: lambda reader: reader.text("<B"),
    0x8D: lambda reader: reader.text("<Q"),
    ord("B"): lambda reader: reader.bytes_("<I"),
    ord("C"): lambda reader: reader.bytes_("<B"),
    0x8E: lambda reader: reader.bytes_("<Q"),
    ord("("): _Reader.mark,
    ord("0"): _Reader.pop,
    ord("1"): _Reader.pop_mark,
    ord(")"): lambda reader: reader.push(()),
    0x85: lambda reader: reader.tuple_of(1),
    0x86: lambda reader: reader.tuple_of(2),
    0x87: lambda reader: reader.tuple_of(3),
    ord("t"): _Reader.tuple_,
    ord("]"): lambda reader: reader.push([]),
    ord("l"): _Reader.list_,
    ord("a"): _Reader.append,
    ord("e"): _Reader.appends,
    ord("}"): lambda reader: reader.push({}),
    ord("d"): _Reader.dict_,
    ord("s"): _Reader.setitem,
    ord("u"): _Reader.setitems,
    ord("q"): lambda reader: reader.put("<B"),
    ord("r"): lambda reader: reader.put("<I"),
    0x94: _Reader.memoize,
    ord("h"): lambda reader: reader.get("<B"),
    ord("j"): lambda reader: reader.get("<I"),
    ord("c"): _Reader.global_,
    0x93: _Reader.stack_global,
    ord("Q"): _Reader.persistent,
    ord("R"): _Reader.reduce,
    ord("b"): _Reader.build,
}
