"""vLLM's EPLB load records: JSONL, a meta line, then a line of statistics a step.

The numbers are tokens by physical expert, of all senders together. Physical experts are contiguous by rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError
from controller.formats.json_values import integer, json_lines, record_of, whole_array
from controller.formats.placement import contiguous, place_experts, source_weights, spread
from controller.formats.trace import PER_RANK, Place, Reading, Trace, kept_places

__all__ = ["META", "STATS", "read"]

META: Final = "eplb_load_meta"
STATS: Final = "eplb_load_stats"


def read(path: Path, files: Sequence[Path], reading: Reading) -> Trace:
    """Receivers' loads, spread over the senders. Raises InputError for what vLLM's own reader refuses, and more."""
    if len(files) != 1:
        raise InputError(f"{path} is {len(files)} files, but a load record is one: name it")
    if reading.token_copies == PER_RANK:
        raise InputError(
            f"{path} counts tokens by expert: what counts once a rank cannot be told from it; leave --token-copies out"
        )
    meta: dict[str, Any] | None = None
    folded = reading.placement is not None or reading.experts_per_rank > 0
    places: list[Place] = []
    columns: list[NDArray[np.int64]] = []
    uneven: list[str] = []
    lines: dict[int, int] = {}
    ranks = 0
    for number, line in json_lines(path):
        where = f"{path}: line {number}"
        record = record_of(where, line)
        kind = record.get("record_type")
        if kind not in (META, STATS):
            raise InputError(f"{where}: record_type {str(kind)[:40]!r} is not known: there are {META} and {STATS}")
        if integer(where, record, "version") != 1:
            raise InputError(f"{where}: version {record['version']} is not known: version 1 is read")
        if kind == META:
            if meta is not None:
                raise InputError(f"{where} is a second {META}: a file has one, its first line")
            meta = record
            ranks = integer(where, meta, "num_ranks")
            if reading.ranks and reading.ranks != ranks and not folded:
                raise InputError(
                    f"{where}: num_ranks is {ranks}: --ranks {reading.ranks} needs --experts-per-rank or a --placement as well"
                )
            continue
        if meta is None:
            raise InputError(f"{where} has statistics before the {META}, which must be the first line")
        step = integer(where, record, "step")
        if step in lines:
            raise InputError(f"{where} has step {step}, as line {lines[step]} has: leave one of them out")
        lines[step] = number
        load = whole_array(f"{where}: expert_load", record.get("expert_load"), 2)
        p2l = whole_array(f"{where}: p2l_map", record.get("p2l_map"), 2)
        _check(where, meta, load, p2l)
        experts = int(p2l.max()) + 1 if p2l.size else 0
        totals = load.sum(axis=1)
        used = totals[totals > 0]
        if len(used) and used.min() != used.max():
            uneven.append(f"{used.min()} to {used.max()} at step {step}")
        if step not in reading.steps:
            continue
        for layer in range(len(load)):
            if layer not in reading.layers:
                continue
            if folded:
                logical = np.zeros(experts, dtype=np.int64)
                np.add.at(logical, p2l[layer], load[layer])
                placed = place_experts(where, reading, experts=experts, ranks=0 if reading.experts_per_rank else ranks)
                received = placed.columns(where, layer, logical)
            else:
                placed = contiguous(where, load.shape[1], ranks)
                received = np.zeros(ranks, dtype=np.int64)
                np.add.at(received, placed.rank_of, load[layer])
            places.append(Place(step, layer))
            columns.append(received)
    if meta is None or not lines:
        raise InputError(f"{path} has no {STATS if meta else META} line: it is not a whole load record")
    ranks = len(columns[0]) if columns else ranks
    kept, notes = kept_places(path, places, [int(each.sum()) for each in columns])
    weights, note = source_weights(str(path), reading, ranks)
    if uneven:
        notes.append(f"{path}: layers of one step have unequal totals, {uneven[0]} first: some tokens were not counted")
    how = "replicas are added up and placed anew" if folded else "replicas count where they are"
    notes.append(f"{path}: tokens count once for each of their experts; {how}")
    return Trace(
        "vllm",
        "tokens",
        tuple(places[index] for index in kept),
        lambda index: spread(columns[kept[index]], weights),
        (note, *notes),
    )


def _check(where: str, meta: dict[str, Any], load: NDArray[np.int64], p2l: NDArray[np.int64]) -> None:
    if load.shape != p2l.shape:
        raise InputError(
            f"{where}: expert_load is {load.shape[0]} x {load.shape[1]}, p2l_map {p2l.shape[0]} x {p2l.shape[1]}: they must agree"
        )
    layers = integer(where, meta, "num_layers", len(load))
    if layers != len(load):
        raise InputError(f"{where}: expert_load has {len(load)} layers, but num_layers is {layers}: they must agree")
    redundant = integer(where, meta, "num_redundant_experts", 0)
    if not p2l.size:
        raise InputError(f"{where} has no experts: write the record anew")
    if p2l.max() >= load.shape[1] or p2l.max() + 1 + redundant > load.shape[1]:
        raise InputError(
            f"{where}: p2l_map names expert {p2l.max()} of {load.shape[1]} physical ones, {redundant} of them redundant: "
            "they must agree"
        )
