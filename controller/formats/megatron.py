"""Megatron-LM's router traces: ``router_trace_rank{r}.jsonl``, a record a step, block and layer (--moe-routing-trace-path).

A record holds step, stage, block, layer, rank, num_tokens, topk, top_indices[tokens][topk] and perhaps mtp_idx.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError
from controller.formats.files import rank_of_name
from controller.formats.json_values import integer, json_lines, parse_json, record_of, whole_array
from controller.formats.placement import contiguous, place_experts
from controller.formats.tokens import copies_note, received
from controller.formats.trace import (
    MAX_RANKS,
    PER_EXPERT,
    Place,
    Reading,
    Trace,
    kept_places,
    numbered,
    refuse_given,
    silent_note,
)

__all__ = ["KEY", "read"]

KEY: Final = b'"top_indices"'
_BLOCK: Final = 1 << 17
_LONGEST: Final = 7
_COMMA, _MINUS, _ZERO, _NINE, _SEMICOLON = b",-09;"

_Key = tuple[int, int, int, int, int, int]
"""step, stage, block, layer, mtp_idx + 1, and how often these came before: a step of several microbatches repeats them."""


def read(path: Path, files: Sequence[Path], reading: Reading) -> Trace:
    """One file a rank, or several ranks in one. Raises InputError."""
    where = str(path)
    per_rank, note = copies_note(where, reading, PER_EXPERT)
    if reading.placement or reading.ranks or not reading.experts_per_rank:
        placed = place_experts(where, reading, ranks=reading.ranks or len(files))
        fixed = placed.ranks
    else:  # as many as there turn out to be
        placed = contiguous(where, MAX_RANKS * reading.experts_per_rank, MAX_RANKS)
        fixed = 0
    rows: dict[_Key, dict[int, NDArray[np.int64]]] = {}
    refuse_given(path, reading, "says what each rank sends", "source_rows")
    seen: dict[tuple[int, ...], tuple[int, Path]] = {}
    senders: set[int] = set()
    for file in files:
        named = rank_of_name(file)
        for number, line in json_lines(file):
            at = f"{file}: line {number}"
            record, chosen = _record(at, line)
            step, layer = integer(at, record, "step"), integer(at, record, "layer")
            stage, block = integer(at, record, "stage", 0), integer(at, record, "block", 0)
            mtp = 0 if record.get("mtp_idx") is None else integer(at, record, "mtp_idx") + 1
            rank = integer(at, record, "rank", named)
            if rank >= placed.ranks:
                raise InputError(f"{at}: rank {rank} is not one of {placed.ranks}: ranks count from 0 (see --ranks)")
            if len(files) > 1 and named not in (None, rank) and "rank" in file.name:
                raise InputError(f"{at}: rank {rank}, but the file's name says {named}: rename it, or mend the record")
            before = (step, stage, block, layer, mtp, rank)
            again, earlier = seen.get(before, (0, file))
            if earlier != file:
                raise InputError(
                    f"{at}: {earlier} has step {step}, layer {layer} of rank {rank} as well: leave one out"
                )
            seen[before] = again + 1, file
            senders.add(rank)
            if not reading.wants(step, layer):
                continue
            row = received(at, chosen, placed.table(where, layer), placed.ranks, per_rank=per_rank)
            used = np.flatnonzero(row)
            rows.setdefault((step, stage, block, layer, mtp, again), {})[rank] = row[
                : used[-1] + 1 if len(used) else 0
            ].copy()
    if not senders:
        raise InputError(f"{path} holds no record: a router trace has one JSON object a line")
    reached = max((len(row) for of_ranks in rows.values() for row in of_ranks.values()), default=0)
    ranks = fixed or max(2, reached, *(rank + 1 for rank in senders))
    keys = sorted(rows)
    totals = [sum(int(row.sum()) for row in rows[key].values()) for key in keys]
    kept, notes = kept_places(path, [_place(key) for key in keys], totals, ranks=ranks)
    got = np.zeros(ranks, dtype=bool)
    for of_ranks in rows.values():
        for row in of_ranks.values():
            got[: len(row)] |= row > 0
    idle = np.flatnonzero(~got).tolist()
    if idle and got.any():
        notes.append(
            f"{path}: no token chose an expert of {numbered('rank', idle)} of {ranks}: check where experts are, if that is not so"
        )
    silent = sorted(set(range(ranks)) - senders)
    if silent:
        notes.append(silent_note(path, silent, ranks, "records"))
    partial = [key for key in keys if senders - rows[key].keys()]
    if partial:
        lacking = sorted(senders - rows[partial[0]].keys())
        notes.append(
            f"{path}: {_place(partial[0])}: no record of {numbered('rank', lacking)}, so in {len(partial)} of {len(keys)} "
            "demands: taken to send nothing there"
        )

    def matrix(index: int) -> NDArray[np.int64]:
        counts = np.zeros((ranks, ranks), dtype=np.int64)
        for rank, row in rows[keys[kept[index]]].items():
            counts[rank, : len(row)] = row
        return counts

    return Trace("megatron", "tokens", tuple(_place(keys[index]) for index in kept), matrix, (note, *notes))


def _place(key: _Key) -> Place:
    step, stage, block, layer, mtp, again = key
    parts = [f"{name} {value}" for name, value in (("stage", stage), ("block", block)) if value]
    parts += [f"mtp {mtp - 1}"] if mtp else []
    parts += [f"call {again + 1}"] if again else []
    return Place(step, layer, " ".join(parts))


def _record(where: str, line: bytes) -> tuple[dict[str, Any], NDArray[Any]]:
    """The record and its top_indices, [tokens, topk]."""
    chosen: NDArray[Any]
    fast = _fast(where, line)
    if fast is not None:
        record, chosen = fast
    else:
        record = record_of(where, line)
        if "top_indices" not in record:
            raise InputError(f"{where}: top_indices is missing: this is no record of a router trace")
        given = record["top_indices"]
        if given == []:
            chosen = np.zeros((0, 1), dtype=np.int32)
        else:
            chosen = whole_array(f"{where}: top_indices", given, 2, least=-1)
    tokens = integer(where, record, "num_tokens", len(chosen))
    topk = integer(where, record, "topk", chosen.shape[1])
    if tokens != len(chosen) or (tokens and topk != chosen.shape[1]):
        raise InputError(
            f"{where}: top_indices is {len(chosen)} x {chosen.shape[1]}, but num_tokens is {tokens} and topk {topk}: they must agree"
        )
    return record, chosen


def _fast(where: str, line: bytes) -> tuple[dict[str, Any], NDArray[np.int32]] | None:
    """The same for a record as JSON writers make it; None where anything is unusual, which is then read slowly.

    json makes a list of every token: ten million would take several times the memory of their file.
    """
    name = line.find(KEY)
    if name < 0 or line.find(KEY, name + 1) >= 0:
        return None
    begin = line.find(b"[[", name)
    end = line.find(b"]]", begin)
    if begin < 0 or end < 0 or line[name + len(KEY) : begin].strip() != b":":
        return None
    try:
        record = parse_json(where, b"%bnull%b" % (line[:begin], line[end + 2 :]))
    except InputError:
        return None
    if not isinstance(record, dict) or record.get("top_indices", 0) is not None:
        return None
    first = line.find(b"]", begin)
    topk = line.count(b",", begin, first) + 1
    parts = []
    place = begin + 1
    while place <= end:
        stop = line.find(b"]", min(place + _BLOCK, end)) + 1
        numbers = _numbers(line[place:stop].lstrip(b", "), topk)
        if numbers is None:
            return None
        parts.append(numbers)
        place = stop
    return record, parts[0] if len(parts) == 1 else np.concatenate(parts)


def _numbers(text: bytes, topk: int) -> NDArray[np.int32] | None:
    """``[1, 2], [3, 4]`` as an array of so many columns; None where it is anything else."""
    text = text.replace(b", ", b",").replace(b"],[", b";")
    if text[:1] != b"[" or text[-1:] != b"]":
        return None
    letters = np.frombuffer(text, dtype=np.uint8)[1:-1]
    ends = np.flatnonzero((letters == _COMMA) | (letters == _SEMICOLON))
    marks = letters[ends]
    ends = np.append(ends, len(letters))
    begins = np.append(0, ends[:-1] + 1)
    if len(ends) % topk or not (ends > begins).all():
        return None
    rows = len(ends) // topk
    if not (marks[topk - 1 :: topk] == _SEMICOLON).all() or np.count_nonzero(marks == _SEMICOLON) != rows - 1:
        return None
    negative = letters[begins] == _MINUS
    begins += negative
    lengths = ends - begins
    longest = int(lengths.max())
    digits = np.count_nonzero((letters >= _ZERO) & (letters <= _NINE))
    if longest > _LONGEST or int(lengths.min()) < 1 or digits != int(lengths.sum()):
        return None
    if ((lengths > 1) & (letters[begins] == _ZERO)).any():
        return None  # JSON has no leading zeros
    values = np.zeros(len(ends), dtype=np.int32)
    for power in range(longest):
        there = lengths > power
        digit = letters[np.where(there, ends - 1 - power, 0)].astype(np.int32) - _ZERO
        values += np.where(there, digit * 10**power, 0)
    np.negative(values, where=negative, out=values)
    return values.reshape(rows, topk)
