"""An experiment as a TOML file: read, and written so that it runs again from anywhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType

from controller.errors import InputError
from testbed.experiment.definition import Experiment, plain
from testbed.experiment.keys import DEMAND_KEYS, Value
from testbed.experiment.mapping import from_mapping

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["read_toml", "to_toml"]


def read_toml(
    path: Path, *, needs_demand: bool = True, defaults: Mapping[str, Value] = MappingProxyType({})
) -> Experiment:
    """The experiment of a file; matrix files are looked for beside it. Raises InputError in one line.

    ``defaults``: of keys that the file does not give, in place of those of KEYS.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder: name the experiment file in it") from None
    except PermissionError:
        raise InputError(f"{path} may not be read: check its permissions") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text: give an experiment in TOML") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # tomllib's own error, and those of numbers and depth without end
        raise InputError(f"{path} is not TOML: {error}") from None
    return from_mapping({**defaults, **data}, where=f"{path}: ", base=path.parent, needs_demand=needs_demand)


def _quoted(value: Value) -> str:
    """As JSON, which is TOML too if nothing beyond 16 bits is escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def to_toml(experiment: Experiment) -> str:
    """The experiment as a file that runs it again from anywhere: matrix paths are absolute."""
    lines = [
        f"{name} = {_quoted(value)}"
        for name, value in experiment.keys().items()
        if not isinstance(value, dict) and value != ""
    ]
    for name, value in experiment.keys().items():
        if isinstance(value, dict) and value:
            lines += ["", f"[{name}]", *(f"{_quoted(link)} = {_quoted(item)}" for link, item in value.items())]
    for failure in experiment.link_failure:
        lines += ["", "[[link_failure]]", f"link = {_quoted(failure.link)}"]
        lines += [f"down_ns = {plain(failure.down_ns)}", f"up_ns = {plain(failure.up_ns)}"]
    for flow in experiment.background:
        lines += ["", "[[background]]"]
        lines += [f"{f.name} = {_quoted(plain(getattr(flow, f.name)))}" for f in fields(flow)]
    for phase in experiment.demand:
        lines += ["", "[[demand]]", f"name = {_quoted(phase.name)}", f"file = {_quoted(str(phase.file.resolve()))}"]
        lines += [f"unit = {_quoted(phase.unit)}"]
        for key in DEMAND_KEYS:
            value = getattr(phase, key.name)
            if key.name not in ("name", "file", "unit", "after") and value != key.default:
                lines += [f"{key.name} = {_quoted(str(value.resolve()) if isinstance(value, Path) else value)}"]
        lines += [f"after = {_quoted(list(phase.after))}"] if phase.after else []
    return "\n".join(lines) + "\n"
