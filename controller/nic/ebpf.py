"""The ebpf backend: paces any Linux interface with a tc program, sch_fq behind it.

What is loaded stays when the process ends: the program on the interface's egress hook, its maps pinned below
/sys/fs/bpf/incastfree/IFACE, and in /run/incastfree a note of what unload has to put back.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from socket import if_nametoindex
from typing import Final

from controller.errors import CannotRunError, InputError
from controller.nic import Capabilities, Nic, Steps
from controller.nic.libbpf import BpfMap, BpfObject, get_pinned_map
from controller.nic.rate_table import RATE_ONE, RATE_SLOTS, TABLE_BYTES, RateTable
from controller.nic.rtnetlink import NetlinkError, RtNetlink

__all__ = [
    "OBJECT",
    "EbpfNic",
    "attach",
    "line_rate_bps",
    "load",
    "loaded_interfaces",
    "pack_address",
    "pin_folder",
    "unload",
    "unpack_address",
]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

OBJECT: Final = Path(__file__).with_name("objects") / "pacer.bpf.o"
PROGRAM: Final = "incastfree"
_BPF_FS: Final = Path("/sys/fs/bpf")
_NOTES: Final = Path("/run/incastfree")
_MAPS: Final = ("rate_tables", "peers", "edt_flows")
_DEFAULT_QDISCS: Final = ("", "noqueue", "pfifo_fast", "fq_codel", "mq", "fq")
ADDRESS_BYTES: Final = 16


def pin_folder(interface: str) -> Path:
    """Where the maps of an interface are pinned."""
    return _BPF_FS / "incastfree" / interface


def loaded_interfaces() -> list[str]:
    """Interfaces whose rates are pinned. Raises CannotRunError without the right to look."""
    try:
        return sorted(path.name for path in pin_folder("").iterdir())
    except FileNotFoundError:
        return []
    except PermissionError:
        raise CannotRunError("what is loaded can be seen by root only: run as root") from None


def line_rate_bps(interface: str) -> Fraction:
    """What the driver says. Raises InputError where it says nothing, as virtual interfaces do."""
    _index_of(interface)
    try:
        speed = int(Path(f"/sys/class/net/{interface}/speed").read_text())
    except (OSError, ValueError):
        speed = -1
    if speed <= 0:
        raise InputError(f"{interface} does not say its speed: give it with --link-gbps")
    return Fraction(speed) * 10**6


def pack_address(address: Address) -> bytes:
    """16 bytes: IPv6, or IPv4 mapped into it."""
    return address.packed if address.version == 6 else b"\0" * 10 + b"\xff\xff" + address.packed


def unpack_address(packed: bytes) -> Address:
    """The reverse of pack_address."""
    address = ipaddress.IPv6Address(packed)
    return address.ipv4_mapped or address


def _index_of(interface: str) -> int:
    try:
        return if_nametoindex(interface)
    except OSError:
        raise InputError(f"--dev {interface}: there is no such interface; see ip link") from None


@dataclass(frozen=True)
class _Notes:
    """What was there before load."""

    root_qdisc: str
    clsact: bool
    line_rate_bps: str = ""
    """That the pacer was loaded with."""


class EbpfNic(Nic):
    """One interface of this host that paces."""

    def __init__(self, interface: str, table: BpfMap, peers: BpfMap) -> None:
        """Use load or attach."""
        self.interface = interface
        self._peers = peers
        self._memory = table.map_memory()
        self._table = RateTable(self._memory)
        self._fds: tuple[int, ...] = (table.fd, peers.fd)

    @classmethod
    def attach(cls, interface: str) -> EbpfNic:
        """An interface that was loaded before. Raises CannotRunError if it was not, or without the right."""
        _index_of(interface)
        folder = pin_folder(interface)
        try:
            table = get_pinned_map(folder / "rate_tables", TABLE_BYTES, 1)
            peers = get_pinned_map(folder / "peers", 4, RATE_SLOTS)
        except FileNotFoundError:
            raise CannotRunError(f"{interface} has no rates loaded: run incastfree load first") from None
        except PermissionError:
            raise CannotRunError(f"the rates of {interface} can be read by root only: run as root") from None
        return cls(interface, table, peers)

    @classmethod
    def load(cls, interface: str, line_rate: Fraction) -> EbpfNic:
        """Puts the pacer on an interface, or takes over the one that is there.

        Raises InputError for an unknown interface and CannotRunError, with nothing changed, where the kernel
        or another program is in the way.
        """
        index = _index_of(interface)
        if os.geteuid() != 0:
            raise CannotRunError("loading a NIC needs root: run with sudo")
        if not os.path.ismount(_BPF_FS):
            raise CannotRunError(f"{_BPF_FS} is not mounted: mount -t bpf bpf {_BPF_FS}")
        with RtNetlink() as netlink:
            clsact = netlink.has_clsact(index)
            programs = netlink.egress_programs(index) if clsact else []
            notes = _Notes(netlink.root_qdisc(index), clsact, str(line_rate))
        if pin_folder(interface).is_dir():
            before = _read_notes(interface)
            if programs == [PROGRAM] and before.line_rate_bps == notes.line_rate_bps:
                return cls.attach(interface)
            # Another line rate, or what is left of an interface that was removed: begin anew.
            _uninstall(interface, index, before)
            return cls.load(interface, line_rate)
        foreign = [name for name in programs if name != PROGRAM]
        if foreign:
            raise CannotRunError(
                f"{interface} has programs on its egress hook already ({', '.join(foreign)}): remove them first"
            )
        if notes.root_qdisc not in _DEFAULT_QDISCS:
            raise CannotRunError(
                f"{interface} has the qdisc {notes.root_qdisc}, which pacing would replace by fq: "
                f"remove it first (tc qdisc del dev {interface} root)"
            )
        program = BpfObject(OBJECT)
        program.set_constant("byte_ns", struct.pack("<Q", round(Fraction(8 * 10**9) / line_rate * 2**32)))
        program.load()
        try:
            _install(interface, index, program, notes)
        except (OSError, CannotRunError):
            _uninstall(interface, index, notes)
            raise
        finally:
            program.close()
        return cls.attach(interface)

    @property
    def capabilities(self) -> Capabilities:
        """2^32 steps, one slot a peer."""
        return Capabilities(
            steps=RATE_ONE,
            slots=RATE_SLOTS,
            update_ns=430,
            update_basis="measured",
            update_source="benchmarks/controller: 1,000 rates from Python on an EPYC; 1,700 ns without the C part",
        )

    def write_peers(self, peers: Mapping[int, Address]) -> None:
        """Which address is the flow of which slot; what was written before and is not among them goes."""
        wanted = {pack_address(address): struct.pack("<I", slot) for slot, address in peers.items()}
        for key in self._peers.keys(ADDRESS_BYTES):
            if key not in wanted:
                self._peers.delete(key)
        for key, value in wanted.items():
            self._peers.update(key, value)

    def write_rates(self, steps: Steps) -> None:
        """All at once."""
        self._table.write(steps)

    def read_rates(self) -> tuple[int, bytes]:
        """(generation, little-endian uint32 a slot)."""
        return self._table.read()

    def close(self) -> None:
        """The interface goes on pacing."""
        fds, self._fds = self._fds, ()
        for fd in fds:
            os.close(fd)


load = EbpfNic.load
attach = EbpfNic.attach


def unload(interface: str) -> None:
    """Takes the pacer off and puts back what was there. Raises CannotRunError if it was not loaded."""
    index = _index_of(interface)
    if os.geteuid() != 0:
        raise CannotRunError("unloading a NIC needs root: run with sudo")
    if not pin_folder(interface).is_dir():
        raise CannotRunError(f"{interface} has no rates loaded: nothing to unload")
    notes = _read_notes(interface)
    _uninstall(interface, index, notes)


def _read_notes(interface: str) -> _Notes:
    try:
        return _Notes(**json.loads((_NOTES / f"{interface}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return _Notes("", clsact=False)


def _install(interface: str, index: int, program: BpfObject, notes: _Notes) -> None:
    folder = pin_folder(interface)
    folder.mkdir(parents=True, exist_ok=True)
    _NOTES.mkdir(parents=True, exist_ok=True)
    (_NOTES / f"{interface}.json").write_text(json.dumps(notes.__dict__))
    for name in _MAPS:
        program.pin_map(name, folder / name)
    try:
        with RtNetlink() as netlink:
            netlink.set_fq(index)  # one that is there may drop: its limits are lifted
            if not notes.clsact:
                netlink.add_clsact(index)
            netlink.flush()
            netlink.attach(index, program.program_fd("pacer_egress"), PROGRAM, egress=True)
    except NetlinkError as error:
        missing = {"fq": "CONFIG_NET_SCH_FQ", "clsact": "CONFIG_NET_SCH_INGRESS", "program": "CONFIG_NET_CLS_BPF"}
        part = next((part for part in missing if part in str(error)), "program")
        hint = f": this kernel lacks {missing[part]}" if error.errno in (errno.ENOENT, errno.EOPNOTSUPP) else ""
        raise CannotRunError(f"{interface} cannot be paced: {error.strerror}{hint}") from None


def _uninstall(interface: str, index: int, notes: _Notes) -> None:
    """As far as it goes: what is not there any more is none of our concern."""
    steps = []
    with RtNetlink() as netlink:
        if not notes.clsact:
            steps.append(netlink.delete_clsact)
        else:
            steps.append(netlink.detach_egress)
        if notes.root_qdisc != "fq":
            steps.append(netlink.delete_root_qdisc)
        for step in steps:
            try:
                step(index)
                netlink.flush()
            except NetlinkError:
                continue
    for name in _MAPS:
        (pin_folder(interface) / name).unlink(missing_ok=True)
    if pin_folder(interface).is_dir():
        pin_folder(interface).rmdir()
    (_NOTES / f"{interface}.json").unlink(missing_ok=True)
