"""The framework hook: rates of this rank's NIC from the split sizes of an all-to-all, written before it begins.

Two lines in a program that uses torch.distributed, the second in place of the call that was there::

    from controller import hook
    hook.all_to_all_single(output, input, output_splits, input_splits, counts=counts)

where ``counts`` is the N x N tensor of split sizes, row = sender, that ranks of a mixture-of-experts layer have gathered
anyway; without it they are gathered here. Any other transport uses the context manager::

    with pacer.dispatch(counts, bytes_a_row):
        ...  # send

Nothing here imports torch but all_to_all_single, which is called by those who have it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from controller.demand import HEADER_BYTES, MTU_BYTES
from controller.errors import InputError
from controller.loads import port_loads
from controller.nic import Nic, attach_nic, open_nic
from controller.rates import rank_rates

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["NIC", "Pacer", "all_to_all_single", "wire_matrix"]

NIC: Final = "INCASTFREE_NIC"
"""Inside ``incastfree exec``: the file that describes this host's NIC (controller/nic/pinned.py)."""
INTERFACE: Final = "INCASTFREE_DEV"
"""Elsewhere: the interface to pace."""
PEERS: Final = "INCASTFREE_PEERS"
"""And a file with the addresses of all ranks, as ``incastfree load`` takes it."""
LINK_GBPS: Final = "INCASTFREE_LINK_GBPS"
"""And the line rate of all NICs, where the interface does not say its own."""


class Pacer:
    """The NIC of a rank, and what must be known to compute its rates. Closing it ends nothing but its use."""

    def __init__(
        self,
        nic: Nic,
        rank: int,
        ranks: int,
        *,
        line_rates_bps: Sequence[Fraction] | None = None,
        mtu_bytes: int = MTU_BYTES,
    ) -> None:
        """``line_rates_bps``: one a rank; None: all are equal. ``mtu_bytes``: a packet on the wire, headers included."""
        if not 0 <= rank < ranks:
            raise InputError(f"rank {rank} of {ranks}: ranks count from 0")
        if ranks > nic.capabilities.slots:
            raise InputError(f"{ranks} ranks: this NIC paces {nic.capabilities.slots} flows at once")
        self.nic = nic
        self.rank = rank
        self.ranks = ranks
        self._steps = nic.capabilities.steps
        self._unpaced = np.zeros(ranks, dtype=np.uint32)
        equal = line_rates_bps is None or len(set(line_rates_bps)) == 1
        self._line_rates_bps = None if equal else line_rates_bps
        self._mtu_bytes = mtu_bytes
        self._scratch = (np.empty((ranks, ranks), dtype=np.int64), np.empty((ranks, ranks), dtype=np.int64))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Pacer:
        """By RANK and WORLD_SIZE, which torchrun sets, and INCASTFREE_NIC, which ``incastfree exec`` sets.

        On a host of its own: by INCASTFREE_DEV, an interface that gets the pacer, as root, INCASTFREE_PEERS, and
        INCASTFREE_LINK_GBPS where the interface does not say its speed.
        Raises InputError that names the variable, and CannotRunError as open_nic.
        """
        rank, ranks = (_number(environment, name) for name in ("RANK", "WORLD_SIZE"))
        if rank >= ranks:
            raise InputError(f"RANK is {rank} and WORLD_SIZE {ranks}: ranks count from 0")
        if NIC in environment:
            from controller.nic.pinned import read_description

            found = read_description(environment[NIC])
            for name, given, own in (
                ("WORLD_SIZE", ranks, len(found["line_rates_bps"])),
                ("RANK", rank, found["entry"]),
            ):
                if given != own:
                    raise InputError(
                        f"{name} is {given}, and {own} in {environment[NIC]}, which {NIC} names: leave both as incastfree exec "
                        "has set them"
                    )
            nic = attach_nic("pinned", environment[NIC])
            return cls(nic, rank, ranks, line_rates_bps=found["line_rates_bps"], mtu_bytes=found["mtu_bytes"])
        for name in (INTERFACE, PEERS):
            if name not in environment:
                raise InputError(
                    f"{name} is not set: give the interface to pace in {INTERFACE} and the file of all ranks' addresses in {PEERS}"
                )
        from controller.cli.load import read_peers

        peers = read_peers(Path(environment[PEERS]), ranks)
        missing = [peer for peer in range(ranks) if peer not in peers and peer != rank]
        if missing:
            raise InputError(
                f"{environment[PEERS]}: rank {missing[0]} of {ranks} has no address: give one for each rank"
            )
        line_rate_bps = _line_rate_bps(environment)
        try:
            interface = open_nic("ebpf", environment[INTERFACE], line_rate_bps)
        except InputError as error:  # which names the options of incastfree load
            text = str(error).replace("--dev ", f"{INTERFACE} ").replace("--link-gbps", LINK_GBPS)
            raise InputError(text) from None
        interface.write_peers({peer: address for peer, address in peers.items() if peer != rank})
        return cls(interface, rank, ranks)

    @contextmanager
    def dispatch(self, counts: Any, unit_bytes: int) -> Iterator[None]:
        """Paces what is sent in the block; afterwards nothing is paced.

        ``counts``: N x N whole numbers, row = sender, as an array or a tensor; ``unit_bytes``: payload of one. The diagonal
        is left out. Raises InputError for what is no such matrix, before anything is written.
        """
        self.nic.write_rates(self.rates(counts, unit_bytes))
        try:
            yield
        finally:
            self.nic.write_rates(self._unpaced)

    def rates(self, counts: Any, unit_bytes: int) -> NDArray[np.uint32]:
        """Of this rank, in steps of its line rate, one a rank; ``counts`` and ``unit_bytes`` as for dispatch."""
        wire_bytes = wire_matrix(counts, unit_bytes, self._mtu_bytes, self._scratch)
        loads = port_loads(wire_bytes)
        return rank_rates(
            wire_bytes[self.rank],
            loads.received,
            loads.sent,
            steps=self._steps,
            line_rates_bps=self._line_rates_bps,
            rank=self.rank,
        )

    def close(self) -> None:
        """The NIC keeps the rates that it has."""
        self.nic.close()


