"""The ebpf backend: paces any Linux interface with a tc program, sch_fq behind it.

What is loaded stays when the process ends: the program on the interface's egress hook, its maps pinned below
/sys/fs/bpf/incastfree, and in /run/incastfree a note of what unload has to put back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import ipaddress
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from socket import if_nametoindex
from typing import Final

from controller.errors import CannotRunError, InputError
from controller.nic import Capabilities, Nic, Steps
from controller.nic.libbpf import BpfMap, BpfObject, Hook, count_programs, get_pinned_map
from controller.nic.notes import BPF_FS, Notes, forget, loaded_interfaces, pin_folder, read_notes, write_notes
from controller.nic.qdiscs import check_restorable, install_fq, restore, unpaced_parts
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
    "take_off",
    "unload",
    "unpack_address",
    "why_unpaced",
]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

OBJECT: Final = Path(__file__).with_name("objects") / "pacer.bpf.o"
PROGRAM: Final = "incastfree"
_TABLE: Final = "rate_tables"
_NEXT_TABLE: Final = "rate_tables_next"
_MAPS: Final = (_TABLE, "peers", "edt_flows")
_KEPT_MAPS: Final = ("peers", "edt_flows")
"""When a program takes the place of another."""
ADDRESS_BYTES: Final = 16
PEER: Final = struct.Struct("<II")
"""struct peer (ebpf/nic/pacer.bpf.c): slot, clock."""
FLOW_BYTES: Final = 32
"""struct locked_flow."""
_ETHERNET: Final = (1, 772)
"""ARPHRD_ETHER and ARPHRD_LOOPBACK: what has Ethernet headers."""
_SLOWEST_BPS: Final = 10**7
"""On slower ones the time of the largest segment would not fit into the clock's numbers."""


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


class EbpfNic(Nic):
    """One interface of this host that paces."""

    def __init__(self, interface: str, table: BpfMap, peers: BpfMap, flows: BpfMap) -> None:
        """Use load or attach."""
        self.interface = interface
        self._peers = peers
        self._flows = flows
        self._memory = table.map_memory()
        self._table = RateTable(self._memory)
        self._fds: tuple[int, ...] = (table.fd, peers.fd, flows.fd)

    @classmethod
    def attach(cls, interface: str) -> EbpfNic:
        """An interface that was loaded before. Raises CannotRunError if it was not, or without the right."""
        index = _index_of(interface)
        maps = _pinned_maps(interface)
        notes = read_notes(interface)
        if notes is None or notes.index != index:
            for each in maps:
                os.close(each.fd)
            raise CannotRunError(f"{interface} is not the interface that was loaded: run incastfree load again")
        return cls(interface, *maps)

    @classmethod
    def load(cls, interface: str, line_rate: Fraction) -> EbpfNic:
        """Puts the pacer on an interface, or takes over the one that is there with its flows and rates.

        Where the line rate is another one than before, rates stay what they were in bytes a second, and flows keep
        their debts; other processes that had the NIC open must open it again.

        Raises InputError for an interface that is unknown or cannot be paced, and CannotRunError, with nothing
        changed, where the kernel or another program is in the way.
        """
        index = _index_of(interface)
        if os.geteuid() != 0:
            raise CannotRunError("loading a NIC needs root: run with sudo")
        _check_interface(interface, line_rate)
        if not os.path.ismount(BPF_FS):
            raise CannotRunError(f"{BPF_FS} is not mounted: mount -t bpf bpf {BPF_FS}")
        with _alone(), _explained(interface):
            notes = _current_notes(interface, index)
            if notes is None:
                _install(interface, index, line_rate)
            else:
                _take_over(interface, index, line_rate, notes)
            return cls.attach(interface)

    @property
    def capabilities(self) -> Capabilities:
        """2^32 steps, one slot a peer."""
        return Capabilities(
            steps=RATE_ONE,
            slots=RATE_SLOTS,
            update_ns=430,
            update_basis="measured",
            update_source="benchmarks/controller_speed: 1,000 rates from Python on an EPYC; 1,700 ns without the C part",
        )

    def write_peers(self, peers: Mapping[int, Address]) -> None:
        """Which address is the flow of which slot; what was written before and is not among them goes.

        An address keeps its debt when its slot changes; until write_rates follows it has the rate that its new slot
        had before. Raises ValueError for a slot that there is not.
        """
        if any(not 0 <= slot < RATE_SLOTS for slot in peers):
            raise ValueError(f"slots are 0 to {RATE_SLOTS - 1}")
        wanted = {pack_address(address): slot for slot, address in peers.items()}
        clocks: dict[bytes, int] = {}
        for key in self._peers.keys(ADDRESS_BYTES):
            if key in wanted:
                clocks[key] = PEER.unpack(self._peers.lookup(key))[1]
            else:
                self._peers.delete(key)
        unused = iter(sorted(set(range(RATE_SLOTS)) - set(clocks.values())))
        for key, slot in wanted.items():
            if key not in clocks:
                clocks[key] = next(unused)
                self._flows.update(struct.pack("<I", clocks[key]), bytes(FLOW_BYTES))
            self._peers.update(key, PEER.pack(slot, clocks[key]))

    def read_peers(self) -> dict[int, Address]:
        """Slot to address, in the order of slots."""
        found: dict[int, Address] = {}
        for key in self._peers.keys(ADDRESS_BYTES):
            with contextlib.suppress(KeyError):  # removed since
                found[PEER.unpack(self._peers.lookup(key))[0]] = unpack_address(key)
        return dict(sorted(found.items()))

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
    take_off(interface)


