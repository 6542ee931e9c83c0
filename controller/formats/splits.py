"""Split sizes of all-to-alls: of torch.distributed.all_to_all_single, of Megatron's dispatcher, in traces of Kineto and PARAM.

in_i[j], what rank i sends to j, is a row; it must be out_j[i], what j expects of i. Rows of dimension 0 are counted: tokens, where
the tensor has a row a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError
from controller.formats.files import open_file, order_notes, rank_of_name
from controller.formats.json_values import parse_json, whole_array
from controller.formats.named_arrays import array_of, named_sets
from controller.formats.trace import (
    MAX_RANKS,
    PER_RANK,
    Place,
    Reading,
    Trace,
    counted,
    kept_places,
    numbered,
    refuse_given,
)

__all__ = ["KINETO", "SENT", "read"]

KINETO: Final = "traceEvents"
SENT: Final = (
    "input_split_sizes",
    "input_splits",
    "in_split",
    "in_splits",
    "In split size",
    "num_local_tokens_per_expert",
)
_DUE: Final = ("output_split_sizes", "output_splits", "out_split", "out_splits", "Out split size")
_NAMES: Final = ("comms", "Collective name", "collective_name")

_Call = tuple[int | None, int | None, int]
"""step, layer, number of the call among those of its rank with the same."""


def read(path: Path, files: Sequence[Path], reading: Reading) -> Trace:
    """One file a rank, or one of all with a rank in each record. The n-th calls of all ranks are one demand. Raises InputError."""
    if reading.token_copies == PER_RANK:
        raise InputError(f"{path} holds split sizes, which are what is sent: leave --token-copies out")
    refuse_given(path, reading, "says what each rank sends", "source_rows")
    sent: dict[_Call, dict[int, NDArray[Any]]] = {}
    due: dict[_Call, dict[int, NDArray[Any]]] = {}
    evens: dict[tuple[int | None, int | None], dict[int, bytearray]] = {}
    ordered: set[Path] = set()
    for position, file in enumerate(files):
        calls: dict[tuple[Any, ...], int] = {}
        for where, given, of_file in _records(file):
            rank = _integer(where, given, "rank")
            if rank is None:
                rank = of_file if of_file is not None else rank_of_name(file)
            if rank is None:
                if len(files) == 1:
                    raise InputError(
                        f"{where} does not say its rank: give records with rank, or files with it in their name"
                    )
                ordered.add(file)
                rank = position
            if rank >= MAX_RANKS:
                raise InputError(f"{where}: rank {rank} is above {MAX_RANKS - 1}")
            step, layer = _integer(where, given, "step"), _integer(where, given, "layer")
            if reading.layers and layer is None:
                raise InputError(f"{path} does not say its layers: leave --layers out")
            row = _splits(where, given, SENT)
            if "num_local_tokens_per_expert" in given and not any(name in given for name in SENT[:-1]):
                row = _of_experts(where, row, reading, len(files))
            else:
                refuse_given(path, reading, "has split sizes of ranks, not of experts", "experts_per_rank", "placement")
            expected = _splits(where, given, _DUE) if any(name in given for name in _DUE) else None
            evens.setdefault((step, layer), {}).setdefault(rank, bytearray()).append(not len(row))
            if not len(row):
                continue
            number = calls.get((rank, step, layer), 0)
            calls[rank, step, layer] = number + 1
            if step is None:
                step, number = number, 0
            if not reading.wants(step, layer):
                continue
            call = (step, layer, number)
            own = sent.setdefault(call, {})
            if rank in own:
                raise InputError(f"{where}: rank {rank} is there twice: give each rank's calls once")
            own[rank] = row
            if expected is not None and len(expected):
                due.setdefault(call, {})[rank] = expected
    notes = [f"{path}: split sizes are rows of dimension 0, taken as tokens", *order_notes(path, files, ordered)]
    for of_ranks in evens.values():
        _check_evens(path, of_ranks)
    even = sum(calls.count(True) for of_ranks in evens.values() for calls in of_ranks.values())
    if even:
        what = "which sends evenly, is" if even == 1 else "which send evenly, are"
        notes.append(f"{path}: {counted(even, 'call')} without split sizes, {what} left out")
    if not sent and even:
        raise InputError(f"{path} has calls without split sizes alone: they send evenly, and nothing says how much")
    if not sent and not (reading.steps or reading.layers):
        raise InputError(f"{path} has no all-to-all with split sizes: one of {', '.join(SENT)}")
    keys = sorted(sent, key=lambda key: tuple(-1 if part is None else part for part in key))
    lengths = {len(row) for own in sent.values() for row in own.values()}
    if len(lengths) > 1:
        raise InputError(
            f"{path}: calls have {min(lengths)} to {max(lengths)} split sizes: give those of one group of ranks"
        )
    ranks = lengths.pop() if lengths else 0
    if reading.ranks and ranks and reading.ranks != ranks:
        raise InputError(f"{path}: calls have {ranks} split sizes, but --ranks is {reading.ranks}: leave it out")
    over = max((rank for own in sent.values() for rank in own), default=-1)
    if over >= ranks and keys:
        raise InputError(f"{path}: rank {over} has calls of {ranks} split sizes: ranks of one group count from 0")
    for key in keys:
        _check(path, key, sent[key], due.get(key, {}))
    missing = {key: sorted(set(range(ranks)) - sent[key].keys()) for key in keys}
    partial = [key for key in keys if missing[key]]
    if partial:
        if len(missing[partial[0]]) == ranks - 1 and ranks > 1 and len(files) == 1:
            raise InputError(
                f"{path} is of one rank, one row of {ranks}: give a folder or a pattern with the files of all"
            )
        notes.append(
            f"{path}: {numbered('rank', missing[partial[0]])} without a call for {len(partial)} of {len(keys)} demands: "
            "taken to send nothing there"
        )
    places = [Place(step, layer, f"call {number + 1}" if number else "") for step, layer, number in keys]
    kept, more = kept_places(
        path, places, [sum(int(row.sum()) for row in sent[key].values()) for key in keys], ranks=ranks
    )

    def matrix(index: int) -> NDArray[np.int64]:
        demand = np.zeros((ranks, ranks), dtype=np.int64)
        for rank, row in sent[keys[kept[index]]].items():
            demand[rank] = row
        return demand

    return Trace("splits", "tokens", tuple(places[index] for index in kept), matrix, (*notes, *more))


def _check_evens(path: Path, of_ranks: dict[int, bytearray]) -> None:
    """A call without split sizes is left out, and must be so of all ranks: else the next calls of others would be paired with it."""
    first, *others = sorted(of_ranks)
    for rank in others:
        for number, (one, other) in enumerate(zip(of_ranks[first], of_ranks[rank], strict=False), 1):
            if one != other:
                without, of = (first, rank) if one else (rank, first)
                raise InputError(
                    f"{path}: all-to-all {number} of rank {without} has no split sizes (it sends evenly, and nothing says how "
                    f"much), but that of rank {of} has: record the split sizes of both"
                )


def _check(path: Path, call: _Call, sent: dict[int, NDArray[Any]], due: dict[int, NDArray[Any]]) -> None:
    """in_i[j] = out_j[i], where both are known."""
    senders = list(sent)
    rows = np.stack(list(sent.values()))
    absent = np.ones(rows.shape[1], dtype=bool)
    absent[senders] = False
    for receiver, expected in due.items():
        if len(expected) != rows.shape[1]:
            raise InputError(
                f"{path}: rank {receiver} has {len(expected)} output splits, but others send to another number of ranks"
            )
        silent = np.flatnonzero(absent & (expected > 0))
        if len(silent):
            raise InputError(
                f"{path}: {Place(call[0], call[1])}: rank {receiver} expects {expected[silent[0]]} from rank {silent[0]}, which has no "
                "call: give the files of all ranks"
            )
        for turn in np.flatnonzero(rows[:, receiver] != expected[senders])[:1].tolist():
            sender = senders[turn]
            raise InputError(
                f"{path}: {Place(call[0], call[1])}: rank {sender} sends {rows[turn, receiver]} to rank {receiver}, which expects "
                f"{expected[sender]}: the files are not of the same call"
            )


def _records(file: Path) -> Iterator[tuple[str, dict[str, Any], int | None]]:
    """(where, record, rank that the whole file says) of each all-to-all with split sizes."""
    with open_file(file) as stream:
        kineto = b'"traceEvents"' in stream.read(1 << 22) and file.suffix != ".npz"
    if not kineto:
        for where, given in named_sets(file):
            name = next((str(given[key]) for key in _NAMES if key in given), "all_to_all")
            if "all_to_all" not in name:
                continue
            if not any(key in given for key in SENT):
                raise InputError(f"{where} has no split sizes: one of {', '.join(SENT)}")
            yield where, given, None
        return
    with open_file(file) as stream:
        trace = parse_json(str(file), stream.read())
    if not isinstance(trace, dict) or not isinstance(trace.get(KINETO), list):
        raise InputError(f"{file} has no list {KINETO}: it is no trace of Kineto")
    about = trace.get("distributedInfo")
    rank = _integer(str(file), about, "rank") if isinstance(about, dict) else None
    found: list[tuple[float, int, bool, dict[str, Any]]] = []
    for number, event in enumerate(trace[KINETO], 1):
        about_call = event.get("args") if isinstance(event, dict) else None
        if not isinstance(about_call, dict) or "In split size" not in about_call:
            continue
        name = str(about_call.get("Collective name", event.get("name", "")))
        if "all_to_all" not in name:
            continue
        time = event.get("ts", 0)
        if isinstance(time, bool) or not isinstance(time, (int, float)):
            raise InputError(f"{file}: event {number} has no time: write the trace anew")
        # The same call is recorded once when it is made and once when its kernel runs.
        found.append((time, number, event.get("cat") == "kernel", about_call))
    kernels = any(kernel for *_, kernel, _ in found)
    if not found:
        raise InputError(f"{file} has no all-to-all with split sizes: record it with the names of its parameters")
    for _, number, kernel, given in sorted(found, key=lambda each: each[:2]):
        if kernel == kernels:
            yield f"{file}: event {number}", given, rank


def _integer(where: str, given: dict[str, Any], name: str) -> int | None:
    value = given.get(name, given.get(name.capitalize()))
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iu":
        value = int(value)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 2**31:
        raise InputError(f"{where}: {name} is no whole number of 0 or more")
    return value


def _splits(where: str, given: dict[str, Any], names: Sequence[str]) -> NDArray[Any]:
    """One list, in as few bytes as hold its numbers: traces of decoding have hundreds of thousands. Raises InputError."""
    name = next(name for name in names if name in given)
    value, at = given[name], f"{where}: {name}"
    if isinstance(value, str):
        if "..." in value:
            raise InputError(
                f"{at} was cut off (it ends in '...'): Kineto shortens long lists; record the split sizes themselves, or fewer ranks"
            )
        value = parse_json(at, value or "[]")
    row = whole_array(at, value, 1) if isinstance(value, list) else array_of(at, value, 1).astype(np.int64)
    if len(row) > MAX_RANKS and name != SENT[-1]:
        raise InputError(f"{at} has {len(row)} numbers: at most {MAX_RANKS} ranks are supported")
    if not len(row):
        return row
    largest = max(value) if isinstance(value, list) else int(row.max())
    if largest * len(row) >= 2**63:
        raise InputError(f"{at} adds up to 2^63 and more: give smaller ones")
    return row.astype(np.min_scalar_type(largest))


def _of_experts(where: str, loads: NDArray[Any], reading: Reading, files: int) -> NDArray[Any]:
    """Megatron: num_local_tokens_per_expert, reshaped to ranks x experts of each, and summed."""
    from controller.formats.placement import place_experts

    placed = place_experts(where, reading, experts=len(loads), ranks=files if files > 1 else 0)
    row = placed.columns(where, 0, loads.astype(np.int64))
    return row.astype(np.min_scalar_type(int(row.max(initial=0))))
