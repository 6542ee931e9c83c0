"""Every experiment key as a command line option, and how runs are shown."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from controller.errors import InputError
from controller.schedule import MODES, SCHEDULES
from testbed.experiment import AUTO, BACKGROUND_KEYS, DEMAND_KEYS, FAILURE_KEYS, KEYS, Key

__all__ = ["add_experiment_options", "add_output_options", "experiment_mapping", "schema"]


_OF_ONE: Final = ("name", "file", "after")
"""Keys of a demand that are no options; the others hold for every --demand."""


def add_experiment_options(
    parser: argparse.ArgumentParser,
    *,
    without: Collection[str] = (),
    demand_help: str = "matrix file; repeat it for phases that follow each other",
) -> None:
    """--demand with the options that say how it is read, and one option for every other key but those that the verb sets itself."""
    demand = parser.add_argument_group("demand")
    demand.add_argument(
        "--demand",
        action="append",
        metavar="FILE",
        help=demand_help,
    )
    for key in DEMAND_KEYS:
        if key.name not in _OF_ONE:
            _add(demand, key)
    others = parser.add_argument_group("experiment")
    for key in KEYS:
        if key.name not in without:
            _add(others, key)


def _add(group: Any, key: Key) -> None:
    option = f"--{key.name.replace('_', '-')}"
    unit = f" [{key.unit}]" if key.unit else ""
    choices = f" ({', '.join(key.choices)})" if key.choices else ""
    default = ",".join(key.default) if isinstance(key.default, tuple) else "on" if key.default is True else key.default
    text = f"{key.help}{unit}{choices}; default: {default or 'none'}" if default != 0 else f"{key.help}{unit}"
    text = text.replace("%", "%%")
    if key.kind == "flag":
        group.add_argument(option, action=argparse.BooleanOptionalAction, default=None, help=text)
    elif key.kind == "numbers":
        group.add_argument(option, action="append", metavar="LINK=NUMBER", help=text)
    else:
        group.add_argument(option, metavar=key.kind.upper(), help=text)


def add_output_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """--out and --json."""
    parser.add_argument("--out", type=Path, required=required, metavar="DIR", help="folder for the results")
    parser.add_argument("--json", action="store_true", help="print result.json to stdout, and nothing else")


def experiment_mapping(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that were given, as the TOML file would say them."""
    data: dict[str, Any] = {}
    for key in KEYS:
        value = getattr(arguments, key.name, None)
        if value is not None:
            data[key.name] = _value(key, value)
    tables: list[dict[str, Any]] = []
    for number, file in enumerate(arguments.demand or [], 1):
        table: dict[str, Any] = {"file": file, "name": str(number)}
        for key in DEMAND_KEYS:
            if key.name not in _OF_ONE and getattr(arguments, key.name) is not None:
                table[key.name] = _value(key, getattr(arguments, key.name))
        if number > 1:
            table["after"] = [str(number - 1)]
        tables.append(table)
    if tables:
        data["demand"] = tables
    return data


def _value(key: Key, text: Any) -> Any:
    if key.kind == "numbers":
        table = {}
        for item in text:
            link, equals, number = item.partition("=")
            if not equals:
                raise InputError(f"--{key.name.replace('_', '-')} {item}: give LINK=NUMBER, such as h3=200")
            table[link] = _parsed(key, number)
        return table
    if key.automatic and text == AUTO:
        return text
    return _parsed(key, text) if key.kind in ("integer", "number") else text


def _parsed(key: Key, text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"--{key.name.replace('_', '-')} {text}: give a number{', or auto' if key.automatic else ''}"
        ) from None


def schema() -> str:
    """All keys with kinds, units, ranges and defaults, as JSON."""

    def entry(key: Key) -> dict[str, Any]:
        described: dict[str, Any] = {"type": key.kind, "default": key.default, "help": key.help}
        if key.unit:
            described["unit"] = key.unit
        if key.automatic:
            described["or"] = AUTO
        if key.choices:
            described["choices"] = list(key.choices)
        if key.kind == "runs":
            described["options"] = {
                name: [*schedule.options, *(MODES if schedule.staged else ())] for name, schedule in SCHEDULES.items()
            }
        if key.kind in ("integer", "number", "numbers"):
            described["minimum"] = key.minimum
            if key.maximum != float("inf"):
                described["maximum"] = key.maximum
        return described

    keys: dict[str, Any] = {key.name: entry(key) for key in KEYS}
    keys["demand"] = {"type": "list of tables", "keys": {key.name: entry(key) for key in DEMAND_KEYS}}
    keys["link_failure"] = {"type": "list of tables", "keys": {key.name: entry(key) for key in FAILURE_KEYS}}
    keys["background"] = {"type": "list of tables", "keys": {key.name: entry(key) for key in BACKGROUND_KEYS}}
    return json.dumps(keys, indent=1)
