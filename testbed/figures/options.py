"""What the user may choose of a figure, and the demands that figures run on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from controller.demand import MTU_BYTES, load_demands
from controller.errors import InputError
from testbed.experiment import KEYS, Experiment, from_mapping
from testbed.grid.cells import Cell
from testbed.workload.zipf import zipf

__all__ = [
    "LOAD_BALANCERS",
    "RR_NSCC",
    "Demand",
    "Figure",
    "Options",
    "Row",
    "check_load_balancers",
    "demand_of_file",
    "demand_of_zipf",
    "experiment_of",
    "seeds_text",
]

LOAD_BALANCERS: Final = ("ops", "reps", "ar")
"""Those of the paper."""
RR_NSCC: Final = "rr+nscc"
_QUICK_BYTES: Final = 64_000_000

Row = dict[str, Any]
"""One line of a table, by column."""


@dataclass(frozen=True)
class Options:
    """As given, with the figure's own defaults where nothing was."""

    demands: tuple[dict[str, Any], ...]
    """Tables with file, unit and token_bytes, as an experiment has them."""
    keys: dict[str, Any]
    """Keys of every experiment, such as queue_bytes."""
    load_balancers: tuple[str, ...]
    hosts: tuple[int, ...]
    skews: tuple[float, ...]
    bytes_per_sender: tuple[int, ...]
    """One for all numbers of hosts, or one each."""
    seeds: int
    quick: bool
    scratch: Path
    """Where generated matrices lie until they are part of cells."""

    @property
    def quick_bytes(self) -> int:
        """What a given matrix may send on the wire; 0: as much as it says."""
        return _QUICK_BYTES if self.quick else 0

    @property
    def mtu_bytes(self) -> int:
        """On the wire."""
        return int(self.keys.get("mtu_bytes", MTU_BYTES))


@dataclass(frozen=True)
class Demand:
    """One matrix as a figure names it."""

    name: str
    table: dict[str, Any]
    divided_by: int = 1


@dataclass(frozen=True)
class Figure:
    """One of the four."""

    number: int
    title: str
    options: tuple[str, ...]
    """Of demand, lb, hosts, s, bytes, seeds: those that it has."""
    defaults: dict[str, Any]
    quick: dict[str, Any]
    """Defaults of --quick where they differ."""
    cells: Callable[[Options], list[tuple[Row, Cell]]]
    """Each with the columns that say what it is."""
    table: Callable[[Sequence[tuple[Row, Cell]], Any], list[Row]]
    """Of the cells and the store that has them."""
    draw: Callable[[list[Row], str], bytes]
    """The picture of the table, with its title: PNG."""
    gain: Callable[[Sequence[tuple[Row, Cell]], Any], list[Row]] | None = None
    """A second table: what pacing gains."""


def check_load_balancers(names: Sequence[str]) -> None:
    """Raises InputError for one that the key lb does not know."""
    choices = next(key.choices for key in KEYS if key.name == "lb")
    for name in names:
        if name not in choices:
            raise InputError(f"--lb: {name!r} is not known: give a list of {', '.join(choices)}")


def demand_of_zipf(options: Options, hosts: int, skew: float, bytes_per_sender: int, seed: int) -> Demand:
    """A Zipf demand whose order of popularity is random by ``seed``."""
    file = options.scratch / f"zipf-{hosts}-{skew:g}-{bytes_per_sender}-{seed}.npy"
    if not file.exists():
        np.save(file, zipf(hosts, skew, bytes_per_sender, options.mtu_bytes, seed))
    return Demand(f"zipf s={skew:g} N={hosts}", {"file": str(file), "unit": "wire-bytes"})


def demand_of_file(options: Options, table: dict[str, Any], most_bytes: int = 0) -> Demand:
    """A matrix of the user's. ``most_bytes``: if it sends more on the wire, its entries are divided by a whole number, and rounded up."""
    phase = from_mapping({"demand": [table]}).demand[0]
    sequence = load_demands(
        phase.file,
        unit=phase.unit,
        token_bytes=phase.token_bytes,
        mtu_bytes=options.mtu_bytes,
        hosts_per_server=int(options.keys.get("gpus_per_server", 1)),
        reading=phase.reading,
        direction=phase.direction,
        combine_token_bytes=phase.combine_token_bytes,
    )
    if len(sequence) != 1:
        raise InputError(
            f"{phase.file} holds {len(sequence)} demands, and a figure shows one: choose with --steps and --layers"
        )
    (demand,) = sequence.read()
    divisor = -(-demand.total_bytes // most_bytes) if most_bytes else 1
    if divisor <= 1:
        return Demand(phase.file.stem, table)
    entries = np.ceil(sequence.trace.matrix(0).astype(np.float64) / divisor).astype(np.int64)
    file = options.scratch / f"divided-{len(list(options.scratch.iterdir()))}.npy"
    np.save(file, entries.T if phase.direction == "combine" else entries)
    size = (
        phase.combine_token_bytes if phase.direction == "combine" and phase.combine_token_bytes else phase.token_bytes
    )
    return Demand(phase.file.stem, {"file": str(file), "unit": sequence.unit, "token_bytes": size}, divisor)


def experiment_of(options: Options, demand: Demand, **keys: Any) -> Experiment:
    """One experiment of a figure. Raises InputError as an experiment file would."""
    return from_mapping({**options.keys, **keys, "demand": [{**demand.table, "name": "1"}]})


def seeds_text(seeds: int) -> str:
    """As tables say it."""
    return "1" if seeds == 1 else f"1-{seeds}"
