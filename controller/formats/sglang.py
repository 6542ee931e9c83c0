"""SGLang's expert distribution dumps: torch files of statistics or of single passes and tokens, and the older CSV.

Statistics (``logical_count`` [steps, layers, experts]) are of all senders together. Records of single tokens hold the experts of
each rank's tokens, and so its row. Experts in records are physical, contiguous by rank.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError
from controller.formats.files import rank_of_name, read_content, read_head
from controller.formats.placement import place_experts, source_weights, spread
from controller.formats.tokens import copies_note, received
from controller.formats.torch_file import PICKLE_MAGIC, ZIP_MAGIC, Tensor, plain_list, read_torch
from controller.formats.trace import (
    PER_EXPERT,
    PER_RANK,
    Place,
    Reading,
    Trace,
    first_numbers,
    kept_places,
    refuse_given,
    silent_note,
)

__all__ = ["CSV_HEADER", "is_dump", "read"]

CSV_HEADER: Final = b"layer_id,expert_id,count"
_MOST: Final = 2**20


def is_dump(value: Any) -> bool:
    """Whether a dictionary of torch.save is one of SGLang's."""
    return isinstance(value, dict) and ("logical_count" in value or "records" in value)


def read(path: Path, files: Sequence[Path], reading: Reading) -> Trace:
    """Any of the kinds, by what the first file holds. Raises InputError."""
    if not read_head(files[0]).startswith((ZIP_MAGIC, PICKLE_MAGIC)):
        return _read_csv(path, files, reading)
    value = read_torch(files[0])
    if not is_dump(value):
        raise InputError(
            f"{files[0]} has neither logical_count nor records: it is no dump of SGLang's expert distribution"
        )
    if "logical_count" in value:
        if len(files) != 1:
            raise InputError(f"{path} is {len(files)} files, but one file holds the sum over all ranks: name it")
        return _read_statistics(path, value["logical_count"], reading)
    return _read_records(path, files, reading)


def _tensor(where: str, value: Any, *dimensions: int) -> NDArray[np.int64]:
    if not isinstance(value, Tensor):
        raise InputError(f"{where} is no tensor: write the dump anew")
    if len(value.shape) not in dimensions or value.dtype.kind not in "iu":
        raise InputError(
            f"{where} is {value.dtype} in {len(value.shape)} dimensions: whole numbers in {' or '.join(map(str, dimensions))} are read"
        )
    return value.array()


def _refuse_per_rank(path: Path, reading: Reading) -> None:
    if reading.token_copies == PER_RANK:
        raise InputError(
            f"{path} counts tokens by expert: what counts once a rank cannot be told from it; leave --token-copies out"
        )


def _counts_trace(
    path: Path,
    places: list[Place],
    columns: list[NDArray[np.int64]],
    ranks: int,
    reading: Reading,
    notes: Sequence[str],
) -> Trace:
    """Of what each rank receives."""
    kept, more = kept_places(path, places, [int(each.sum()) for each in columns])
    weights, note = source_weights(str(path), reading, ranks)
    return Trace(
        "sglang",
        "tokens",
        tuple(places[index] for index in kept),
        lambda index: spread(columns[kept[index]], weights),
        (note, *notes, *more, f"{path}: tokens count once for each of their experts"),
    )


def _uneven(path: Path, totals: NDArray[np.int64]) -> list[str]:
    """A note where layers of one step, [steps, layers], counted different numbers of tokens."""
    for step, row in enumerate(totals):
        used = row[row > 0]
        if len(used) and used.min() != used.max():
            return [
                f"{path}: layers of one step have unequal totals, {used.min()} to {used.max()} at step {step}: some tokens were not counted"
            ]
    return []


def _read_statistics(path: Path, value: Any, reading: Reading) -> Trace:
    _refuse_per_rank(path, reading)
    where = f"{path}: logical_count"
    counts = _tensor(where, value, 2, 3)
    counts = counts[None] if counts.ndim == 2 else counts
    steps, layers, experts = counts.shape
    if not counts.size:
        raise InputError(f"{where} is {steps} x {layers} x {experts}: it holds nothing")
    low = int(counts.min())
    if low < 0:
        step, layer, expert = (int(n) for n in np.argwhere(counts == low)[0])
        raise InputError(
            f"{where}: step {step}, layer {layer}, expert {expert} is negative: a count overflowed; take fewer steps"
        )
    placed = place_experts(where, reading, experts=experts)
    places = [Place(s, layer) for s in range(steps) for layer in range(layers) if reading.wants(s, layer)]
    columns = [
        placed.columns(
            f"{where}: step {place.step}, layer {place.layer}", layer, counts[place.step, layer].astype(np.int64)
        )
        for place in places
        for layer in [int(place.layer or 0)]
    ]
    return _counts_trace(
        path, places, columns, placed.ranks, reading, _uneven(path, counts.sum(axis=2, dtype=np.int64))
    )


