"""Which expert is on which rank, and how much each rank sends: what counts of experts alone do not say."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError
from controller.formats import csv_matrix, npy_matrix
from controller.formats.files import read_content, read_head
from controller.formats.json_values import parse_json, whole_array
from controller.formats.torch_file import ZIP_MAGIC, Tensor, read_torch
from controller.formats.trace import MAX_RANKS, Reading, numbered

__all__ = ["Placement", "contiguous", "place_experts", "source_weights", "spread"]

_P2L: Final = "physical_to_logical_map"
_MOST_EXPERTS: Final = 2**20
_WEIGHT_ONE: Final = 2**30


@dataclass(frozen=True)
class Placement:
    """Physical experts, each on one rank; several of one logical expert are its replicas."""

    ranks: int
    logical: int
    """Number of logical experts."""
    logical_of: NDArray[np.int64]
    """[layers or 1, physical]: which logical expert each is."""
    rank_of: NDArray[np.int64]
    """[physical]."""
    _tables: dict[int, NDArray[np.int64]] = field(default_factory=dict, compare=False, repr=False)

    def columns(self, where: str, layer: int, loads: NDArray[np.int64]) -> NDArray[np.int64]:
        """Counts that each rank receives, from those of each logical expert: replicas share theirs evenly."""
        if len(loads) != self.logical:
            raise InputError(
                f"{where} counts {len(loads)} experts, but the placement has {self.logical}: they must agree"
            )
        if len(self.logical_of) > 1 and layer >= len(self.logical_of):
            raise InputError(f"{where}: the placement has {len(self.logical_of)} layers, none for layer {layer}")
        if len(loads) and int(loads.max()) * len(loads) >= 2**63:
            raise InputError(f"{where}: counts add up to 2^63 and more: give smaller ones")
        logical = self.logical_of[layer if len(self.logical_of) > 1 else 0]
        replicas = np.bincount(logical, minlength=self.logical)
        lost = np.flatnonzero((replicas == 0) & (loads > 0))
        if len(lost):
            raise InputError(f"{where}: expert {lost[0]} has tokens, but the placement puts it nowhere")
        order = np.argsort(logical, kind="stable")
        number = np.empty(len(logical), dtype=np.int64)  # of each replica among those of its expert
        number[order] = np.arange(len(logical)) - np.repeat(np.cumsum(replicas) - replicas, replicas)
        physical = loads[logical] // replicas[logical] + (number < loads[logical] % replicas[logical])
        received = np.zeros(self.ranks, dtype=np.int64)
        np.add.at(received, self.rank_of, physical)
        return received

    def table(self, where: str, layer: int = 0) -> NDArray[np.int64]:
        """Rank of each logical expert, for traces of tokens. Raises InputError where one has several places."""
        if len(self.logical_of) > 1 and layer >= len(self.logical_of):
            raise InputError(f"{where}: the placement has {len(self.logical_of)} layers, none for layer {layer}")
        kept = layer if len(self.logical_of) > 1 else 0
        if kept in self._tables:
            return self._tables[kept]
        logical = self.logical_of[kept]
        if len(logical) != self.logical or len(np.unique(logical)) != self.logical:
            raise InputError(
                f"{where}: the placement has replicas, and which of them a token takes is not known: "
                "give one without, in which each expert has one place"
            )
        ranks = np.empty(self.logical, dtype=np.int64)
        ranks[logical] = self.rank_of
        self._tables[kept] = ranks
        return ranks


def contiguous(where: str, experts: int, ranks: int) -> Placement:
    """As many experts on each rank, in order. Raises InputError where they do not divide."""
    if not 1 <= ranks <= MAX_RANKS:
        raise InputError(f"{where}: {ranks} ranks: 1 to {MAX_RANKS} are supported")
    if not 1 <= experts <= _MOST_EXPERTS:
        raise InputError(f"{where}: {experts} experts: 1 to {_MOST_EXPERTS} are supported")
    if experts % ranks:
        raise InputError(
            f"{where}: {experts} experts do not divide by {ranks} ranks: give --ranks or --experts-per-rank that do, or a --placement"
        )
    identity = np.arange(experts)
    return Placement(ranks, experts, identity[None, :], identity // (experts // ranks))


def place_experts(where: str, reading: Reading, *, experts: int = 0, ranks: int = 0) -> Placement:
    """Of the options, and what the file says: its number of experts and of ranks, 0 where it does not.

    Raises InputError where both together do not settle it.
    """
    if reading.placement:
        placement = _read_placement(reading.placement, reading.ranks, ranks)
        if reading.experts_per_rank:
            raise InputError("--placement and --experts-per-rank both say where experts are: give one of them")
        if experts and placement.logical != experts:
            raise InputError(
                f"{where} has {experts} experts, but {reading.placement} places {placement.logical}: they must agree"
            )
        return placement
    ranks = reading.ranks or ranks
    each = reading.experts_per_rank
    if not experts:
        if not each:
            raise InputError(
                f"{where} does not say how many experts there are: give --experts-per-rank (or a --placement)"
            )
        if not ranks:
            raise InputError(f"{where} does not say how many ranks there are: give --ranks")
        return contiguous(where, ranks * each, ranks)
    if each:
        if experts % each:
            raise InputError(f"{where}: {experts} experts do not divide by --experts-per-rank {each}")
        if ranks and experts != each * ranks:
            raise InputError(f"{where}: {experts} experts are not {ranks} ranks with {each} each: give other ones")
        return contiguous(where, experts, experts // each)
    if not ranks:
        raise InputError(
            f"{where} does not say on which ranks its {experts} experts are: give --ranks, --experts-per-rank or a --placement"
        )
    return contiguous(where, experts, ranks)


def _read_placement(path: Path, given: int, shown: int) -> Placement:
    """JSON or .pt: a list with the rank of each expert, or an object with physical_to_logical_map, as SGLang takes it.

    ``given``: ranks by option; ``shown``: those that the trace shows, of which some may have no expert.
    """
    where = f"--placement {path}"
    if read_head(path).startswith(ZIP_MAGIC):
        value: Any = read_torch(path)
        if isinstance(value, dict) and isinstance(value.get(_P2L), Tensor):
            value = {_P2L: value[_P2L].array().tolist()}
    else:
        value = parse_json(where, read_content(path))
    if isinstance(value, dict) and _P2L in value:
        ranks = given or shown
        if not ranks:
            raise InputError(f"{where} does not say how many ranks there are: give --ranks")
        listed = value[_P2L]
        deep = isinstance(listed, list) and bool(listed) and isinstance(listed[0], list)
        logical_of = np.atleast_2d(whole_array(f"{where}: {_P2L}", listed, 2 if deep else 1))
        if not logical_of.size:
            raise InputError(f"{where} places no expert: give a number for each")
        if logical_of.max() >= _MOST_EXPERTS:
            raise InputError(f"{where}: expert {logical_of.max()} is above {_MOST_EXPERTS}")
        plain = contiguous(where, logical_of.shape[1], ranks)
        return Placement(ranks, int(logical_of.max()) + 1, logical_of, plain.rank_of)
    if isinstance(value, dict):
        raise InputError(f"{where} has no {_P2L}: give it, or a list with the rank of each expert")
    rank_of = whole_array(where, value, 1)
    if not len(rank_of):
        raise InputError(f"{where} places no expert: give the rank of each")
    most = int(rank_of.max()) + 1
    if most > (given or MAX_RANKS):
        raise InputError(f"{where}: rank {most - 1} is not one of {given or MAX_RANKS}: ranks count from 0")
    return Placement(given or max(most, shown), len(rank_of), np.arange(len(rank_of))[None, :], rank_of)


def source_weights(where: str, reading: Reading, ranks: int) -> tuple[NDArray[np.int64], str]:
    """How much each rank sends, as whole numbers whose sum is below 2^31; and the note of it."""
    path = reading.source_rows
    if path is None:
        return np.ones(ranks, dtype=np.int64), (
            f"{where} has no source rows: each of the {ranks} ranks is taken to send the same share to every receiver "
            "(--source-rows FILE gives other shares)"
        )
    content = read_content(path)
    named = f"--source-rows {path}"
    if content.startswith(npy_matrix.MAGIC):
        values = npy_matrix.parse(path, content)
    elif content.lstrip()[:1] == b"[":
        listed = parse_json(named, content)
        if not all(type(item) in (int, float) for item in listed):
            raise InputError(f"{named} is not a list of numbers")
        values = np.array([min(item, 2.0**1000) for item in listed], dtype=np.float64)
    else:
        values = csv_matrix.parse(path)
    flat = np.asarray(values, dtype=np.float64).ravel()
    if len(flat) != ranks:
        raise InputError(f"{named} has {len(flat)} numbers, but there are {ranks} ranks: give one a rank")
    if not np.isfinite(flat).all() or (flat < 0).any() or not flat.sum() or not np.isfinite(flat.sum()):
        raise InputError(
            f"{named}: give numbers of 0 or more with a sum above 0, in proportion to what each rank sends"
        )
    whole = flat.astype(np.int64) if (flat == np.floor(flat)).all() and flat.sum() < _WEIGHT_ONE else None
    weights = np.floor(flat / flat.sum() * _WEIGHT_ONE).astype(np.int64) if whole is None else whole
    silent = np.flatnonzero(weights == 0).tolist()
    quiet = f"; {numbered('rank', silent)} {'sends' if len(silent) == 1 else 'send'} nothing" if silent else ""
    return (
        weights,
        f"{where} has no source rows: each rank is taken to send its share by {path} to every receiver{quiet}",
    )


def spread(columns: NDArray[np.int64], weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """A matrix with these column sums, exactly, and rows in proportion to the weights, each entry within one of its share.

    ``columns`` [N] below 2^63, ``weights`` [N] with a sum W below 2^31. Entry (i, j) is the difference of
    floor((c_j * cumulated weight + phase_j) / W); the phases spread what rounding leaves over the rows.
    """
    if (weights == weights[0]).all():
        # What is left of a column goes to the rows after those of the column before: row sums differ by one at most.
        ranks = len(weights)
        quotient, remainder = columns // ranks, columns % ranks
        first = np.cumsum(remainder) - remainder
        extra = (np.arange(ranks)[:, None] - first[None, :]) % ranks < remainder[None, :]
        return quotient[None, :] + extra
    total = int(weights.sum())
    quotient, remainder = columns // total, columns % total
    ahead = np.cumsum(weights)
    phase = (np.arange(len(columns)) * int(0.6180339887498949 * total)) % total
    edges = quotient[None, :] * ahead[:, None] + (remainder[None, :] * ahead[:, None] + phase[None, :]) // total
    return np.diff(edges, axis=0, prepend=0)
