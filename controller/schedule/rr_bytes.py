"""Deficit round robin: a turn is worth so many bytes, the same for all flows or in proportion to the demand."""

from __future__ import annotations

from typing import Final

import numpy as np

from controller.demand import Demand
from controller.errors import InputError
from controller.schedule.plan import MOST_QUANTUM_BYTES, Discipline, Plan, Schedule, Setting

__all__ = ["SCHEDULE"]

_QUANTUM_BYTES: Final = 65536
_LEAST_BYTES: Final = 64


def _plan(demand: Demand, setting: Setting) -> Plan:
    wire = demand.wire_bytes
    given = setting.options[0] if setting.options else str(_QUANTUM_BYTES)
    if given == "demand":
        flows = np.count_nonzero(wire, axis=1, keepdims=True)
        # A round of a sender is worth a full packet a flow.
        share = setting.mtu_bytes * flows * wire / np.maximum(1, wire.sum(axis=1, keepdims=True))
        quanta = np.clip(np.rint(share), _LEAST_BYTES, MOST_QUANTUM_BYTES)
    else:
        if not given.isdecimal() or not _LEAST_BYTES <= int(given) <= MOST_QUANTUM_BYTES:
            raise InputError(
                f"rr-bytes:{given}: give whole bytes a turn, {_LEAST_BYTES} to {MOST_QUANTUM_BYTES}, or demand"
            )
        quanta = np.full(wire.shape, int(given))
    return Plan(
        Discipline.DEFICIT,
        np.zeros(wire.shape, dtype=np.uint32),
        quanta_bytes=np.where(wire > 0, quanta, 0).astype(np.uint32),
    )


SCHEDULE = Schedule(
    name="rr-bytes",
    source="Shreedhar, Varghese, SIGCOMM 1995",
    complexity="none; demand: O(N^2)",
    length="no plan",
    plan=_plan,
    options=("65536", "demand"),
    numeric="bytes that a turn is worth; demand: a packet a flow on average, in proportion to the demand",
    staged=False,
)