def _read_csv(path: Path, files: Sequence[Path], reading: Reading) -> Trace:
    """One file a rank: the experts that its own tokens chose. A single file has no sources."""
    _refuse_per_rank(path, reading)
    refuse_given(path, reading, "has no steps", "steps")
    if len(files) > 1:
        refuse_given(path, reading, "says what each rank sends", "source_rows")
    counts: list[dict[tuple[int, int], int]] = []
    for file in files:
        try:
            text = read_content(file).decode("utf-8-sig")
            rows = csv.reader(io.StringIO(text, newline=None), strict=True)
            header = [name.strip() for name in next(rows, [])]
            if ",".join(header).encode() != CSV_HEADER:
                raise InputError(f"{file}: the first line is not {CSV_HEADER.decode()}: it is no table of SGLang's")
            table: dict[tuple[int, int], int] = {}
            for number, row in enumerate(rows, 2):
                if not row:
                    continue
                cells = [cell.strip() for cell in row]
                if len(cells) != 3 or not all(cell.isascii() and cell.isdigit() and len(cell) < 19 for cell in cells):
                    raise InputError(
                        f"{file}: row {number} is not three whole numbers of 0 or more: layer, expert, count"
                    )
                layer, expert, count = (int(cell) for cell in cells)
                if layer >= _MOST or expert >= _MOST:
                    raise InputError(f"{file}: row {number}: layer {layer} or expert {expert} is above {_MOST}")
                table[layer, expert] = table.get((layer, expert), 0) + count
        except (UnicodeDecodeError, csv.Error):
            raise InputError(f"{file} is not CSV text: write it anew") from None
        counts.append(table)
    highest = max((expert for table in counts for _, expert in table), default=-1)
    if highest < 0:
        raise InputError(f"{path} counts nothing: give a table with rows")
    ranks = reading.ranks or (len(files) if len(files) > 1 else 0)
    placed = place_experts(str(path), reading, ranks=ranks)
    if highest >= placed.logical:
        raise InputError(
            f"{path}: expert {highest} is not one of {placed.logical}: give --experts-per-rank or a --placement that has it"
        )
    layers = sorted({layer for table in counts for layer, _ in table if layer in reading.layers})
    places = [Place(None, layer) for layer in layers]
    of_files = [[_loads(table, layer, placed.logical) for layer in layers] for table in counts]
    if len(files) == 1:
        columns = [
            placed.columns(f"{path}: layer {layer}", layer, loads)
            for layer, loads in zip(layers, of_files[0], strict=True)
        ]
        return _counts_trace(path, places, columns, placed.ranks, reading, [])
    sources = [rank_of_name(file) for file in files]
    given = [number if rank is None else rank for number, rank in enumerate(sources)]
    if len(set(given)) < len(given) or max(given) >= placed.ranks:
        raise InputError(
            f"{path}: the files are of ranks {first_numbers(sorted(given))}, of {placed.ranks}: give one file a rank"
        )
    notes = [
        f"{path}: each file is taken for the choices of its own rank's tokens, each counted once for each of its experts"
    ]
    if all(table == counts[0] for table in counts[1:]):
        notes.append(
            f"{path}: all files are the same, so each may count the tokens of all ranks: check what was recorded"
        )
    kept, more = kept_places(
        path, places, [sum(int(loads[n].sum()) for loads in of_files) for n in range(len(layers))], ranks=placed.ranks
    )

    def matrix(index: int) -> NDArray[np.int64]:
        number = kept[index]
        demand = np.zeros((placed.ranks, placed.ranks), dtype=np.int64)
        for rank, loads in zip(given, of_files, strict=True):
            demand[rank] = placed.columns(f"{path}: layer {layers[number]}", layers[number], loads[number])
        return demand

    return Trace("sglang", "tokens", tuple(places[index] for index in kept), matrix, (*notes, *more))


def _loads(table: dict[tuple[int, int], int], layer: int, experts: int) -> NDArray[np.int64]:
    loads = np.zeros(experts, dtype=np.int64)
    for (of_layer, expert), count in table.items():
        if of_layer == layer:
            loads[expert] = min(count, 2**63 - 1)
    return loads


