"""One value of an experiment, checked against its key."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection
from fractions import Fraction
from pathlib import Path
from typing import Final

from controller.errors import InputError
from controller.schedule import check_schedule
from testbed.engine import cca
from testbed.experiment.keys import AUTO, CC, Key, Value

__all__ = ["check_name", "check_value", "check_writable"]


def check_name(name: str, known: Collection[str], where: str) -> None:
    """Raises InputError for one that is not known, and names the nearest. ``where`` starts the line."""
    if name in known:
        return
    close = difflib.get_close_matches(name, known, n=1)
    advice = f"did you mean {close[0]!r}?" if close else "see incastfree run --print-schema"
    raise InputError(f"{where}{name!r} is not a key: {advice}")


def check_value(key: Key, value: Value, where: str, base: Path) -> Value:
    """The value as an experiment keeps it. Relative files start at ``base``.

    Raises InputError, in a line that ``where`` starts, for another type and for what is out of range.
    """
    if key.automatic and value == AUTO:
        return value
    return _CHECKS[key.kind](key, value, where, base)


def check_writable(text: str, where: str, name: str) -> str:
    """The text itself: refused, before anything runs, where experiment.toml could not say it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}{name} is {text!r}, which is not UTF-8: rename it") from None
    return text


def _flag(key: Key, value: Value, where: str, _base: Path) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{where}{key.name} is {value!r}: give true or false")
    return value


def _text(key: Key, value: Value, where: str, _base: Path) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}{key.name} is {value!r}: give text")
    if key.choices and value not in key.choices:
        raise InputError(f"{where}{key.name} {value!r} is not known: use {' or '.join(key.choices)}")
    return check_writable(value, where, key.name)


def _control(key: Key, value: Value, where: str, base: Path) -> str:
    name = _text(key, value, where, base)
    try:
        name = cca.check(name, base)
    except InputError as error:
        raise InputError(f"{where}{error}") from None
    return check_writable(name, where, key.name)


def _list(key: Key, value: Value, where: str, base: Path) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise InputError(f"{where}{key.name} is {value!r}: give a list of text")
    items = [item.strip() for item in items if item.strip()]
    if key.choices and not items:
        raise InputError(f"{where}{key.name} is empty: give one or more of {', '.join(key.choices)}")
    if len(set(items)) < len(items):
        raise InputError(f"{where}{key.name} names something twice: {', '.join(items)}")
    return tuple((_run if key.kind == "runs" else _text)(key, item, where, base) for item in items)


def _run(key: Key, value: str, where: str, base: Path) -> str:
    schedule, plus, cc = (part.strip() for part in value.partition("+"))
    try:
        schedule = check_schedule(schedule, str(base))
    except InputError as error:
        raise InputError(f"{where}{error}") from None
    check_writable(schedule, where, key.name)
    return f"{schedule}+{_control(CC, cc, where, base)}" if plus else schedule


def _numbers(key: Key, value: Value, where: str, _base: Path) -> dict[str, Fraction]:
    if not isinstance(value, dict):
        raise InputError(f"{where}{key.name} is {value!r}: give a table of links and numbers")
    return {name: _number(key, item, where, f"{key.name}.{name}") for name, item in value.items()}


def _integer(key: Key, value: Value, where: str, _base: Path) -> int:
    number = _number(key, value, where, key.name)
    if number.denominator != 1:
        raise InputError(f"{where}{key.name} is {value}: give a whole number")
    return int(number)


def _any_number(key: Key, value: Value, where: str, _base: Path) -> Fraction:
    return _number(key, value, where, key.name)


_CHECKS: Final[dict[str, Callable[[Key, Value, str, Path], Value]]] = {
    "integer": _integer,
    "number": _any_number,
    "text": _text,
    "control": _control,
    "list": _list,
    "runs": _list,
    "flag": _flag,
    "numbers": _numbers,
}


def _number(key: Key, value: Value, where: str, name: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, float, Fraction)) or value != value:  # noqa: PLR0124 (NaN; math.isfinite overflows on huge integers)
        raise InputError(f"{where}{name} is {value!r}: give a number{_or_auto(key)}")
    if not key.minimum <= value <= key.maximum:
        upper = f" to {_readable(key.maximum)}" if key.maximum < math.inf else " or more"
        unit = f" {key.unit}" if key.unit else ""
        raise InputError(f"{where}{name} is {value}: it must be {_readable(key.minimum)}{upper}{unit}{_or_auto(key)}")
    return value if isinstance(value, Fraction) else Fraction(str(value))


def _or_auto(key: Key) -> str:
    return ", or auto" if key.automatic else ""


def _readable(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else f"{number:g}"