def wire_matrix(
    counts: Any,
    unit_bytes: int,
    mtu_bytes: int = MTU_BYTES,
    scratch: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
) -> NDArray[np.int64]:
    """Bytes on the wire, N x N, the diagonal 0, from counts of units of payload: packets as controller.demand cuts them.

    ``scratch``: two arrays of that size, of which the first is the result: memory that is new costs more than all of this.
    """
    matrix = _array(counts)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.dtype.kind not in "iu":
        raise InputError(f"split sizes are {matrix.shape} of {matrix.dtype}: give N x N whole numbers, row = sender")
    try:
        unit_bytes = index(unit_bytes)
    except TypeError:
        raise InputError(f"unit_bytes is {unit_bytes!r}: give the payload of one unit, in whole bytes") from None
    if unit_bytes <= 0:
        raise InputError(f"unit_bytes is {unit_bytes}: give the payload of one unit, in bytes")
    if matrix.min(initial=0) < 0:
        sender, receiver = np.unravel_index(matrix.argmin(), matrix.shape)
        raise InputError(f"rank {sender}'s split size for rank {receiver} is negative, {matrix.min()}: give 0 or more")
    if int(matrix.max(initial=0)) * unit_bytes * len(matrix) >= 2**61:
        raise InputError("split sizes of 2^61 bytes and more: give smaller ones")
    wire, packets = scratch or (np.empty(matrix.shape, dtype=np.int64), np.empty(matrix.shape, dtype=np.int64))
    if wire.shape != matrix.shape:
        raise InputError(f"split sizes of {len(matrix)} ranks: there are {len(wire)}")
    payload_bytes = mtu_bytes - HEADER_BYTES
    np.multiply(matrix, unit_bytes, out=wire, dtype=np.int64, casting="unsafe")
    np.fill_diagonal(wire, 0)
    np.add(wire, payload_bytes - 1, out=packets)
    # Nothing is negative here, and unsigned numbers are divided in half the time.
    np.floor_divide(packets.view(np.uint64), np.uint64(payload_bytes), out=packets.view(np.uint64))
    np.multiply(packets, HEADER_BYTES, out=packets)
    np.add(wire, packets, out=wire)
    return wire


