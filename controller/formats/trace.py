"""What a reader is told of a file, and what it gives back: a sequence of demands, one a step and layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from controller.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "AUTO",
    "MAX_RANKS",
    "TOKEN_COPIES",
    "Chosen",
    "Place",
    "Reading",
    "Trace",
    "counted",
    "first_numbers",
    "kept_places",
    "numbered",
    "refuse_given",
    "silent_note",
]

AUTO: Final = "auto"
MAX_RANKS: Final = 1000
PER_EXPERT: Final = "per-expert"
PER_RANK: Final = "per-rank"
TOKEN_COPIES: Final = (AUTO, PER_EXPERT, PER_RANK)
_MOST_MATRIX_BYTES: Final = 2**31
_SHOWN: Final = 8


@dataclass(frozen=True)
class Chosen:
    """Steps or layers that were chosen: intervals [first, end), or all where there are none."""

    text: str = ""
    intervals: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def parse(text: str, what: str) -> Chosen:
        """``A:B`` is A up to B - 1, as in Python; either end may be left out; ``,`` joins numbers and intervals.

        ``what`` is "steps" or "layers". Raises InputError.
        """
        wrong = InputError(f"{what} {_short(text)!r}: give numbers and ranges, such as 3 or 0:10 (0 to 9) or 0,4:8")
        if not text.strip():
            return Chosen()
        intervals: list[tuple[int, int]] = []
        for part in text.split(","):
            first, colon, end = (piece.strip() for piece in part.partition(":"))
            for number in (first, end):
                if number and not (number.isascii() and number.isdigit() and len(number) < 18):
                    raise wrong
            if not colon and not first:
                raise wrong
            begin = int(first or 0)
            stop = (int(end) if end else 2**63) if colon else begin + 1
            if stop <= begin:
                raise InputError(f"{what} {_short(part.strip())!r} names nothing: A:B is A up to B - 1")
            intervals.append((begin, stop))
        return Chosen(text, tuple(intervals))

    def __contains__(self, number: object) -> bool:
        return not self.intervals or any(begin <= number < end for begin, end in self.intervals)  # type: ignore[operator]

    def __bool__(self) -> bool:
        return bool(self.intervals)


@dataclass(frozen=True)
class Reading:
    """What a user says of a file because it does not say so itself. The options of rates and compare have these names."""

    format: str = AUTO
    steps: Chosen = field(default_factory=Chosen)
    layers: Chosen = field(default_factory=Chosen)
    ranks: int = 0
    """0: as many as the file shows."""
    experts_per_rank: int = 0
    """Experts are contiguous by rank. 0: the file says how many there are."""
    placement: Path | None = None
    """File that says which expert is where: see controller/formats/placement.py."""
    source_rows: Path | None = None
    """File with how much each rank sends, for formats that have receivers alone."""
    token_copies: str = AUTO
    """How a token counts that goes to two experts of one rank: per-expert (twice) or per-rank (once)."""

    def wants(self, step: int | None, layer: int | None) -> bool:
        """Whether this step and layer were chosen."""
        return (step is None or step in self.steps) and (layer is None or layer in self.layers)


class Place(NamedTuple):
    """Where in a trace a demand was."""

    step: int | None = None
    layer: int | None = None
    part: str = ""
    """What else tells it from others of its step and layer, such as "call 2"."""

    def __str__(self) -> str:
        words = [f"{name} {value}" for name, value in (("step", self.step), ("layer", self.layer)) if value is not None]
        return " ".join([*words, *([self.part] if self.part else [])])


@dataclass(frozen=True)
class Trace:
    """The demands of a file, in their order in time."""

    format: str
    unit: str
    """tokens, bytes or wire-bytes; empty where the file does not say."""
    places: tuple[Place, ...]
    matrix: Callable[[int], NDArray[np.generic]]
    """Counts of demand k, ranks x ranks (checked in controller/demand.py), row = sender. The caller may change it."""
    notes: tuple[str, ...] = ()
    """What was assumed, a line each, with the file's name."""

    def __len__(self) -> int:
        return len(self.places)


def refuse_given(path: Path, reading: Reading, why: str, *names: str) -> None:
    """Of options, by their names in Reading, those that a file has no use for. Raises InputError where one was given."""
    for name in names:
        value = getattr(reading, name)
        if value and value != AUTO:
            raise InputError(f"{path} {why}: leave --{name.replace('_', '-')} out")


def kept_places(
    path: Path, places: Sequence[Place], totals: Sequence[int], *, ranks: int = 0
) -> tuple[list[int], list[str]]:
    """Which of the chosen places hold anything, and a note of those that do not: ring buffers leave empty steps, and
    dense layers are empty. If all are empty the first is kept: a demand of nothing.

    Raises InputError where there is no place at all, or where their matrices of ``ranks`` would not fit into memory.
    """
    if not places:
        raise InputError(
            f"{path} has none of the steps and layers that were chosen: see its others without --steps, --layers"
        )
    kept = [index for index, total in enumerate(totals) if total]
    if len(kept) * ranks * ranks * 8 > _MOST_MATRIX_BYTES:
        raise InputError(
            f"{path} holds {len(kept)} demands of {ranks} ranks, more than fit into memory: choose with --steps and --layers"
        )
    empty = len(places) - len(kept)
    if not kept:
        more = [f"{path}: all {len(places)} demands are all zero: the first is taken"] if len(places) > 1 else []
        return [0], more
    if not empty:
        return kept, []
    by_layer: dict[int | None, int] = {}
    for place, total in zip(places, totals, strict=True):
        by_layer[place.layer] = by_layer.get(place.layer, 0) + total
    silent = sorted(layer for layer, total in by_layer.items() if layer is not None and not total)
    which = f", among them all of {numbered('layer', silent)}" if silent else ""
    are = "is" if empty == 1 else "are"
    return kept, [f"{path}: {empty} of {len(places)} demands {are} all zero and left out{which}"]


def first_numbers(numbers: Sequence[int]) -> str:
    """The first few, for a line that a person reads."""
    return ", ".join(str(number) for number in numbers[:_SHOWN]) + (", ..." if len(numbers) > _SHOWN else "")


def counted(number: int, noun: str) -> str:
    """1 call, 2 calls."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """The first few of them: rank 3; ranks 3, 4."""
    return f"{noun}{'' if len(numbers) == 1 else 's'} {first_numbers(numbers)}"


def silent_note(path: Path, silent: Sequence[int], ranks: int, what: str) -> str:
    """Of ranks without ``what``."""
    have, they_are = ("has", "it is") if len(silent) == 1 else ("have", "they are")
    return f"{path}: {numbered('rank', silent)} of {ranks} {have} no {what}: {they_are} taken to send nothing"


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "..."
