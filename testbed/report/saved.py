"""The results of run and compare as they lie in a folder, checked before anything is made of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from controller.errors import CannotRunError, InputError
from testbed.report.table import ROWS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["MissingTableError", "Saved", "read_saved"]

_NUMBER: Final = (int, float)
_OTHERS: Final[dict[str, tuple[type, ...]]] = {
    "run": (str,),
    "hosts": (int,),
    "mtu_bytes": (int,),
    "link_gbps": _NUMBER,
    "link_gbps_of": (dict,),
    "lower_bound_ns": _NUMBER,
    "bottleneck": (str, type(None)),
    "delivered_bytes": (int,),
    "expected_bytes": (int,),
    "receiver_done_ns": (list,),
    "queue_bytes": (int,),
    "loss_recovery": (str,),
    "stage": (str,),
    "seed": (int,),
    "lb": (str,),
}
"""What a report reads of a run besides the rows of the comparison."""
_PERHAPS: Final[dict[str, tuple[type, ...]]] = {"notes": (list,), "link_failure": (list,)}
"""And what it reads where it is there."""


class MissingTableError(Exception):
    """A Parquet table that is not there or cannot be used: says which and why, in one line."""


@dataclass(frozen=True)
class Saved:
    """What a folder holds."""

    folder: Path
    runs: tuple[dict[str, Any], ...]
    """As in result.json; at least one, and all that a report reads is there and of its kind."""
    experiment: str | None
    """Text of experiment.toml."""
    planned: int | None
    """Number of runs that experiment.toml names; None where it does not say."""

    def table(self, run: str, name: str, columns: tuple[str, ...]) -> dict[str, NDArray[Any]]:
        """Columns of DIR/RUN/NAME.parquet. Raises MissingTableError."""
        path = self.folder / run / f"{name}.parquet"
        shown = f"{run}/{path.name}"
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise CannotRunError("pyarrow is missing: run make setup") from None
        if not path.is_file():
            raise MissingTableError(f"{shown} does not exist")
        try:
            file = pyarrow.parquet.ParquetFile(path)
            absent = [column for column in columns if column not in file.schema_arrow.names]
            if absent:
                raise MissingTableError(f"{shown} has no column {absent[0]}")
            table = file.read(columns=list(columns))
        except (OSError, pyarrow.ArrowException) as error:
            raise MissingTableError(f"{shown} cannot be read: {' '.join(str(error).split())}") from None
        return {column: table[column].to_numpy() for column in columns}


def read_saved(folder: Path) -> Saved:
    """Raises InputError in one line where the folder holds no result of run or compare."""
    path = folder / "result.json"
    try:
        result = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path} does not exist: {_remedy(folder)}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text: give the folder of another result") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON, or half of it: {error}; run the experiment again") from None
    runs = result.get("runs") if isinstance(result, dict) else None
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        raise InputError(f"{path} holds no runs, as those of incastfree run and compare do: {_remedy(folder)}")
    for number, run in enumerate(runs, 1):
        _check(path, number, run)
    if len({run["run"] for run in runs}) < len(runs):
        raise InputError(f"{path}: two runs have one name: run the experiment again")
    text = _experiment(folder / "experiment.toml")
    return Saved(folder, tuple(runs), text, _planned(text))


def _remedy(folder: Path) -> str:
    if (folder / "agreement.json").is_file():
        return f"agree keeps two of them: give {folder / 'kernel'} or {folder / 'bmv2'}"
    return "give the folder that incastfree run or compare wrote with --out"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _check(path: Path, number: int, run: Mapping[str, Any]) -> None:
    kinds = {row.key: (*((str,) if row.factor is None else _NUMBER), type(None)) for row in ROWS} | _OTHERS
    for key in kinds:
        if key not in run:
            why = "it is not of this version of incastfree; run the experiment again"
            if path.parent.parent.name == "cells":
                why = "it is a cell of figure or robust, which keeps its figures alone; run the same by incastfree compare"
            raise InputError(f"{path}: run {number} has no {key!r}: {why}")
    for key, allowed in (kinds | {key: kind for key, kind in _PERHAPS.items() if key in run}).items():
        if not _is(run[key], allowed):
            raise InputError(f"{path}: {key} of run {number} is {str(run[key])[:40]!r}: run the experiment again")
    name = run["run"]
    # It names a folder in this one.
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise InputError(f"{path}: run {number} is called {name!r}, which is no name of a folder")
    numbers = (*run["receiver_done_ns"], *run["link_gbps_of"].values())
    if not all(_is(value, (*_NUMBER, type(None))) for value in numbers) or run["mtu_bytes"] <= 0:
        raise InputError(
            f"{path}: receiver_done_ns, link_gbps_of or mtu_bytes of run {number} is no number that can be: run the "
            "experiment again"
        )


def _is(value: object, allowed: tuple[type, ...]) -> bool:
    return isinstance(value, allowed) and not isinstance(value, bool)


def _experiment(path: Path) -> str | None:
    """None where there is none: results can be read without it."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def _planned(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        schedule = tomllib.loads(text).get("schedule")
    except ValueError:
        return None
    return len(schedule) if isinstance(schedule, list) else None