def _array(counts: Any) -> NDArray[Any]:
    """Of numbers or of tensors. Raises InputError for rows that differ in length, and for what is no numbers."""
    try:
        return np.asarray(counts.cpu() if hasattr(counts, "cpu") else counts)
    except (ValueError, TypeError):
        raise InputError(
            "split sizes are no array, such as rows that differ in length: give N x N whole numbers, row = sender"
        ) from None


def _splits(given: Any, rows: int, rank: int, ranks: int) -> list[int]:
    """The split sizes of this rank, one a rank. Raises InputError for what torch would end the process for."""
    if given is None:
        if rows % ranks:
            raise InputError(
                f"the input of rank {rank} has {rows} rows, which {ranks} ranks do not share evenly: give input_split_sizes"
            )
        return [rows // ranks] * ranks
    try:
        splits = [index(size) for size in given]
    except TypeError:
        raise InputError(f"input_split_sizes of rank {rank} are {given!r}: give a whole number for each rank") from None
    if len(splits) != ranks:
        raise InputError(f"input_split_sizes of rank {rank} are {len(splits)}: give one for each of {ranks} ranks")
    for receiver, size in enumerate(splits):
        if size < 0:
            raise InputError(f"rank {rank}'s split size for rank {receiver} is negative, {size}: give 0 or more")
    return splits


def _compare(counts: NDArray[Any], splits: list[int], rank: int) -> None:
    """Raises InputError where the row of a rank is not what it sends. What it keeps, on the diagonal, is not looked at."""
    if counts.shape != (len(splits), len(splits)):
        return  # wire_matrix says so
    row = counts[rank].tolist()
    differing = [other for other, size in enumerate(splits) if row[other] != size and other != rank]
    if not differing:
        return
    other = differing[0]
    raise InputError(
        f"counts[{rank}, {other}] is {row[other]}, but the input_split_sizes of rank {rank} say {splits[other]} for rank {other}: "
        "give counts with row = sender; a transposed matrix may be the reason"
    )


@cache
def _own() -> Pacer:
    """That of this process, opened with its first dispatch."""
    return Pacer.from_environment()


def all_to_all_single(
    output: Any,
    input: Any,  # noqa: A002 (torch's name)
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
    *,
    counts: Any = None,
    pacer: Pacer | None = None,
) -> Any:
    """torch.distributed.all_to_all_single, paced. ``counts``: the split sizes of all ranks, if they are known.

    Rates are in force until it returns; with ``async_op`` until the next dispatch. Rank r of ``group`` must be rank r of
    the world, whose addresses the NIC knows. Raises InputError as Pacer does.
    """
    import torch
    import torch.distributed as dist

    pacer = pacer or _own()
    splits = _splits(input_split_sizes, len(input), pacer.rank, pacer.ranks)
    if counts is None:
        mine = torch.tensor(splits, dtype=torch.int64)
        gathered = [torch.empty_like(mine) for _ in range(pacer.ranks)]
        dist.all_gather(gathered, mine, group=group)
        counts = torch.stack(gathered)
    counts = _array(counts)
    _compare(counts, splits, pacer.rank)
    unit_bytes = input.element_size()
    for size in input.shape[1:]:
        unit_bytes *= int(size)

    def send() -> Any:
        return dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes, group, async_op)

    if async_op:
        pacer.nic.write_rates(pacer.rates(counts, unit_bytes))
        return send()
    with pacer.dispatch(counts, unit_bytes):
        return send()


def _line_rate_bps(environment: Mapping[str, str]) -> Fraction | None:
    """None: what the interface says."""
    text = environment.get(LINK_GBPS)
    if text is None:
        return None
    try:
        rate = Fraction(text) * 10**9
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if rate <= 0:
        raise InputError(f"{LINK_GBPS} is {text!r}: give the speed of the NICs in Gb/s, such as 400")
    return rate


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isdecimal():
        raise InputError(f"{name} is {text or 'not set'}: torchrun and incastfree exec set it to a whole number")
    return int(text)