def _read_records(path: Path, files: Sequence[Path], reading: Reading) -> Trace:
    """Records of single passes; with the experts of each token the files of all ranks are wanted."""
    rows: dict[tuple[int, int], dict[int, NDArray[np.int64]]] = {}
    totals: dict[tuple[int, int], NDArray[np.int64]] = {}
    senders: set[int] = set()
    deepep = False
    physical = 0
    ranks = reading.ranks
    placed = None
    with_tokens: set[bool] = set()
    per_rank = False
    for file in files:
        value = read_torch(file)
        records = plain_list(value.get("records")) if is_dump(value) else None
        if not isinstance(records, list) or not records:
            raise InputError(f"{file} has no records: it is no dump of single passes")
        mapping = value.get("last_physical_to_logical_map")
        for number, record in enumerate(records, 1):
            where = f"{file}: record {number}"
            if not isinstance(record, dict):
                raise InputError(f"{where} is not a dictionary: write the dump anew")
            step, rank = record.get("forward_pass_id"), record.get("rank", rank_of_name(file))
            if type(step) is not int or type(rank) is not int or not 0 <= step < 2**31 or not 0 <= rank < 2**20:
                raise InputError(f"{where} has no forward_pass_id and rank of 0 or more: write the dump anew")
            senders.add(rank)
            counted = record.get("global_physical_count")
            tokens = record.get("topk_ids_of_layer")
            with_tokens.add(tokens is not None)
            if len(with_tokens) > 1:
                raise InputError(f"{where}: some records have topk_ids_of_layer and some have not: record in one mode")
            known = next(
                (each.shape[-1] for each in (mapping, counted) if isinstance(each, Tensor) and len(each.shape) == 2), 0
            )
            if physical and known and physical != known:
                raise InputError(f"{where} has {known} physical experts, others have {physical}: give dumps of one run")
            physical = physical or known
            if placed is None:
                if not ranks and not reading.experts_per_rank and not reading.placement:
                    if tokens is None and len(files) == 1:
                        raise InputError(f"{path} does not say how many ranks there are: give --ranks")
                    ranks = max([len(files), *(1 + (rank_of_name(each) or 0) for each in files)])
                placed = place_experts(str(path), reading, experts=physical, ranks=ranks)
                deepep = _of_deepep(record)
                per_rank, copies = copies_note(str(path), reading, PER_RANK if deepep else PER_EXPERT)
            if rank >= placed.ranks:
                raise InputError(
                    f"{where}: rank {rank} is not one of {placed.ranks}: give the files of all ranks, or --ranks"
                )
            if step not in reading.steps:
                continue
            if counted is not None:
                table = _tensor(f"{where}: global_physical_count", counted, 2)
                for layer in range(len(table)):
                    if layer not in reading.layers:
                        continue
                    before = totals.setdefault((step, layer), table[layer])
                    if not np.array_equal(before, table[layer]):
                        raise InputError(
                            f"{where}: global_physical_count of layer {layer} is not what another rank has for pass {step}: give dumps of one run"
                        )
            if tokens is None:
                continue
            chosen = _tensor(f"{where}: topk_ids_of_layer", tokens, 3)
            for layer in range(len(chosen)):
                if layer not in reading.layers:
                    continue
                own = rows.setdefault((step, layer), {})
                if rank in own:
                    raise InputError(f"{where}: pass {step} of rank {rank} is there twice: give each rank's dump once")
                own[rank] = received(
                    f"{where}, layer {layer}",
                    chosen[layer],
                    placed.table(where, layer),
                    placed.ranks,
                    per_rank=per_rank,
                )
    assert placed is not None
    if not with_tokens <= {True}:
        _refuse_per_rank(path, reading)
        keys = sorted(totals)
        if not keys and reading.steps.intervals == () == reading.layers.intervals:
            raise InputError(f"{path} has no global_physical_count: there is nothing to read")
        columns = [
            placed.columns(f"{path}: pass {step}", layer, totals[step, layer].astype(np.int64)) for step, layer in keys
        ]
        return _counts_trace(path, [Place(*key) for key in keys], columns, placed.ranks, reading, [])
    refuse_given(path, reading, "says what each rank sends", "source_rows")
    keys = sorted(rows)
    kept, notes = kept_places(
        path,
        [Place(*key) for key in keys],
        [sum(int(row.sum()) for row in rows[key].values()) for key in keys],
        ranks=placed.ranks,
    )
    silent = sorted(set(range(placed.ranks)) - senders)
    if silent:
        notes.append(silent_note(path, silent, placed.ranks, "records"))
    if not per_rank:
        notes += _disagreeing(path, keys, rows, totals, placed.rank_of, placed.ranks)

    def matrix(index: int) -> NDArray[np.int64]:
        demand = np.zeros((placed.ranks, placed.ranks), dtype=np.int64)
        for rank, row in rows[keys[kept[index]]].items():
            demand[rank] = row
        return demand

    return Trace("sglang", "tokens", tuple(Place(*keys[index]) for index in kept), matrix, (copies, *notes))


def _of_deepep(record: dict[Any, Any]) -> bool:
    """Whether the pass was sent by DeepEP: its layouts are among the miscellaneous objects."""
    given = record.get("misc_objects")
    return isinstance(given, list) and any(isinstance(each, dict) and "num_tokens_per_rank" in each for each in given)


def _disagreeing(
    path: Path,
    keys: list[tuple[int, int]],
    rows: dict[tuple[int, int], dict[int, NDArray[np.int64]]],
    totals: dict[tuple[int, int], NDArray[np.int64]],
    rank_of: NDArray[np.int64],
    ranks: int,
) -> list[str]:
    """A note where the rows do not add up to what was counted over all ranks."""
    wrong = []
    for key in keys:
        if key not in totals or len(totals[key]) != len(rank_of):
            continue
        counted = np.zeros(ranks, dtype=np.int64)
        np.add.at(counted, rank_of, totals[key].astype(np.int64))
        if not np.array_equal(counted, sum(rows[key].values())):
            wrong.append(key)
    if not wrong:
        return []
    step, layer = wrong[0]
    return [
        f"{path}: the tokens of {len(wrong)} of {len(keys)} demands do not add up to global_physical_count, first of pass {step}, "
        f"layer {layer}: the tokens are used"
    ]
