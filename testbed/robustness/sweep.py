"""The grid of a robustness table, and the table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from controller.errors import InputError
from controller.schedule import SCHEDULES, Plan, make_plan
from testbed.engine import cca
from testbed.experiment import Experiment, Run
from testbed.figures.confidence import half_width
from testbed.figures.incast import one_demand
from testbed.figures.options import Demand, Options, Row, demand_of_zipf, experiment_of
from testbed.grid.cells import Cell, cells_of
from testbed.grid.store import Store
from testbed.robustness.disturbances import DISTURBANCES, Disturbance, Level
from testbed.scenario import Scenario, prepare

__all__ = ["NOTHING", "UNDISTURBED", "Sweep", "markdown", "sweep", "table"]

NOTHING: Final = "nothing"
"""What the undisturbed runs are against."""
UNDISTURBED: Final = "none"
"""Their level."""
_COUNTED: Final = ("trims", "drops", "lost", "retransmissions", "timeouts")
_FIGURES: Final = frozenset(
    (*_COUNTED, "cct_ns", "inflation", "packets", "duplicates", "hot_queue_max_bytes", "fabric_queue_max_bytes")
)


@dataclass(frozen=True)
class Sweep:
    """All cells of a table, each with the columns that say what it is."""

    cells: list[tuple[Row, Cell]]
    left_out: list[str]
    """In a line each: runs that cannot be, or that a disturbance cannot touch."""


def sweep(options: Options, schedules: Sequence[str], against: Sequence[str], strongest: bool = False) -> Sweep:
    """Each of ``schedules`` undisturbed and against each level of each disturbance of ``against``, for each seed.

    ``strongest``: of each disturbance only the last level. Raises InputError where no run is left, as an experiment file would, and
    where none is left but undisturbed ones.
    """
    cells: list[tuple[Row, Cell]] = []
    left_out: dict[str, None] = {}
    for seed in range(1, options.seeds + 1):
        demand = _demand(options, seed)
        whole = experiment_of(options, demand, seed=seed, schedule=_possible(options, demand, schedules, left_out))
        ground = prepare(whole)
        runs = {run: _plan(ground, run) for run in whole.runs}
        names = dict(zip((run.name for run in runs), whole.schedule, strict=True))
        found = [(NOTHING, UNDISTURBED, whole)]
        for name in against:
            each = DISTURBANCES[name]
            if lacks := each.lacks(ground):
                left_out[f"{name} is left out: {lacks}"] = None
                continue
            touched = [run for run, plan in runs.items() if not _spared(each, run, plan, left_out)]
            for level in each.levels[-1:] if strongest else each.levels:
                texts = [names[run.name] for run in touched]
                found += [
                    (name, level.shown, experiment)
                    for experiment in _disturbed(options, demand, seed, ground, each, level, texts, left_out)
                ]
        for name, shown, experiment in found:
            for cell, run in zip(
                cells_of(
                    experiment,
                    tables=(),
                    label=f"{name} {shown} seed {seed}",
                    may_not_end=[run.name for run in experiment.runs],
                ),
                experiment.runs,
                strict=True,
            ):
                cells.append(({"against": name, "level": shown, "run": run.name, "seed": seed}, cell))
    if all(row["against"] == NOTHING for row, _ in cells):
        raise InputError(f"no disturbance of these touches any of these runs: {'; '.join(left_out)}")
    return Sweep(cells, list(left_out))


def _demand(options: Options, seed: int) -> Demand:
    if options.demands:
        return one_demand(options)
    return demand_of_zipf(options, options.hosts[0], options.skews[0], options.bytes_per_sender[0], seed)


def _possible(options: Options, demand: Demand, schedules: Sequence[str], left_out: dict[str, None]) -> list[str]:
    """Those that can be run at all. Raises the first one's InputError where none can."""
    first: InputError | None = None
    possible = []
    for text in schedules:
        try:
            experiment = experiment_of(options, demand, schedule=[text])
            _plan(prepare(experiment), experiment.runs[0])
            cca.load(experiment.runs[0].cc)
        except InputError as error:
            first = first or error
            left_out[f"{text} is left out: {error}"] = None
        else:
            possible.append(text)
    if first and not possible:
        raise first
    return possible


def _spared(each: Disturbance, run: Run, plan: Plan, left_out: dict[str, None]) -> bool:
    why = each.spares(run, plan)
    if why:
        left_out[f"{run.name} against {each.name} is left out: {why}"] = None
    return bool(why)


def _disturbed(
    options: Options,
    demand: Demand,
    seed: int,
    ground: Scenario,
    each: Disturbance,
    level: Level,
    schedules: Sequence[str],
    left_out: dict[str, None],
) -> list[Experiment]:
    """One experiment with all ``schedules``, or as many as can be, one each."""
    keys = {**level.keys(ground), "seed": seed}
    found = []
    for texts in [schedules] if len(schedules) < 2 else [schedules, *([text] for text in schedules)]:
        if not texts:
            continue
        try:
            experiment = experiment_of(options, demand, **keys, schedule=list(texts))
            disturbed = prepare(experiment)
            for run in experiment.runs:
                if run.schedule not in SCHEDULES:  # one of the user's own may have something against it
                    _plan(disturbed, run)
        except InputError as error:
            if len(texts) == 1:
                left_out[f"{texts[0]} against {each.name} {level.shown} is left out: {error}"] = None
            continue
        found.append(experiment)
        if len(texts) == len(schedules):
            break
    return found


