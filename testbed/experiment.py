"""An experiment is data: one set of keys, whether they come from a TOML file or from the command line."""

from __future__ import annotations

import difflib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from controller.demand import HEADER_BYTES, MAX_HOSTS, MTU_BYTES, UNITS
from controller.errors import InputError
from controller.schedule import SCHEDULES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["DEMAND_KEYS", "KEYS", "DemandPhase", "Experiment", "Key", "from_mapping", "read_toml", "to_toml"]

Value = Any


@dataclass(frozen=True)
class Key:
    """One key: how its value is checked, and what the documentation says of it."""

    name: str
    kind: str
    """integer, number, text, list (of text), flag, or numbers (a table of names and numbers)."""
    default: Value
    help: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    minimum: float = 0
    maximum: float = math.inf


DEMAND_KEYS: Final = (
    Key("name", "text", "", "what later phases call this one; default: its place, from 1"),
    Key("file", "text", None, "matrix file: CSV or NPY, row = sender, column = receiver"),
    Key("unit", "text", "bytes", "what an entry counts; bytes are payload", choices=UNITS),
    Key("token_bytes", "integer", 0, "payload of one token, with unit tokens", "B", maximum=2**31),
    Key("after", "list", (), "phases that must have ended everywhere before this one starts"),
)

KEYS: Final = (
    Key("hosts", "integer", 0, "number of hosts; 0: from the demand", maximum=MAX_HOSTS),
    Key("hosts_per_leaf", "integer", 0, "hosts on a leaf, and spines; 0: 8, or 4 up to 16 hosts", maximum=64),
    Key("gpus_per_server", "integer", 1, "hosts in a server; traffic inside a server is local", minimum=1, maximum=64),
    Key("topology", "text", "leaf-spine", "shape of the network", choices=("leaf-spine",)),
    Key("link_gbps", "number", 800, "speed of every link", "Gb/s", minimum=0.001, maximum=100_000),
    Key("link_ns", "number", 1000, "propagation delay of every link", "ns", maximum=10_000_000),
    Key(
        "link_gbps_of",
        "numbers",
        {},
        "exceptions by link, such as h3 or leaf1-spine2",
        "Gb/s",
        minimum=0.001,
        maximum=100_000,
    ),
    Key("link_ns_of", "numbers", {}, "exceptions by link", "ns", maximum=10_000_000),
    Key("dilation", "number", 0, "kernel time over fabric time; 0: chosen so that times are whole", maximum=1_000_000),
    Key(
        "mtu_bytes",
        "integer",
        MTU_BYTES,
        "largest packet on the wire, headers included",
        "B",
        minimum=2 * HEADER_BYTES,
        maximum=9216,
    ),
    Key("queue_bytes", "integer", 0, "limit of a switch port's queue; 0: unlimited", "B", maximum=2**40),
    Key(
        "schedule", "list", ("rr", "rate"), "schedules to run, side by side, one a processor", choices=tuple(SCHEDULES)
    ),
    Key("cc", "text", "none", "congestion control", choices=("none",)),
    Key("lb", "text", "ops", "load balancing: packet spraying or one path a flow", choices=("ops", "ecmp")),
    Key("phase", "text", "random", "where in its gap a paced flow starts", choices=("random", "zero", "golden")),
    Key("stage", "text", "virtual", "where it runs", choices=("virtual",)),
    Key("fabric", "text", "kernel", "what the switches are", choices=("kernel",)),
    Key(
        "links",
        "text",
        "trunk",
        "one interface for all links, or a pair of interfaces for each: same results, slower",
        choices=("trunk", "pairs"),
    ),
    Key("start_jitter_ns", "number", 0, "each sender starts at random up to this late", "ns", maximum=1e9),
    Key("seed", "integer", 0, "of everything random", maximum=2**32 - 1),
    Key("trace", "flag", False, "also write every packet's hops (trace.parquet)"),
    Key("memory_mib", "integer", 0, "memory of the virtual machine, at least 160; 0: estimated", "MiB", maximum=2**20),
    Key("limit_s", "number", 3600, "wall time after which a run is given up", "s", minimum=1, maximum=10_000_000),
)


