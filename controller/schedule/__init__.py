"""Schedules: from a demand to who sends what when. One file a schedule, which defines it as SCHEDULE."""

from __future__ import annotations

import contextlib
import pkgutil
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from typing import Final

from controller.demand import MTU_BYTES, Demand
from controller.errors import InputError
from controller.schedule.own import blaming, check_file, load_file
from controller.schedule.plan import Discipline, Plan, Schedule, Setting, Stages, check_plan, with_mode

__all__ = [
    "MODES",
    "SCHEDULES",
    "Plan",
    "Schedule",
    "check_schedule",
    "has_barrier",
    "make_plan",
    "moves_inside",
    "parse_schedule",
    "schedule_of",
]

MODES: Final = tuple(mode.value for mode in Stages)


def _built_in() -> dict[str, Schedule]:
    """Those of the modules of this package, what the paper compares first."""
    modules = (import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__))
    found = {module.SCHEDULE.name: module.SCHEDULE for module in modules if hasattr(module, "SCHEDULE")}
    first = ("rr", "rate")
    return {name: found[name] for name in (*first, *sorted(set(found) - set(first)))}


SCHEDULES: Final[dict[str, Schedule]] = _built_in()


def parse_schedule(text: str) -> tuple[str, tuple[str, ...]]:
    """NAME or FILE.py, and the options behind it: "bvn:any:clock" is bvn, with any and clock."""
    name, *options = (part.strip() for part in text.split(":"))
    return name, tuple(options)


def check_schedule(text: str, base: str = "") -> str:
    """What make_plan takes, from what the user wrote; a relative file lies in ``base``. Executes no user code.

    Raises InputError where there is no such schedule, or it knows no such option.
    """
    name, options = parse_schedule(text)
    if name.endswith(".py"):
        for option in options:
            if not option or "/" in option:  # results of the run lie in a folder of this name
                raise InputError(
                    f"schedule {text!r}: an option is empty or has a slash: give one of its own, or a mode"
                )
        return ":".join((check_file(name, base), *options))
    if name not in SCHEDULES:
        raise InputError(
            f"schedule {name!r} is not known: use {' or '.join(SCHEDULES)}, or a Python file, whose name has no + : or ,"
        )
    _sorted_options(SCHEDULES[name], options)
    return ":".join((name, *options))


def _sorted_options(schedule: Schedule, options: Sequence[str]) -> tuple[tuple[str, ...], Stages | None]:
    """The schedule's own options, with its first where none is given, and the mode of its stages."""
    own: list[str] = []
    modes: list[str] = []
    for option in options:
        numeric = schedule.numeric and re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", option)
        if schedule.staged and option in MODES:
            modes.append(option)
        elif option in schedule.options or numeric:
            own.append(option)
        else:
            known = [*schedule.options, *(MODES if schedule.staged else ())]
            number = f", or a number: {schedule.numeric}" if schedule.numeric else ""
            hint = f"use {', '.join(known)}{number}" if known else "it has none"
            raise InputError(f"schedule {schedule.name} has no option {option!r}: {hint}")
    if len(own) > 1 or len(modes) > 1:
        raise InputError(f"schedule {schedule.name}:{':'.join(options)} has two options of a kind: leave one out")
    return tuple(own) or schedule.options[:1], Stages(modes[0]) if modes else None


def schedule_of(text: str) -> Schedule:
    """The schedule that a text names. A file is executed. Raises InputError."""
    name, _ = parse_schedule(text)
    if name.endswith(".py"):
        return load_file(name)
    if name not in SCHEDULES:
        raise InputError(
            f"schedule {name!r} is not known: use {' or '.join(SCHEDULES)}, or a Python file, whose name has no + : or ,"
        )
    return SCHEDULES[name]


def make_plan(
    schedule: str,
    demand: Demand,
    speeds_bps: Sequence[Fraction],
    *,
    mtu_bytes: int = MTU_BYTES,
    gpus_per_server: int = 1,
    stages: str = Stages.BARRIER.value,
) -> Plan:
    """The plan of a schedule, NAME[:OPTION...] or FILE.py, for a demand on ports of the given speeds, one a host; checked.

    ``stages``: how stages follow each other where the schedule's options do not say it. Raises InputError.
    """
    chosen = schedule_of(schedule)
    options, mode = _sorted_options(chosen, parse_schedule(schedule)[1])
    setting = Setting(tuple(speeds_bps), mtu_bytes, gpus_per_server, options)
    name = parse_schedule(schedule)[0]
    of_user = name.endswith(".py")
    with blaming(name, "made no plan") if of_user else contextlib.nullcontext():
        plan = chosen.plan(_unchangeable(demand, copied=of_user), setting)
        check_plan(chosen, plan, demand, setting)
    if plan.discipline is not Discipline.STAGED:
        return plan
    return with_mode(plan, mode or Stages(stages))


def _unchangeable(demand: Demand, *, copied: bool) -> Demand:
    """The same for a schedule, which is not to change what is sent. ``copied``: not even where it makes the array writable again."""
    wire_bytes = demand.wire_bytes.copy() if copied else demand.wire_bytes.view()
    wire_bytes.setflags(write=False)
    return replace(demand, wire_bytes=wire_bytes)


def has_barrier(schedule: str, stages: str) -> bool:
    """Whether a schedule may wait at barriers; of a file that is not known before it is executed."""
    name, options = parse_schedule(schedule)
    if name in SCHEDULES and not SCHEDULES[name].staged:
        return False
    return (next((option for option in options if option in MODES), stages)) == Stages.BARRIER.value


def moves_inside(name: str) -> bool:
    """Whether a built-in schedule moves data inside servers."""
    return name in SCHEDULES and SCHEDULES[name].by_server