def _plan(scenario: Scenario, run: Run) -> Plan:
    experiment = scenario.experiment
    return make_plan(
        run.plan,
        scenario.demands[0],
        scenario.speeds_bps[: scenario.hosts],
        mtu_bytes=experiment.mtu_bytes,
        gpus_per_server=experiment.gpus_per_server,
        stages=experiment.stages,
    )


def table(cells: Sequence[tuple[Row, Cell]], store: Store) -> list[Row]:
    """One line for each run against each level: means over the seeds, with 95 % confidence intervals where two or more ended.

    ``inflation``: CCT over the lower bound of the demand on these links, minus 1. ``slower``: CCT over that of the same run and seed
    undisturbed, minus 1. ``loss``: packets of the demand that did not come whole, being trimmed, dropped or lost, over all that were
    sent. The counters beside it hold background and ACKs as well. Raises CannotRunError for a cell without all figures.
    """
    figures = {cell.address: store.figures(cell) for _, cell in cells}
    for _, cell in cells:
        own = figures[cell.address]
        if own["cct_ns"] is not None and not own.keys() >= _FIGURES:
            raise store.damaged(cell)
    undisturbed = {
        (row["run"], row["seed"]): figures[cell.address].get("cct_ns")
        for row, cell in cells
        if row["against"] == NOTHING
    }
    groups: dict[tuple[str, str, str], list[tuple[int, Cell]]] = {}
    for row, cell in cells:
        groups.setdefault((row["against"], row["level"], row["run"]), []).append((row["seed"], cell))
    return [
        {"against": against, "level": level, "run": run, **_line(run, group, figures, undisturbed)}
        for (against, level, run), group in groups.items()
    ]


def markdown(rows: Sequence[Row]) -> str:
    """The table for people: a line a level, a column a run, each with inflation [%] / hot queue [packets] / loss [%].

    Where fewer runs ended than were tried, it says how many; a dash is a run that a disturbance cannot touch.
    """
    runs = list(dict.fromkeys(row["run"] for row in rows))
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        lines.setdefault((row["against"], row["level"]), {})[row["run"]] = _entry(row)
    head = ["against", "level", *(f"`{run}`" for run in runs)]
    made = [head, ["---"] * len(head)]
    for (against, level), entries in lines.items():
        made.append([f"`{against}`", level, *(entries.get(run, "-") for run in runs)])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in made)


def _entry(row: Row) -> str:
    if not row["ended"]:
        return f"0 of {row['runs']} ended"
    width = row["inflation_ci95_half_width_percent"]
    inflation = f"{row['inflation_mean_percent']:.1f}" + (f" ± {width:.1f}" if width is not None else "")
    some = "" if row["ended"] == row["runs"] else f" ({row['ended']} of {row['runs']} ended)"
    return f"{inflation} / {row['hot_queue_mean_packets']:.0f} / {row['loss_mean_percent']:.1f}{some}"


def _line(
    run: str,
    group: Sequence[tuple[int, Cell]],
    figures: dict[str, dict[str, Any]],
    undisturbed: dict[tuple[str, int], float | None],
) -> Row:
    ended = [(seed, cell, own) for seed, cell in group if (own := figures[cell.address])["cct_ns"] is not None]
    mtu = group[0][1].network.mtu_bytes

    def mean(values: Sequence[float]) -> float | None:
        return math.fsum(values) / len(values) if values else None

    inflation = [100 * own["inflation"] for _, _, own in ended]
    before = [(own["cct_ns"], undisturbed[run, seed]) for seed, _, own in ended]
    slower = [100 * (cct_ns / than - 1) for cct_ns, than in before if than]
    # Each copy came for the first time, or once more, or did not come whole and was sent again.
    gone = [100 * (own["retransmissions"] - own["duplicates"]) / max(1, own["packets"]) for _, _, own in ended]
    return {
        "runs": len(group),
        "ended": len(ended),
        "lower_bound_us": mean([cell.network.lower_bound_ns / 1000 for _, cell in group]),
        "cct_us": mean([own["cct_ns"] / 1000 for _, _, own in ended]),
        "inflation_mean_percent": mean(inflation),
        "inflation_ci95_half_width_percent": half_width(inflation),
        "slower_mean_percent": mean(slower),
        "slower_ci95_half_width_percent": half_width(slower),
        "hot_queue_mean_packets": mean([own["hot_queue_max_bytes"] / mtu for _, _, own in ended]),
        "hot_queue_max_packets": max((own["hot_queue_max_bytes"] / mtu for _, _, own in ended), default=None),
        "inner_queue_mean_packets": mean([own["fabric_queue_max_bytes"] / mtu for _, _, own in ended]),
        "loss_mean_percent": mean(gone),
        **{f"{name}_mean": mean([float(own[name]) for _, _, own in ended]) for name in _COUNTED},
    }
