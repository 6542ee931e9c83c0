"""A compiled P4 program: the names of its p4info, and its table entries to and from P4Runtime messages.

Only what fabric.p4 uses: exact match, actions without selectors, indirect counters of packets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from controller.errors import CannotRunError
from testbed.fabric.bmv2.bindings import p4info_pb2, p4runtime_pb2, text_format

__all__ = ["Action", "Entry", "Field", "Pipeline", "Table"]

_REBUILD: Final = "make p4 compiles both anew"


@dataclass(frozen=True)
class Entry:
    """One row of a table. Without a key: its default action, which is all that a table without fields has."""

    table: str
    key: tuple[int, ...]
    """A value for each field, in the order of the p4info."""
    action: str
    values: tuple[int, ...] = ()
    """Of the action's parameters, in their order."""


@dataclass(frozen=True)
class Field:
    """A field of a key, or a parameter of an action."""

    id: int
    name: str
    bits: int


@dataclass(frozen=True)
class Action:
    """What a table can do."""

    id: int
    name: str
    """In full, as BMv2's JSON has it."""
    params: tuple[Field, ...]


@dataclass(frozen=True)
class Table:
    """One table."""

    id: int
    name: str
    """In full, as BMv2's JSON has it."""
    fields: tuple[Field, ...]
    actions: dict[str, Action]
    """By their short names (the p4info's aliases)."""
    size: int
    """Most entries that it holds."""


@dataclass(frozen=True)
class Counter:
    """An array of counters."""

    id: int
    name: str
    size: int


