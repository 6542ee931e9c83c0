"""JSON whose numbers become arrays: what is no number, no whole one, or does not fit is refused with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError
from controller.formats.files import open_file

__all__ = ["integer", "json_lines", "parse_json", "record_of", "whole_array"]


def parse_json(where: str, text: bytes | str) -> Any:
    """The value of a JSON text. ``where`` starts the error line. Raises InputError."""
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise InputError(
            f"{where} is not JSON ({error.msg.splitlines()[0].removesuffix(' at')} at {place}): write it anew"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{where} is not JSON: its text is not UTF-8") from None
    except RecursionError:
        raise InputError(f"{where} is not JSON that is read: it is nested too deeply") from None
    except ValueError as error:  # NaN and Infinity; numbers of thousands of digits
        raise InputError(f"{where} holds a number that is not used ({str(error)[:60]}): give finite ones") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)
"""One for all lines: json.loads would make one for each."""


def json_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, line) of all that are not blank."""
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line


def record_of(where: str, line: bytes) -> dict[str, Any]:
    """A line that must be an object."""
    value = parse_json(where, line)
    if not isinstance(value, dict):
        raise InputError(f"{where} is not a record: give one JSON object a line")
    return value


def integer(where: str, record: dict[str, Any], name: str, default: int | None = None) -> int:
    """A whole number of 0 or more, below 2^31, of a record."""
    value = record.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        shown = "is missing" if name not in record else "is no whole number of 0 to 2^31"
        raise InputError(f"{where}: {name} {shown}: write the record anew")
    return value


def whole_array(
    where: str, value: Any, dimensions: int, least: int = 0, *, booleans: bool = False
) -> NDArray[np.int64]:
    """Nested lists of whole numbers as an array of so many dimensions; none below ``least``. ``booleans`` may stand for 0, 1.

    Types are looked at before numpy sees them: of text it would make room for the longest item many times.
    """
    flat = [value]
    shape: list[int] = []
    if dimensions == 1 and type(value) is list:  # a short list a line: what the loop does, in less time
        flat, shape = value, [len(value)]
    for _ in range(dimensions - len(shape)):
        if not all(type(item) is list for item in flat):
            raise InputError(f"{where} is not a list of numbers in {dimensions} dimensions")
        lengths = {len(item) for item in flat}
        if len(lengths) > 1:
            raise InputError(
                f"{where}: its lists are of {min(lengths)} to {max(lengths)} numbers: they must be equally long"
            )
        shape.append(lengths.pop() if lengths else 0)
        flat = [inner for item in flat for inner in item] if len(flat) > 1 else flat[0] if flat else []
    kinds = {int, bool} if booleans else {int}
    if not set(map(type, flat)) <= kinds:
        odd = next(item for item in flat if type(item) not in kinds)
        raise InputError(f"{where} holds {_shown(odd)}, which is not a whole number")
    if flat and (max(flat) >= 2**63 or min(flat) < least):
        low = min(flat)
        wrong = f"{low}: it must be {least} or more" if low < least else f"{str(max(flat))[:20]}: it must be below 2^63"
        raise InputError(f"{where} holds {wrong[:60]}")
    return np.array(flat, dtype=np.int64).reshape(shape)


def _shown(value: Any) -> str:
    if isinstance(value, (str, float, bool)) or value is None:
        text = repr(value)
        return text if len(text) <= 24 else text[:24] + "..."
    return f"a {type(value).__name__}"