def take_off(interface: str) -> list[str]:
    """As unload; says what it had to leave alone since somebody else has changed it meanwhile."""
    if os.geteuid() != 0:
        raise CannotRunError("unloading a NIC needs root: run with sudo")
    left = pin_folder(interface).is_dir() or read_notes(interface) is not None
    try:
        index = _index_of(interface)
    except InputError:
        if not left:
            raise
        index = 0
    if not left:
        raise CannotRunError(f"{interface} has no rates loaded: nothing to unload")
    with _alone():
        notes = read_notes(interface)
        if notes is None or notes.index != index:
            forget(interface)
            return [f"the interface that was loaded as {interface} is gone"]
        with _explained(interface):
            return _uninstall(interface, notes)


def why_unpaced(interface: str) -> str:
    """Why the rates of a loaded interface are not in force, "" if they are."""
    index = _index_of(interface)
    notes = read_notes(interface)
    if notes is None or notes.index != index:
        return "it is not the interface that was loaded"
    with RtNetlink() as netlink:
        if not netlink.has_clsact(index) or PROGRAM not in netlink.filters(index, egress=True):
            return "somebody has removed the program from its egress hook"
        return unpaced_parts(netlink, index, notes.root_handle)


def _check_interface(interface: str, line_rate: Fraction) -> None:
    kind = int(Path(f"/sys/class/net/{interface}/type").read_text())
    if kind not in _ETHERNET:
        raise InputError(f"--dev {interface}: it has no Ethernet headers (type {kind}): give the interface below it")
    if line_rate < _SLOWEST_BPS:
        raise InputError(f"--link-gbps {float(line_rate) / 1e9:g}: a NIC is paced from 0.01 Gb/s on")


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """No other load or unload meanwhile."""
    lock = os.open(BPF_FS, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _explained(interface: str) -> Iterator[None]:
    """What the kernel refuses, in one line."""
    try:
        yield
    except NetlinkError as error:
        missing = {
            "fq": "CONFIG_NET_SCH_FQ",
            "clsact": "CONFIG_NET_SCH_INGRESS",
            "program": "CONFIG_NET_CLS_BPF",
            "mq": "many queues",
        }
        words = str(error.strerror).split()
        hint = ""
        if words[0] in missing and error.errno in (errno.ENOENT, errno.EOPNOTSUPP):
            hint = f": this kernel lacks {missing[words[0]]}"
        if error.errno in (errno.EPERM, errno.EACCES):
            hint = ": root of a container needs CAP_NET_ADMIN and CAP_BPF of the host"
        raise CannotRunError(f"{interface} cannot be paced: {error.strerror}{hint}") from None
    except OSError as error:
        raise CannotRunError(f"{interface} cannot be paced: {error.filename or ''} {error.strerror}") from None


def _pinned_maps(interface: str) -> tuple[BpfMap, BpfMap, BpfMap]:
    """rate_tables, peers, edt_flows."""
    folder = pin_folder(interface)
    found: list[BpfMap] = []
    try:
        for name, value_bytes, entries in (
            (_TABLE, TABLE_BYTES, 1),
            ("peers", PEER.size, RATE_SLOTS),
            ("edt_flows", FLOW_BYTES, RATE_SLOTS),
        ):
            found.append(get_pinned_map(folder / name, value_bytes, entries))
    except OSError as error:
        for each in found:
            os.close(each.fd)
        if isinstance(error, FileNotFoundError):
            raise CannotRunError(f"{interface} has no rates loaded: run incastfree load first") from None
        if isinstance(error, PermissionError):
            raise CannotRunError(f"the rates of {interface} can be read by root only: run as root") from None
        raise CannotRunError(f"{folder} cannot be read: {error.strerror}") from None
    table, peers, flows = found
    return table, peers, flows


def _current_notes(interface: str, index: int) -> Notes | None:
    """Of the pacer that is at work on the interface. What is left of one that is not is removed."""
    notes = read_notes(interface)
    if notes is not None and notes.index == index:
        with RtNetlink() as netlink:
            attached = netlink.has_clsact(index) and PROGRAM in netlink.filters(index, egress=True)
        pinned = all((pin_folder(interface) / name).exists() for name in _MAPS)
        if attached and pinned and notes.root_handle:
            return notes
        _uninstall(interface, notes)
    forget(interface)
    return None


def _object_hash() -> str:
    return hashlib.sha256(OBJECT.read_bytes()).hexdigest() if OBJECT.is_file() else ""


def _open_program(line_rate: Fraction) -> BpfObject:
    program = BpfObject(OBJECT)
    program.set_constant("byte_ns", struct.pack("<Q", round(Fraction(8 * 10**9) / line_rate * 2**32)))
    return program


def _install(interface: str, index: int, line_rate: Fraction) -> None:
    with RtNetlink() as netlink:
        clsact = netlink.has_clsact(index)
        foreign = netlink.filters(index, egress=True) if clsact else []
        before = netlink.qdiscs(index)
    others = count_programs(index, Hook.TCX_EGRESS)
    if foreign == [PROGRAM]:
        raise CannotRunError(
            f"{interface} has a program of incastfree whose notes are gone: remove it first "
            f"(tc filter del dev {interface} egress pref 1)"
        )
    if foreign or others:
        names = ", ".join(foreign) or f"{others} by tcx, see bpftool net"
        raise CannotRunError(f"{interface} has programs on its egress hook already ({names}): remove them first")
    check_restorable(interface, before)
    notes = Notes(index, clsact, str(line_rate), _object_hash(), tuple(before))
    program = _open_program(line_rate)
    try:
        program.load()
        pin_folder(interface).mkdir(parents=True)
        write_notes(interface, notes)
        for name in _MAPS:
            program.pin_map(name, pin_folder(interface) / name)
        with RtNetlink() as netlink:
            notes = replace(notes, root_handle=install_fq(netlink, index, before))
            write_notes(interface, notes)
            if not clsact:
                netlink.add_clsact(index)
                netlink.flush()
            netlink.attach(index, program.program_fd("pacer_egress"), PROGRAM, egress=True)
    except BaseException:
        if pin_folder(interface).exists():
            with contextlib.suppress(NetlinkError):  # the first reason is the one to tell
                _uninstall(interface, notes)
        raise
    finally:
        program.close()


def _take_over(interface: str, index: int, line_rate: Fraction, notes: Notes) -> None:
    """Leaves the pacer that is there, or puts one of this line rate in its place: its flows and rates stay."""
    with RtNetlink() as netlink:
        changed = unpaced_parts(netlink, index, notes.root_handle)
    if changed:
        raise CannotRunError(
            f"{interface} was loaded before, but {changed}: run incastfree unload --dev {interface} first"
        )
    now = replace(notes, line_rate_bps=str(line_rate), program=_object_hash())
    if now == notes:
        return
    table, peers, flows = _pinned_maps(interface)
    program = _open_program(line_rate)
    following = pin_folder(interface) / _NEXT_TABLE
    following.unlink(missing_ok=True)
    try:
        for name, existing in zip(_KEPT_MAPS, (peers, flows), strict=True):
            program.reuse_map(name, existing)
        program.load()
        memory = program.map(_TABLE).map_memory()
        memory[:TABLE_BYTES] = table.map_memory()[:TABLE_BYTES]  # the generation goes on
        _, steps = RateTable(memory).read()
        RateTable(memory).write(_rescaled(steps, Fraction(notes.line_rate_bps) / line_rate))
        program.pin_map(_TABLE, following)
        with RtNetlink() as netlink:
            netlink.attach(index, program.program_fd("pacer_egress"), PROGRAM, egress=True, replace=True)
        following.rename(pin_folder(interface) / _TABLE)
        write_notes(interface, now)
    except BaseException:
        following.unlink(missing_ok=True)
        raise
    finally:
        program.close()
        for each in (table, peers, flows):
            os.close(each.fd)


def _rescaled(steps: bytes, factor: Fraction) -> bytes:
    """Steps of another line rate that are as many bytes a second, and never 0 where they were not."""
    slots = struct.Struct(f"<{len(steps) // 4}I")
    top = RATE_ONE - 1
    return slots.pack(*(min(top, -(-old * factor.numerator // factor.denominator)) for old in slots.unpack(steps)))


def _uninstall(interface: str, notes: Notes) -> list[str]:
    """Puts back what was there, and says what it left alone. Raises NetlinkError after all else has been done."""
    index, remarks = notes.index, []
    failed: NetlinkError | None = None
    with RtNetlink() as netlink:
        try:
            if netlink.has_clsact(index) and PROGRAM in netlink.filters(index, egress=True):
                netlink.detach_egress(index)
                netlink.flush()
            if netlink.has_clsact(index) and not notes.clsact:
                if any(netlink.filters(index, egress=egress) for egress in (False, True)):
                    remarks.append("other programs have come to its hooks (clsact), which stay")
                else:
                    netlink.delete_clsact(index)
                    netlink.flush()
        except NetlinkError as error:
            failed = error
        try:
            changed = unpaced_parts(netlink, index, notes.root_handle) if notes.root_handle else ""
            if changed:
                remarks.append(f"{changed}, which stays")
            else:
                restore(netlink, index, list(notes.before))
        except NetlinkError as error:
            failed = failed or error
    forget(interface)
    if failed:
        raise failed
    return remarks