class Pipeline:
    """The program as it is pushed to a switch, with its tables and counters by their short names."""

    def __init__(self, p4info: Path, program: Path) -> None:
        """Raises CannotRunError unless both files are of one program.

        BMv2 does not check that: it takes names that its program lacks, and fails at the first entry, or crashes. One
        that was refused for bad JSON takes no program after that, and its next write ends it (measured on 1.15.5).
        """
        self.path = program
        self.p4info = p4info_pb2.P4Info()
        try:
            text_format.Parse(_read(p4info).decode(), self.p4info)
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise CannotRunError(
                f"{p4info}: not a p4info in text: {' '.join(str(error).split())}; {_REBUILD}"
            ) from None
        self.program = _read(program)
        actions = {action.preamble.id: _action(action) for action in self.p4info.actions}
        aliases = {action.preamble.id: action.preamble.alias for action in self.p4info.actions}
        self.tables = {
            table.preamble.alias: Table(
                table.preamble.id,
                table.preamble.name,
                tuple(Field(field.id, field.name, field.bitwidth) for field in table.match_fields),
                {aliases[reference.id]: actions[reference.id] for reference in table.action_refs},
                table.size,
            )
            for table in self.p4info.tables
        }
        self.counters = {
            counter.preamble.alias: Counter(counter.preamble.id, counter.preamble.name, counter.size)
            for counter in self.p4info.counters
        }
        self._alias_of = {table.id: alias for alias, table in self.tables.items()}
        for message in self.p4info.tables:
            for field in message.match_fields:
                if field.match_type != p4info_pb2.MatchField.EXACT:
                    raise CannotRunError(
                        f"{p4info}: table {message.preamble.alias} matches {field.name} other than exactly, "
                        "which this controller cannot write"
                    )
        self._check(p4info)

    def table(self, name: str) -> Table:
        """By its short name."""
        if name not in self.tables:
            raise CannotRunError(f"{self.path.name} has no table {name!r}: it has {', '.join(self.tables)}")
        return self.tables[name]

    def counter(self, name: str) -> Counter:
        """By its short name."""
        if name not in self.counters:
            raise CannotRunError(f"{self.path.name} has no counter {name!r}: it has {', '.join(self.counters)}")
        return self.counters[name]

    def describe(self, entry: Entry) -> str:
        """For error lines: the table and the key, such as "route 0x0a000001"."""
        if not entry.key:
            return f"the default action of {entry.table}"
        fields = self.table(entry.table).fields
        # A key that does not fit is described as well.
        widths = [-(-field.bits // 4) for field in fields] + [1] * len(entry.key)
        return f"{entry.table} " + ",".join(
            f"0x{value:0{width}x}" for value, width in zip(entry.key, widths, strict=False)
        )

    def encode(self, entry: Entry) -> Any:
        """A p4.v1.TableEntry. Raises CannotRunError for what the program does not know."""
        table = self.table(entry.table)
        if entry.action not in table.actions:
            raise CannotRunError(
                f"{self.path.name}: table {entry.table} has no action {entry.action!r}: it has {', '.join(table.actions)}"
            )
        action = table.actions[entry.action]
        message = p4runtime_pb2.TableEntry(table_id=table.id, is_default_action=not entry.key)
        if entry.key:
            for field, value in self._filled(f"the key of {entry.table}", table.fields, entry.key):
                match = message.match.add(field_id=field.id)
                match.exact.value = _bytes(value)
        message.action.action.action_id = action.id
        for field, value in self._filled(f"action {entry.action}", action.params, entry.values):
            message.action.action.params.add(param_id=field.id, value=_bytes(value))
        return message

    def decode(self, message: Any) -> Entry:
        """The inverse of ``encode``. Raises CannotRunError for what is not of this program."""
        alias = self._alias_of.get(message.table_id)
        if alias is not None:
            table = self.tables[alias]
            for name, action in table.actions.items():
                if action.id != message.action.action.action_id:
                    continue
                key = {match.field_id: int.from_bytes(match.exact.value, "big") for match in message.match}
                values = {param.param_id: int.from_bytes(param.value, "big") for param in message.action.action.params}
                wanted = [] if message.is_default_action else [field.id for field in table.fields]
                if set(key) == set(wanted) and set(values) == {param.id for param in action.params}:
                    return Entry(
                        alias,
                        tuple(key[field] for field in wanted),
                        name,
                        tuple(values[param.id] for param in action.params),
                    )
        raise CannotRunError(f"an entry that was read back is not of {self.path.name}: the switch runs another program")

    def _filled(self, what: str, fields: tuple[Field, ...], values: tuple[int, ...]) -> list[tuple[Field, int]]:
        if len(fields) != len(values):
            raise CannotRunError(f"{self.path.name}: {what} has {len(fields)} fields, not {len(values)}")
        for field, value in zip(fields, values, strict=True):
            if not 0 <= value < 1 << field.bits:
                raise CannotRunError(f"{self.path.name}: {what}: {value} does not fit {field.name}'s {field.bits} bits")
        return list(zip(fields, values, strict=True))

    def _check(self, p4info: Path) -> None:
        """That the JSON has all that the p4info names."""
        try:
            program = json.loads(self.program)
            tables = {table["name"]: table for pipeline in program["pipelines"] for table in pipeline["tables"]}
            # The compiler may write several copies of one action.
            actions = {
                action["name"]: [(data["name"], data["bitwidth"]) for data in action["runtime_data"]]
                for action in program["actions"]
            }
            counters = {counter["name"]: counter["size"] for counter in program["counter_arrays"]}
            keys = {
                name: [field["name"] for field in table["key"] if field["match_type"] == "exact"]
                for name, table in tables.items()
            }
            sizes = {name: table["max_size"] for name, table in tables.items()}
            can = {name: set(table["actions"]) for name, table in tables.items()}
        except (ValueError, KeyError, TypeError) as error:
            raise CannotRunError(
                f"{self.path}: not a program for BMv2 ({type(error).__name__}: {error}); {_REBUILD}"
            ) from None
        for alias, table in self.tables.items():
            wanted = {action.name for action in table.actions.values()}
            if keys.get(table.name) != [field.name for field in table.fields] or can[table.name] != wanted:
                self._differ(p4info, f"table {alias}")
            if sizes[table.name] != table.size:
                self._differ(p4info, f"the size of table {alias}")
            for name, action in table.actions.items():
                if actions.get(action.name) != [(param.name, param.bits) for param in action.params]:
                    self._differ(p4info, f"action {name}")
        for alias, counter in self.counters.items():
            if counters.get(counter.name) != counter.size:
                self._differ(p4info, f"counter {alias}")

    def _differ(self, p4info: Path, what: str) -> None:
        raise CannotRunError(
            f"{self.path} and {p4info.name} are of different programs: they differ in {what}; {_REBUILD}"
        )


def _action(message: Any) -> Action:
    return Action(
        message.preamble.id,
        message.preamble.name,
        tuple(Field(param.id, param.name, param.bitwidth) for param in message.params),
    )


def _bytes(value: int) -> bytes:
    """Big endian, without leading zeros, as switches write them (P4Runtime 1.3, 8.3)."""
    return value.to_bytes(max(1, -(-value.bit_length() // 8)), "big")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CannotRunError(f"{path}: {error.strerror}; {_REBUILD}") from None
