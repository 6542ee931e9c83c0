"""The tables of an experiment: [[demand]], [[link_failure]] and [[background]]."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controller.errors import InputError
from testbed.experiment.definition import Background, DemandPhase, LinkFailure
from testbed.experiment.keys import BACKGROUND_KEYS, DEMAND_KEYS, FAILURE_KEYS, Key, Value
from testbed.experiment.values import check_name, check_value, check_writable

__all__ = ["background_of", "failures_of", "phases_of"]


def _are_tables(value: Value) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _checked(table: dict[str, Value], keys: Sequence[Key], at: str, base: Path) -> dict[str, Any]:
    """The values of one table, each by itself. ``at`` starts each error line."""
    known = {key.name: key for key in keys}
    for name in table:
        check_name(name, list(known), at)
    return {name: check_value(known[name], value, at, base) for name, value in table.items()}


def _tables(
    name: str, tables: Value, keys: Sequence[Key], where: str, base: Path
) -> list[tuple[str, dict[str, Value], dict[str, Any]]]:
    """Of each [[name]]: how an error names it, what stands there, and its values, checked one by one."""
    needed = [key.name for key in keys if key.default is None]
    if tables is None:
        return []
    if not _are_tables(tables):
        raise InputError(f"{where}{name} must be tables: write [[{name}]], and {', '.join(needed)} below it")
    checked: list[tuple[str, dict[str, Value], dict[str, Any]]] = []
    for number, table in enumerate(tables, 1):
        at = f"{where}{name} {number}: "
        values = _checked(table, keys, at, base)
        missing = [key for key in needed if key not in values]
        if missing:
            raise InputError(f"{at}no {missing[0]}: give {', '.join(needed)}")
        checked.append((at, table, values))
    return checked


def phases_of(tables: Value, where: str, base: Path) -> tuple[DemandPhase, ...]:
    """The [[demand]]s, in the order in which they run. Raises InputError in a line that ``where`` starts."""
    if not tables:
        raise InputError(f"{where}no demand: give a matrix with [[demand]] file = ... or --demand FILE")
    if not _are_tables(tables):
        raise InputError(f"{where}demand must be tables: write [[demand]] and file = ... below it")
    phases: list[DemandPhase] = []
    for number, table in enumerate(tables, 1):
        at = f"{where}demand {number}: "
        values = _checked(table, DEMAND_KEYS, at, base)
        if not values.get("file"):
            raise InputError(f"{at}no file: name the matrix file")
        for each in ("file", "placement", "source_rows"):
            if values.get(each):
                values[each] = base / values[each]
                check_writable(str(values[each].absolute()), at, each)
        values["name"] = values.get("name") or str(number)
        phase = DemandPhase(**values)
        try:
            _ = phase.reading
        except InputError as error:
            raise InputError(f"{at}{error}") from None
        phases.append(phase)
    return _ordered(phases, where)


def failures_of(tables: Value, where: str, base: Path) -> tuple[LinkFailure, ...]:
    """The [[link_failure]]s, of which there may be none. Raises InputError likewise."""
    failures: list[LinkFailure] = []
    for at, table, values in _tables("link_failure", tables, FAILURE_KEYS, where, base):
        failure = LinkFailure(**values)
        if failure.up_ns <= failure.down_ns:
            raise InputError(f"{at}up_ns is {table['up_ns']}: it must be above down_ns, {table['down_ns']}")
        if any(other.link == failure.link for other in failures):
            raise InputError(f"{at}{failure.link} fails twice, which is not supported: give one interval")
        failures.append(failure)
    return tuple(failures)


def background_of(tables: Value, where: str, base: Path) -> tuple[Background, ...]:
    """The [[background]]s, of which there may be none. Raises InputError likewise."""
    flows: list[Background] = []
    for at, _, values in _tables("background", tables, BACKGROUND_KEYS, where, base):
        flow = Background(**values)
        if flow.source == flow.destination:
            raise InputError(f"{at}{flow.source} sends to itself: name another destination")
        flows.append(flow)
    return tuple(flows)


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
