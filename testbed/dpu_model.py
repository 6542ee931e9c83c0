"""``nic = doca-model``: what the hosts of a run send to their DPUs, whose own code (dpu/) then paces.

The messages are those of the real host side (controller/nic/doca_message.py); the engine hands them to the
DPU's parser when they are due (testbed/engine/dpus.h). Runs of other schedules than rate have no rates, and no DPU.
"""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from controller.demand import Demand
from controller.nic.doca_message import RATE_BITS, RATE_ONE, Binding, Settings, bindings_message, rates_message
from controller.nic.rate_table import RATE_ONE as LINE
from controller.schedule import Plan, rate
from testbed.experiment import DOCA_MODEL, Run
from testbed.scenario import Scenario

__all__ = ["FIRST_QPN", "STATE_BYTES", "mailbox", "of_dpus", "plan"]

FIRST_QPN: Final = 0x100
"""The QP to host j has this number plus j (testbed/engine/dpus.h). Which numbers a real host hands out is its own matter."""
STATE_BYTES: Final = 80_000
"""Of one DPU, rounded up: struct pcc_state of dpu/state.h."""
_SEND: Final = struct.Struct("<QII")
"""struct dpu_send of testbed/engine/dpus.h: at_ns, host, bytes."""
_SHIFT: Final = LINE.bit_length() - 1 - RATE_BITS
_UNKNOWN_STEPS: Final = RATE_ONE >> 8
"""Of a QP without a rate: what DOCA gives a new flow."""


def of_dpus(scenario: Scenario, run: Run) -> bool:
    """Whether DPUs pace the run."""
    return scenario.experiment.nic == DOCA_MODEL and run.schedule == "rate"


def plan(demand: Demand, scenario: Scenario, margin: Fraction = Fraction(1)) -> Plan:
    """R in the DPU's steps of 2^-20, each said in steps of 2^-32; the whole line rate is one of these less."""
    coarse = rate.plan(demand, scenario.speeds_bps, margin=margin, one=RATE_ONE)
    steps = np.minimum(coarse.steps.astype(np.uint64) << np.uint64(_SHIFT), LINE - 1)
    return Plan(coarse.discipline, steps.astype(np.uint32))


def _dpu_steps(given: Plan) -> NDArray[np.uint32]:
    """The inverse of ``plan``."""
    return ((given.steps.astype(np.uint64) + np.uint64((1 << _SHIFT) - 1)) >> np.uint64(_SHIFT)).astype("<u4")


def mailbox(scenario: Scenario, run: Run, new: Plan, before: Plan | None, rates_ns: int) -> bytes:
    """All messages of a phase in the order of their arrival.

    Before the start the bindings, and the rates of the phase ``before`` if senders begin with those; ``rates_ns`` of
    kernel time after it the ``new`` ones, one batch a host.
    """
    hosts = len(scenario.wiring.hosts)
    rtt_ns = scenario.parameters.rtt_ns
    sends: list[bytes] = []

    def send(at_ns: int, host: int, message: bytes) -> None:
        sends.append(_SEND.pack(at_ns, host, len(message)) + message + bytes(-len(message) % 8))

    for host in range(hosts):
        settings = Settings(
            unknown_steps=_UNKNOWN_STEPS,
            rtt_ns=round(rtt_ns),
            bdp_bytes=round(scenario.speeds_bps[host] * rtt_ns / 8 / 10**9),
            cnp_bytes=scenario.experiment.mtu_bytes,
            fallback=run.cc == "fallback",
        )
        peers = (Binding(FIRST_QPN + peer, peer) for peer in range(hosts) if peer != host)
        send(0, host, bindings_message(1, settings, peers))
        if before is not None:
            send(0, host, rates_message(1, _dpu_steps(before)[host]))
    steps = _dpu_steps(new)
    for host in range(hosts):
        send(rates_ns, host, rates_message(1 if before is None else 2, steps[host]))
    return b"".join(sends)
