"""The part of libbpf that is needed here, through ctypes: load an object, find its programs, maps, globals."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from controller.errors import CannotRunError

__all__ = [
    "BpfMap",
    "BpfObject",
    "Hook",
    "attach_program",
    "can_load_tc_programs",
    "count_programs",
    "get_pinned_map",
    "library_name",
]

_LIBRARY: Final = "libbpf.so.1"
_OLD_LIBRARY: Final = "libbpf.so.0"
"""libbpf 0.5, which Ubuntu 22.04 has."""
_PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_MESSAGE_BYTES: Final = 1 << 18
"""A verifier log is one message."""
_BTF_KIND_DATASEC: Final = 15
_SCHED_CLS: Final = 3
"""enum bpf_prog_type."""
_CLEAN_POINTERS, _DIRECT_ERRORS = 1, 2
"""enum libbpf_strict_mode (tools/lib/bpf/libbpf_legacy.h)."""
_BTF_TYPE_BYTES: Final = 12
"""struct btf_type (include/uapi/linux/btf.h): name_off, info, size; an array of btf_var_secinfo follows."""


@cache
def _libbpf() -> ctypes.CDLL:
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    try:
        library = ctypes.CDLL(_LIBRARY, use_errno=True)
    except OSError:
        try:
            library = _like_new(ctypes.CDLL(_OLD_LIBRARY, use_errno=True))
        except OSError:
            raise CannotRunError(f"{_LIBRARY} is missing: apt-get install libbpf1") from None
    integer, unsigned = ctypes.c_int, ctypes.c_uint32
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "libbpf_set_print": (pointer, [pointer]),
        "bpf_object__open_file": (pointer, [text, pointer]),
        "bpf_object__load": (integer, [pointer]),
        "bpf_object__close": (None, [pointer]),
        "bpf_object__btf": (pointer, [pointer]),
        "bpf_object__find_program_by_name": (pointer, [pointer, text]),
        "bpf_object__find_map_by_name": (pointer, [pointer, text]),
        "bpf_object__next_map": (pointer, [pointer, pointer]),
        "bpf_program__fd": (integer, [pointer]),
        "bpf_map__fd": (integer, [pointer]),
        "bpf_map__name": (text, [pointer]),
        "bpf_map__value_size": (unsigned, [pointer]),
        "bpf_map__max_entries": (unsigned, [pointer]),
        "bpf_map__set_max_entries": (integer, [pointer, unsigned]),
        "bpf_map__initial_value": (pointer, [pointer, pointer]),
        "bpf_map__pin": (integer, [pointer, text]),
        "bpf_map__reuse_fd": (integer, [pointer, integer]),
        "bpf_map_lookup_elem": (integer, [integer, pointer, pointer]),
        "bpf_map_update_elem": (integer, [integer, pointer, pointer, ctypes.c_uint64]),
        "bpf_map_delete_elem": (integer, [integer, pointer]),
        "bpf_map_get_next_key": (integer, [integer, pointer, pointer]),
        "bpf_obj_get": (integer, [text]),
        "bpf_prog_attach": (integer, [integer, integer, integer, unsigned]),
        "bpf_prog_query": (integer, [integer, integer, unsigned, pointer, pointer, pointer]),
        "libbpf_probe_bpf_prog_type": (integer, [integer, pointer]),
        "btf__find_by_name_kind": (ctypes.c_int32, [pointer, text, unsigned]),
        "btf__type_by_id": (pointer, [pointer, unsigned]),
        "btf__name_by_offset": (text, [pointer, unsigned]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def library_name() -> str:
    """Of the libbpf that is there. Raises CannotRunError where there is none."""
    return str(_libbpf()._name)


def _like_new(library: Any) -> Any:
    """Gives libbpf 0.5 the names that it lacks, and lets it return errors as libbpf 1 does."""
    next_map = library.bpf_map__next
    next_map.restype, next_map.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]
    library.bpf_object__next_map = lambda handle, previous: next_map(previous, handle)
    library.libbpf_probe_bpf_prog_type = lambda kind, _: int(bool(library.bpf_probe_prog_type(kind, 0) & 1))
    library.libbpf_set_strict_mode(_CLEAN_POINTERS | _DIRECT_ERRORS)
    return library


def _set_types(handle: int) -> None:
    """For libbpf 0.5, which does not know the section "tc" of a program."""
    library = _libbpf()
    if not hasattr(library, "bpf_program__next"):  # left out of libbpf 1
        return
    library.bpf_program__next.restype = ctypes.c_void_p
    library.bpf_program__next.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.bpf_program__set_type.argtypes = [ctypes.c_void_p, ctypes.c_int]
    program = None
    while program := library.bpf_program__next(program, handle):
        library.bpf_program__set_type(program, _SCHED_CLS)


class BpfMap:
    """One map of a loaded object, or a pinned one."""

    def __init__(self, fd: int, value_bytes: int, entries: int) -> None:
        self.fd = fd
        self.value_bytes = value_bytes
        self.entries = entries

    @property
    def stride_bytes(self) -> int:
        """Distance of two elements of an array map in memory (kernel/bpf/arraymap.c: rounded up to 8)."""
        return -(-self.value_bytes // 8) * 8

    def map_memory(self) -> memoryview:
        """All elements of an array map with BPF_F_MMAPABLE, shared with the kernel."""
        length = self.stride_bytes * self.entries
        pages = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            return memoryview(mmap.mmap(self.fd, pages))[:length]
        except OSError as error:
            raise CannotRunError(f"a BPF map cannot be mapped into memory: {error.strerror}") from None

    def update(self, key: bytes, value: bytes) -> None:
        """Sets one element."""
        if _libbpf().bpf_map_update_elem(self.fd, key, value, 0):
            raise OSError(ctypes.get_errno(), f"BPF map update: {os.strerror(ctypes.get_errno())}")

    def lookup(self, key: bytes) -> bytes:
        """One element. Raises KeyError where it is not there."""
        value = ctypes.create_string_buffer(self.value_bytes)
        if _libbpf().bpf_map_lookup_elem(self.fd, key, value):
            raise KeyError(key)
        return value.raw

    def delete(self, key: bytes) -> None:
        """Removes an element, if it is there."""
        _libbpf().bpf_map_delete_elem(self.fd, key)

    def keys(self, key_bytes: int) -> list[bytes]:
        """Keys of a hash map."""
        found: list[bytes] = []
        key = ctypes.create_string_buffer(key_bytes)
        previous = None
        while _libbpf().bpf_map_get_next_key(self.fd, previous, key) == 0:
            found.append(key.raw)
            previous = ctypes.create_string_buffer(key.raw, key_bytes)
        return found


class Hook(IntEnum):
    """Where a program is attached to an interface, by enum bpf_attach_type (include/uapi/linux/bpf.h)."""

    TCX_INGRESS = 46
    TCX_EGRESS = 47
    NETKIT_PRIMARY = 54
    """What the first interface of a netkit pair sends."""
    NETKIT_PEER = 55
    """What the second one sends; attached through the first."""


def attach_program(program_fd: int, ifindex: int, hook: Hook) -> None:
    """Attaches to an interface, for as long as the interface is there. Linux 6.7 and later."""
    result = _libbpf().bpf_prog_attach(program_fd, ifindex, hook, 0)
    if result < 0:
        raise OSError(-result, f"attach to interface {ifindex}, {hook.name}: {os.strerror(-result)}")


def count_programs(ifindex: int, hook: Hook) -> int:
    """How many are attached there by attach_program or as links; 0 where the kernel has no such hook."""
    count = ctypes.c_uint32()
    if _libbpf().bpf_prog_query(ifindex, hook, 0, None, None, ctypes.byref(count)):
        return 0
    return count.value


def can_load_tc_programs() -> bool:
    """Whether the kernel takes a program of the kind that tc runs from this process: tries it with an empty one."""
    return bool(_libbpf().libbpf_probe_bpf_prog_type(_SCHED_CLS, None) == 1)


def get_pinned_map(path: Path, value_bytes: int, entries: int) -> BpfMap:
    """A pinned map. Raises FileNotFoundError where nothing is pinned, PermissionError without the right."""
    fd = _libbpf().bpf_obj_get(os.fsencode(path))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return BpfMap(fd, value_bytes, entries)


class BpfObject:
    """An object file that clang made. Open it, set sizes and constants, load it, use it, close it."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise CannotRunError(f"{path} was not built: run make setup")
        library = _libbpf()
        self._messages: list[str] = []
        self._print = _PRINT(self._keep_message)
        library.libbpf_set_print(ctypes.cast(self._print, ctypes.c_void_p))
        self._path = path
        self._handle = library.bpf_object__open_file(os.fsencode(path), None)
        if not self._handle:
            if ctypes.get_errno() == errno.ENOMEM:
                raise CannotRunError(f"no memory for {path.name}: give it more (a virtual machine by --memory-mib)")
            raise CannotRunError(f"{path} is not a BPF object that libbpf can open: run make clean and make setup")
        _set_types(self._handle)

    def _keep_message(self, level: int, form: bytes, arguments: int) -> int:
        """Libbpf formats with C varargs: what it says is formatted by C as well."""
        text = ctypes.create_string_buffer(_MESSAGE_BYTES)
        ctypes.CDLL(None).vsnprintf(text, ctypes.c_size_t(_MESSAGE_BYTES), form, ctypes.c_void_p(arguments))
        if level == 0:
            self._messages.append(text.value.decode(errors="replace").strip())
        return 0

    def resize_map(self, name: str, entries: int) -> None:
        """Before load."""
        if _libbpf().bpf_map__set_max_entries(self._find_map(name), entries):
            raise ValueError(f"{name} cannot have {entries} entries")

    def reuse_map(self, name: str, existing: BpfMap) -> None:
        """Before load: takes a map that is in use in the place of a new one."""
        result = _libbpf().bpf_map__reuse_fd(self._find_map(name), existing.fd)
        if result:
            raise OSError(-result, f"BPF map {name}: {os.strerror(-result)}")

    def set_constant(self, name: str, value: bytes) -> None:
        """Before load: gives a ``const volatile`` global its value."""
        size = ctypes.c_size_t()
        rodata = self._section_map(".rodata")
        start = _libbpf().bpf_map__initial_value(rodata, ctypes.byref(size))
        offset, length = self.globals_of(".rodata")[name]
        if len(value) != length or offset + length > size.value:
            raise ValueError(f"{name} has {length} bytes, not {len(value)}")
        ctypes.memmove(start + offset, value, length)

    def load(self) -> None:
        """Into the kernel. Raises CannotRunError with the kernel's first reason."""
        result = _libbpf().bpf_object__load(self._handle)
        if not result:
            return
        reason = os.strerror(-result)
        if os.geteuid() != 0:
            raise CannotRunError(f"{self._path.name} cannot be loaded: {reason}: run as root")
        lines = [line for line in self.verifier_log.splitlines() if line.strip() and "processed" not in line]
        if os.environ.get("INCASTFREE_DEBUG"):
            print(self.verifier_log, flush=True)
        complaint = next((lines[i - 1] for i, line in enumerate(lines) if "END PROG LOAD LOG" in line), "")
        raise CannotRunError(
            f"{self._path.name} cannot be loaded into kernel {os.uname().release}: {reason} ({complaint or 'see dmesg'})"
        )

    @property
    def verifier_log(self) -> str:
        """What libbpf complained of, the verifier's words among it."""
        return "\n".join(self._messages)

    def program_fd(self, name: str) -> int:
        """After load."""
        program = _libbpf().bpf_object__find_program_by_name(self._handle, name.encode())
        if not program:
            raise KeyError(name)
        return int(_libbpf().bpf_program__fd(program))

    def map(self, name: str) -> BpfMap:
        """After load; .bss, .data and .rodata are maps of one element."""
        handle = self._section_map(name) if name.startswith(".") else self._find_map(name)
        library = _libbpf()
        return BpfMap(
            library.bpf_map__fd(handle), library.bpf_map__value_size(handle), library.bpf_map__max_entries(handle)
        )

    def pin_map(self, name: str, path: Path) -> None:
        """After load."""
        result = _libbpf().bpf_map__pin(self._find_map(name), os.fsencode(path))
        if result:
            raise OSError(-result, os.strerror(-result), str(path))

    def globals_of(self, section: str) -> dict[str, tuple[int, int]]:
        """Offset and size of every global variable in .bss, .data or .rodata, from the object's BTF."""
        library = _libbpf()
        btf = library.bpf_object__btf(self._handle)
        identifier = library.btf__find_by_name_kind(btf, section.encode(), _BTF_KIND_DATASEC)
        if identifier < 0:
            return {}
        address = library.btf__type_by_id(btf, identifier)
        count = ctypes.c_uint32.from_address(address + 4).value & 0xFFFF
        found = {}
        for index in range(count):
            entry = (ctypes.c_uint32 * 3).from_address(address + _BTF_TYPE_BYTES * (index + 1))
            variable = library.btf__type_by_id(btf, entry[0])
            name = library.btf__name_by_offset(btf, ctypes.c_uint32.from_address(variable).value)
            found[name.decode()] = (entry[1], entry[2])
        return found

    def close(self) -> None:
        """Closes programs and maps that are neither attached nor pinned."""
        if self._handle:
            _libbpf().bpf_object__close(self._handle)
            self._handle = None

    def _find_map(self, name: str) -> int:
        handle = _libbpf().bpf_object__find_map_by_name(self._handle, name.encode())
        if not handle:
            raise KeyError(name)
        return int(handle)

    def _section_map(self, section: str) -> int:
        """Libbpf names a section's map after the object and the section, cut to what the kernel takes."""
        library, handle = _libbpf(), None
        while handle := library.bpf_object__next_map(self._handle, handle):
            if library.bpf_map__name(handle).decode().endswith(section):
                return int(handle)
        raise KeyError(section)
