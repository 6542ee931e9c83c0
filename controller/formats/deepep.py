"""DeepEP's layouts: what get_dispatch_layout takes and gives, one set of arrays a rank.

topk_idx [tokens, k] (-1: none), num_tokens_per_rank [ranks], num_tokens_per_rdma_rank [nodes], num_tokens_per_expert [experts],
is_token_in_rank [tokens, ranks]. A token for two experts on one rank is sent there once: num_tokens_per_rank counts
it once, num_tokens_per_expert twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError
from controller.formats.files import order_notes, rank_of_name
from controller.formats.named_arrays import array_of, named_sets
from controller.formats.placement import Placement, place_experts
from controller.formats.tokens import copies_note, received
from controller.formats.torch_file import plain_list
from controller.formats.trace import (
    MAX_RANKS,
    PER_RANK,
    Place,
    Reading,
    Trace,
    counted,
    kept_places,
    refuse_given,
    silent_note,
)

__all__ = ["NAMES", "read"]

NAMES: Final = ("topk_idx", "num_tokens_per_rank", "num_tokens_per_expert", "is_token_in_rank")


def read(path: Path, files: Sequence[Path], reading: Reading) -> Trace:
    """One file a rank, or one file of all ranks with the rows in order. Raises InputError."""
    per_rank, note = copies_note(str(path), reading, PER_RANK)
    refuse_given(path, reading, "says what each rank sends", "source_rows")
    rows: dict[tuple[int | None, int | None, int], dict[int, NDArray[np.int64]]] = {}
    ordered: set[Path] = set()
    shown: dict[int, str] = {}
    for position, file in enumerate(files):
        calls: dict[tuple[Any, ...], int] = {}
        for number, (where, given) in enumerate(named_sets(file)):
            if not any(name in given for name in NAMES):
                raise InputError(f"{where} has none of {', '.join(NAMES)}: it is no layout of DeepEP")
            step, layer = _number(where, given, "step"), _number(where, given, "layer")
            if reading.layers and layer is None:
                raise InputError(f"{path} does not say its layers: leave --layers out")
            if "num_tokens_per_rank" in given and _dimensions(given["num_tokens_per_rank"]) == 2:
                if len(files) > 1:
                    raise InputError(f"{where} has the rows of all ranks, but there are {len(files)} files: name one")
                table = array_of(f"{where}: num_tokens_per_rank", given["num_tokens_per_rank"], 2)
                if table.shape[0] != table.shape[1] or not table.size:
                    raise InputError(
                        f"{where}: num_tokens_per_rank is {table.shape[0]} x {table.shape[1]}: give a row a rank"
                    )
                if not per_rank:
                    raise InputError(
                        f"{where} counts tokens once a rank: what counts by expert is not in it; leave --token-copies out"
                    )
                of_ranks = {rank: row.astype(np.int64) for rank, row in enumerate(table)}
            else:
                named = rank_of_name(file)
                rank = _number(where, given, "rank")
                if rank is None and named is None and len(files) > 1:
                    ordered.add(file)
                if rank is None:
                    rank = named if named is not None else position if len(files) > 1 else number
                _check_ranks(where, given, shown)
                of_ranks = {rank: _row(where, given, reading, len(files), per_rank=per_rank)}
            again = 0
            if step is not None or layer is not None or len(files) > 1:
                label = (step, layer, *of_ranks)
                again = calls.get(label, 0)
                calls[label] = again + 1
            if step is None and len(files) > 1:
                step, again = again, 0
            if step is None:
                refuse_given(path, reading, "does not say its steps", "steps")
            if not reading.wants(step, layer):
                continue
            own = rows.setdefault((step, layer, again), {})
            for rank, row in of_ranks.items():
                if rank in own:
                    raise InputError(f"{where}: rank {rank} is there twice: give one layout a rank")
                own[rank] = row
    if not rows and not (reading.steps or reading.layers):
        raise InputError(f"{path} holds no layout: save what get_dispatch_layout gives, a set of arrays a rank")
    keys = sorted(rows, key=lambda key: tuple(-1 if part is None else part for part in key))
    lengths = {len(row) for own in rows.values() for row in own.values()}
    if len(lengths) > 1:
        raise InputError(f"{path}: layouts are of {min(lengths)} to {max(lengths)} ranks: give those of one run")
    ranks = lengths.pop() if lengths else 0
    notes = order_notes(path, files, ordered)
    if reading.ranks and ranks and reading.ranks != ranks:
        raise InputError(f"{path}: layouts have {counted(ranks, 'rank')}, but --ranks is {reading.ranks}: leave it out")
    incomplete = False
    for key in keys:
        over = max(rows[key])
        if over >= ranks:
            raise InputError(
                f"{path}: there is a layout of rank {over}, but layouts have {ranks} ranks: give those of one run"
            )
        silent = sorted(set(range(ranks)) - rows[key].keys())
        if len(silent) == ranks - 1 and ranks > 1 and len(files) == 1:
            raise InputError(
                f"{path} is the layout of one rank, one row of {ranks}: give a folder or a pattern with those of all ranks"
            )
        if silent and not incomplete:
            incomplete = True
            notes.append(silent_note(path, silent, ranks, "layout"))
    places = [Place(step, layer, f"call {again + 1}" if again else "") for step, layer, again in keys]
    totals = [sum(int(row.sum()) for row in rows[key].values()) for key in keys]
    kept, more = kept_places(path, places, totals, ranks=ranks)

    def matrix(index: int) -> NDArray[np.int64]:
        demand = np.zeros((ranks, ranks), dtype=np.int64)
        for rank, row in rows[keys[kept[index]]].items():
            demand[rank] = row
        return demand

    return Trace("deepep", "tokens", tuple(places[index] for index in kept), matrix, (note, *notes, *more))


def _dimensions(value: Any) -> int:
    if isinstance(value, list):
        return 2 if value and isinstance(value[0], list) else 1
    return len(getattr(value, "shape", ()))


def _number(where: str, given: dict[str, Any], name: str) -> int | None:
    value = given.get(name)
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iu":
        value = int(value)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 2**31:
        raise InputError(f"{where}: {name} is no whole number of 0 or more")
    return value


def _check_ranks(where: str, given: dict[str, Any], shown: dict[int, str]) -> None:
    """One number of ranks in all arrays that show it; ``shown`` is the first of those before, and where. Raises InputError."""
    for name, dimensions in (("is_token_in_rank", 2), ("num_tokens_per_rank", 1)):
        value = given.get(name)
        if value is None or _dimensions(value) != dimensions:
            continue
        row = value[0] if isinstance(value, list) and dimensions == 2 else value
        ranks = len(plain_list(row)) if isinstance(row, list) else row.shape[-1]
        if ranks > MAX_RANKS:
            raise InputError(f"{where}: {name} has {ranks} ranks: at most {MAX_RANKS} are supported")
        other, there = next(iter(shown.items()), (ranks, ""))
        if ranks != other:
            raise InputError(
                f"{where}: {name} has {ranks} ranks, but {there} has {other}: save the layouts of one dispatch"
            )
        shown.setdefault(ranks, f"{where}: {name}")


def _placed(where: str, reading: Reading, experts: int, ranks: int, files: int) -> Placement:
    chosen = reading.placement or reading.ranks or reading.experts_per_rank
    if ranks and experts % ranks and not chosen:
        among = f" (of {files} files)" if files > 1 else ""
        raise InputError(
            f"{where}{among} has {ranks} ranks, by which its {experts} experts do not divide: save the layout of one dispatch, "
            "or give a --placement"
        )
    return place_experts(where, reading, experts=experts, ranks=ranks or files)


def _row(where: str, given: dict[str, Any], reading: Reading, files: int, *, per_rank: bool) -> NDArray[np.int64]:
    """What this rank sends to each, by all that the layout says of it, which must agree."""
    ways: dict[str, NDArray[np.int64]] = {}
    ranks = 0
    if "num_tokens_per_rank" in given:
        counts = array_of(f"{where}: num_tokens_per_rank", given["num_tokens_per_rank"], 1)
        ranks = len(counts)
        if per_rank:
            ways["num_tokens_per_rank"] = counts.astype(np.int64)
    if "is_token_in_rank" in given:
        inside = array_of(f"{where}: is_token_in_rank", given["is_token_in_rank"], 2, booleans=True)
        if inside.size and int(inside.max()) > 1:
            raise InputError(f"{where}: is_token_in_rank holds {int(inside.max())}: it is 0 or 1")
        ranks = ranks or inside.shape[1]
        if per_rank and (inside.shape[1] or not ways):  # as JSON an array without tokens shows no ranks
            ways["is_token_in_rank"] = inside.sum(axis=0, dtype=np.int64)
    experts = 0
    if "num_tokens_per_expert" in given:
        loads = array_of(f"{where}: num_tokens_per_expert", given["num_tokens_per_expert"], 1)
        experts = len(loads)
        if not per_rank:
            placed = _placed(where, reading, experts, ranks, files)
            ways["num_tokens_per_expert"] = placed.columns(where, 0, loads.astype(np.int64))
    if "topk_idx" in given and (not ways or experts or reading.experts_per_rank or reading.placement):
        chosen = array_of(f"{where}: topk_idx", given["topk_idx"], 2, least=-1)
        placed = _placed(where, reading, experts, ranks, files)
        ways["topk_idx"] = received(f"{where}: topk_idx", chosen, placed.table(where), placed.ranks, per_rank=per_rank)
    if not ways:
        missing = "num_tokens_per_rank, is_token_in_rank" if per_rank else "num_tokens_per_expert"
        raise InputError(f"{where} has none of {missing} or topk_idx, which count as was asked: see --token-copies")
    (first, row), *others = ways.items()
    for name, other in others:
        if not np.array_equal(row, other):
            raise InputError(
                f"{where}: {first} and {name} disagree on what each rank gets: save the layout of one dispatch"
            )
    return row