@dataclass(frozen=True)
class DemandPhase:
    """One all-to-all; several form a sequence by ``after``."""

    file: Path
    name: str
    unit: str = "bytes"
    token_bytes: int = 0
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """A checked experiment. Names, units and defaults as in KEYS."""

    demand: tuple[DemandPhase, ...]
    hosts: int = 0
    hosts_per_leaf: int = 0
    gpus_per_server: int = 1
    topology: str = "leaf-spine"
    link_gbps: Fraction = Fraction(800)
    link_ns: Fraction = Fraction(1000)
    link_gbps_of: dict[str, Fraction] = field(default_factory=dict)
    link_ns_of: dict[str, Fraction] = field(default_factory=dict)
    dilation: Fraction = Fraction(0)
    mtu_bytes: int = MTU_BYTES
    queue_bytes: int = 0
    schedule: tuple[str, ...] = ("rr", "rate")
    cc: str = "none"
    lb: str = "ops"
    phase: str = "random"
    stage: str = "virtual"
    fabric: str = "kernel"
    links: str = "trunk"
    start_jitter_ns: Fraction = Fraction(0)
    seed: int = 0
    trace: bool = False
    memory_mib: int = 0
    limit_s: Fraction = Fraction(3600)

    def keys(self) -> dict[str, Value]:
        """All keys but the demand as plain JSON values."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "demand"}


def _plain(value: Value) -> Value:
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def read_toml(path: Path) -> Experiment:
    """The experiment of a file; matrix files are looked for beside it. Raises InputError in one line."""
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
    return from_mapping(data, where=f"{path}: ", base=path.parent)


def from_mapping(data: Mapping[str, Value], *, where: str = "", base: Path = Path()) -> Experiment:
    """Checks every key and value. ``where`` starts each error line; relative files start at ``base``."""
    known = {key.name: key for key in KEYS}
    values: dict[str, Value] = {}
    for name, value in data.items():
        if name == "demand":
            continue
        if name not in known:
            raise InputError(f"{where}{name!r} is not a key{_nearest(name, [*known, 'demand'])}")
        values[name] = _check(known[name], value, where)
    phases = _phases(data.get("demand"), where, base)
    return Experiment(demand=phases, **values)


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f": did you mean {close[0]!r}?" if close else ": see incastfree run --print-schema"


def _check(key: Key, value: Value, where: str) -> Value:
    if key.kind == "flag":
        if not isinstance(value, bool):
            raise InputError(f"{where}{key.name} is {value!r}: give true or false")
        return value
    if key.kind == "text":
        if not isinstance(value, str):
            raise InputError(f"{where}{key.name} is {value!r}: give text")
        return _choice(key, value, where)
    if key.kind == "list":
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
            raise InputError(f"{where}{key.name} is {value!r}: give a list of text")
        items = [item.strip() for item in items if item.strip()]
        if key.choices and not items:
            raise InputError(f"{where}{key.name} is empty: give one or more of {', '.join(key.choices)}")
        if len(set(items)) < len(items):
            raise InputError(f"{where}{key.name} names something twice: {', '.join(items)}")
        return tuple(_choice(key, item, where) for item in items)
    if key.kind == "numbers":
        if not isinstance(value, dict):
            raise InputError(f"{where}{key.name} is {value!r}: give a table of links and numbers")
        return {name: _number(key, item, where, f"{key.name}.{name}") for name, item in value.items()}
    number = _number(key, value, where, key.name)
    if key.kind == "integer":
        if number.denominator != 1:
            raise InputError(f"{where}{key.name} is {value}: give a whole number")
        return int(number)
    return number


def _choice(key: Key, value: str, where: str) -> str:
    if key.choices and value not in key.choices:
        raise InputError(f"{where}{key.name} {value!r} is not known: use {' or '.join(key.choices)}")
    return value


def _number(key: Key, value: Value, where: str, name: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, float, Fraction)) or value != value:  # noqa: PLR0124 (NaN; math.isfinite overflows on huge integers)
        raise InputError(f"{where}{name} is {value!r}: give a number")
    if not key.minimum <= value <= key.maximum:
        upper = f" to {_readable(key.maximum)}" if key.maximum < math.inf else " or more"
        unit = f" {key.unit}" if key.unit else ""
        raise InputError(f"{where}{name} is {value}: it must be {_readable(key.minimum)}{upper}{unit}")
    return value if isinstance(value, Fraction) else Fraction(str(value))


def _readable(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else f"{number:g}"


def _phases(tables: Value, where: str, base: Path) -> tuple[DemandPhase, ...]:
    if not tables:
        raise InputError(f"{where}no demand: give a matrix with [[demand]] file = ... or --demand FILE")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{where}demand must be tables: write [[demand]] and file = ... below it")
    known = {key.name: key for key in DEMAND_KEYS}
    phases: list[DemandPhase] = []
    for number, table in enumerate(tables, 1):
        at = f"{where}demand {number}: "
        for name in table:
            if name not in known:
                raise InputError(f"{at}{name!r} is not a key{_nearest(name, list(known))}")
        values = {name: _check(known[name], value, at) for name, value in table.items()}
        if not values.get("file"):
            raise InputError(f"{at}no file: name the matrix file")
        values["file"] = base / values["file"]
        values["name"] = values.get("name") or str(number)
        phases.append(DemandPhase(**values))
    return _ordered(phases, where)


def _ordered(phases: list[DemandPhase], where: str) -> tuple[DemandPhase, ...]:
    """In an order in which each comes after those it waits for, which must leave no choice."""
    names = [phase.name for phase in phases]
    if len(set(names)) < len(names):
        raise InputError(f"{where}two demand phases have one name: {', '.join(names)}")
    for phase in phases:
        for other in phase.after:
            if other not in names:
                known = ", ".join(names)
                raise InputError(
                    f"{where}demand {phase.name}: after names {other!r}, which is no phase: there are {known}"
                )
    done: list[DemandPhase] = []
    while len(done) < len(phases):
        ready = [p for p in phases if p not in done and set(p.after) <= {d.name for d in done}]
        if not ready:
            raise InputError(f"{where}the demand phases wait for each other in a circle: break it")
        if len(ready) > 1:
            raise InputError(
                f"{where}demand phases {ready[0].name} and {ready[1].name} would run at the same time, which is not "
                "supported: chain them with after"
            )
        done += ready
    return tuple(done)


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
    for phase in experiment.demand:
        lines += ["", "[[demand]]", f"name = {_quoted(phase.name)}", f"file = {_quoted(str(phase.file.resolve()))}"]
        lines += [f"unit = {_quoted(phase.unit)}"]
        lines += [f"token_bytes = {phase.token_bytes}"] if phase.token_bytes else []
        lines += [f"after = {_quoted(list(phase.after))}"] if phase.after else []
    return "\n".join(lines) + "\n"
