"""An experiment from a mapping: its keys checked one by one, then together."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Final

from controller.errors import InputError
from controller.schedule import SCHEDULES
from testbed.engine import cca
from testbed.experiment.definition import DemandPhase, Experiment
from testbed.experiment.keys import DOCA_MODEL, KEYS, LEAST_MEMORY_MIB, TABLES, Value
from testbed.experiment.tables import background_of, failures_of, phases_of
from testbed.experiment.values import check_name, check_value

__all__ = ["from_mapping"]

_MAILBOX_NS: Final = Fraction(13_200_000)
"""One mailbox send to a BlueField-3, published (facts: AtlanticBob/hpft-implementation, p50)."""
_OWN_RATES: Final = ("dcqcn", "dcqcn-paper")
_FEWEST_HOSTS: Final = 2


def from_mapping(
    data: Mapping[str, Value], *, where: str = "", base: Path = Path(), needs_demand: bool = True
) -> Experiment:
    """Checks every key and value. ``where`` starts each error line; relative files start at ``base``.

    ``needs_demand``: without one the key hosts is needed, for programs that make their own traffic.
    """
    known = {key.name: key for key in KEYS}
    names = [*known, *TABLES]
    values: dict[str, Value] = {}
    for name, value in data.items():
        if name in TABLES:
            continue
        check_name(name, names, where)
        values[name] = check_value(known[name], value, where, base)
    if values.get("nic") == DOCA_MODEL:
        values.setdefault("control_delay_ns", _MAILBOX_NS)
    if values.get("loss_recovery") == "none":
        values.setdefault("schedule", ("rr", "rate"))  # without ACKs there is nothing to control by
    phases: tuple[DemandPhase, ...] = ()
    if needs_demand or data.get("demand"):
        phases = phases_of(data.get("demand"), where, base)
    elif values.get("hosts", 0) < _FEWEST_HOSTS:
        raise InputError(f"{where}no demand, and no hosts: give hosts = N, of {_FEWEST_HOSTS} or more, or a [[demand]]")
    experiment = Experiment(
        demand=phases,
        link_failure=failures_of(data.get("link_failure"), where, base),
        background=background_of(data.get("background"), where, base),
        **values,
    )
    _check_together(experiment, where)
    return experiment


def _check_together(experiment: Experiment, where: str) -> None:
    names = [run.name for run in experiment.runs]
    if len(set(names)) < len(names):
        raise InputError(
            f"{where}schedule gives two runs one name: {', '.join(names)}; leave one out, or rename its file"
        )
    for name, topology in (("hosts_per_leaf", "leaf-spine"), ("fat_tree_k", "fat-tree")):
        if getattr(experiment, name) and experiment.topology != topology:
            raise InputError(f"{where}{name} is for topology {topology}, not {experiment.topology}: leave it out")
    if 0 < experiment.memory_mib < LEAST_MEMORY_MIB:
        raise InputError(f"{where}memory_mib is {experiment.memory_mib}: give {LEAST_MEMORY_MIB} or more, or 0")
    if experiment.fat_tree_k % 2:
        raise InputError(f"{where}fat_tree_k is {experiment.fat_tree_k}: give an even number")
    if experiment.loss_recovery == "none":
        for run in experiment.runs:
            if run.cc != "none":
                raise InputError(
                    f"{where}loss_recovery is none: without ACKs {run.cc} hears nothing; give sack or timeout, or cc none"
                )
        if experiment.lb == "reps":
            raise InputError(
                f"{where}lb reps: loss_recovery is none, and without ACKs it hears of no path; give sack or timeout, or lb ops"
            )
    if experiment.server_link_gbps:
        if experiment.gpus_per_server == 1:
            raise InputError(
                f"{where}server_link_gbps is for servers of several GPUs: give gpus_per_server, or leave it out"
            )
        if experiment.nic == DOCA_MODEL:
            raise InputError(
                f"{where}server_link_gbps: there is no DPU inside servers; leave it out, or take another nic"
            )
        if experiment.stage != "virtual" or experiment.fabric != "kernel":
            raise InputError(f"{where}server_link_gbps: only stage virtual and fabric kernel have links inside servers")
    for run in experiment.runs:
        if run.schedule in SCHEDULES and SCHEDULES[run.schedule].staged and run.cc in cca.BUILT_IN:
            control = cca.load(run.cc)
            if control and control.kind == "rate":
                raise InputError(
                    f"{where}{run.name}: {run.cc} sets rates, which stages have none of; give one of windows"
                )
    if experiment.control_delay_ns and experiment.meanwhile == "old":
        for run in experiment.runs:
            if run.schedule == "rate" and run.cc != "none":
                raise InputError(
                    f"{where}meanwhile is old: {run.name} has a control, which sets rates as well; give wait, or rate alone"
                )
    if experiment.nic == DOCA_MODEL:
        for run in experiment.runs:
            if run.schedule == "rate" and run.cc in _OWN_RATES:
                raise InputError(
                    f"{where}nic {DOCA_MODEL}: {run.name} sets rates by a program of its own, and a DPU runs one; give fallback, "
                    "which it has, or nic ebpf"
                )
    if experiment.fabric == "bmv2":
        if experiment.lb == "ar":
            raise InputError(f"{where}lb ar: only the fabric kernel; give another lb, or fabric kernel")
        for name in ("loss_data", "loss_ack", "link_failure"):
            if getattr(experiment, name):
                raise InputError(f"{where}{name}: only the fabric kernel loses packets on links; leave it out")
    kmin, kmax = experiment.ecn_kmin_bytes, experiment.ecn_kmax_bytes
    if isinstance(kmin, int) and isinstance(kmax, int) and 0 < kmax < kmin:
        raise InputError(f"{where}ecn_kmin_bytes is {kmin}, above ecn_kmax_bytes {kmax}: give a smaller one")
