"""What a schedule decides, and what a schedule is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from fractions import Fraction
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from controller.demand import HEADER_BYTES, MTU_BYTES, Demand

__all__ = [
    "MOST_QUANTUM_BYTES",
    "STAGE",
    "Discipline",
    "Plan",
    "Schedule",
    "Setting",
    "Stages",
    "check_plan",
    "durations_s",
    "staged",
]


class Discipline(IntEnum):
    """How a NIC picks its next packet; the values are those of testbed/engine/sender.h."""

    ROUND_ROBIN = 0
    PACED = 1
    STAGED = 3
    DEFICIT = 4


class Stages(Enum):
    """When a sender goes on to its next stage."""

    BARRIER = "barrier"
    """When all that was sent in the stages before it has come everywhere."""
    CLOCK = "clock"
    """At its planned time, or when it is through with the one before it, if that is later."""
    FREE = "free"
    """When it is through with the one before it."""


STAGE: Final = np.dtype([("stage", "<i8"), ("source", "<i8"), ("destination", "<i8"), ("bytes", "<i8")])
"""One transfer of a stage; stages count from 0. Wire bytes."""


MOST_QUANTUM_BYTES: Final = 2**30
"""A turn: the engine's deficits are words of 32 bits."""


@dataclass(frozen=True)
class Setting:
    """What a schedule knows beside the demand."""

    speeds_bps: tuple[Fraction, ...]
    """Line rate of each host."""
    mtu_bytes: int = MTU_BYTES
    gpus_per_server: int = 1
    options: tuple[str, ...] = ()
    """What the experiment wrote behind the schedule's name; each is one of the schedule's own."""


@dataclass(frozen=True)
class Plan:
    """What the NICs are told.

    ``steps`` is N x N, uint32: the rate of flow (i, j) in steps of sender i's line rate; 0 is unpaced.
    """

    discipline: Discipline
    steps: NDArray[np.uint32]
    stages: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, dtype=STAGE))
    """Array of STAGE, by stage and then by source."""
    mode: Stages = Stages.BARRIER
    quanta_bytes: NDArray[np.uint32] | None = None
    """N x N: what a turn of flow (i, j) adds to its deficit."""
    carries: Demand | None = None
    """What the network is to carry, where that is not the demand itself: servers have moved some of it inside."""
    inner: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    """N x N wire bytes moved inside the servers before and after that."""

    @property
    def stage_count(self) -> int:
        """0 without stages."""
        return int(self.stages["stage"].max()) + 1 if len(self.stages) else 0

    @property
    def stage_bytes(self) -> NDArray[np.int64]:
        """The largest transfer of each stage."""
        largest = np.zeros(self.stage_count, dtype=np.int64)
        np.maximum.at(largest, self.stages["stage"], self.stages["bytes"])
        return largest

    @property
    def length_bytes(self) -> int:
        """What a port sends at line rate in the time that all stages take one after the other, without any pause."""
        return int(self.stage_bytes.sum())


@dataclass(frozen=True)
class Schedule:
    """One way to send a demand. A file of its own defines it as SCHEDULE."""

    name: str
    source: str
    """The paper, with what we know of it where its text is not public."""
    complexity: str
    """Of planning, for N hosts."""
    length: str
    """Of the plan, as a multiple of the lower bound, which is flat (M, the largest load of a host's port) or of the server."""
    plan: Callable[[Demand, Setting], Plan]
    """Raises InputError for a demand that it cannot plan."""
    options: tuple[str, ...] = ()
    """What may stand behind its name: schedule = "NAME:OPTION". The first is what it does without."""
    numeric: str = ""
    """What a number means that stands there; empty: none may."""
    staged: bool = True
    """Whether it makes stages, so that barrier, clock and free may stand there too."""
    exact: bool = False
    """Whether its stages last M in whole packets, which is checked."""
    by_server: bool = False
    """Whether it plans for servers, and moves data inside them."""


def staged(hosts: int, stages: Iterable[Iterable[tuple[int, int, int]]], carries: Demand | None = None) -> Plan:
    """The plan of stages, each of them transfers (sender, receiver, wire bytes); transfers of 0 bytes are left out."""
    rows = [
        (number, source, destination, size)
        for number, stage in enumerate(stages)
        for source, destination, size in sorted(stage)
        if size
    ]
    table = np.array(rows, dtype=STAGE)
    _, table["stage"] = np.unique(table["stage"], return_inverse=True)  # a stage of nothing is none
    return Plan(Discipline.STAGED, np.zeros((hosts, hosts), dtype=np.uint32), table, carries=carries)


def check_plan(schedule: Schedule, plan: Plan, demand: Demand, setting: Setting) -> None:
    """Raises ValueError where a plan does not do what its schedule says: a fault of the schedule, not of its input.

    Rates and turns must be there for all that is sent. What servers move inside must leave what each sends to each. Stages must be matchings and send exactly the demand, in whole packets but for
    a flow's last; exact ones must last as many packets as the largest sender or receiver has.
    """
    if not isinstance(plan, Plan):
        raise ValueError(f"{schedule.name}: a {type(plan).__name__} is no Plan")
    _check_servers(schedule.name, plan, demand, setting)
    carried = demand if plan.carries is None else plan.carries
    if not isinstance(plan.discipline, Discipline):
        raise ValueError(f"{schedule.name}: {plan.discipline!r} is no Discipline")
    # Runs hand both to the engine, whatever the discipline.
    _check_words(f"{schedule.name}: steps", plan.steps, carried, needed=plan.discipline is Discipline.PACED)
    turns = plan.discipline is Discipline.DEFICIT
    if turns or plan.quanta_bytes is not None:
        quanta = _check_words(f"{schedule.name}: quanta_bytes", plan.quanta_bytes, carried, needed=turns)
        if quanta.max() > MOST_QUANTUM_BYTES:
            raise ValueError(f"{schedule.name}: quanta_bytes are above {MOST_QUANTUM_BYTES}")
    if plan.discipline is not Discipline.STAGED:
        return
    stages = plan.stages
    if not isinstance(stages, np.ndarray) or stages.dtype != STAGE or stages.ndim != 1:
        raise ValueError(f"{schedule.name}: stages are no array of STAGE")
    if (np.diff(stages["stage"], prepend=-1) < 0).any():
        raise ValueError(f"{schedule.name}: stages are not in order")
    if (np.diff(stages["stage"], prepend=-1) > 1).any() or (stages["stage"][:1] != 0).any():
        raise ValueError(f"{schedule.name}: stages do not count from 0, one after the other")
    for side in ("source", "destination"):
        if len(stages) and not 0 <= stages[side].min() <= stages[side].max() < demand.hosts:
            raise ValueError(f"{schedule.name}: a {side} is none of {demand.hosts} hosts, which count from 0")
    for side in ("source", "destination"):
        if len(np.unique(stages["stage"] * demand.hosts + stages[side])) < len(stages):
            raise ValueError(f"{schedule.name}: a stage is no matching: a {side} occurs in it twice")
    sent = np.zeros_like(carried.wire_bytes)
    np.add.at(sent, (stages["source"], stages["destination"]), stages["bytes"])
    if not np.array_equal(sent, carried.wire_bytes):
        raise ValueError(f"{schedule.name}: the stages send another amount than the demand")
    if (stages["bytes"] <= 0).any():
        raise ValueError(f"{schedule.name}: a transfer sends nothing")
    flows = stages["source"] * demand.hosts + stages["destination"]
    last = np.zeros(len(stages), dtype=bool)
    last[len(stages) - 1 - np.unique(flows[::-1], return_index=True)[1]] = True
    if (stages["bytes"][~last] % setting.mtu_bytes).any():
        raise ValueError(f"{schedule.name}: a transfer that is not its flow's last is no whole packets")
    if schedule.exact:
        packets = -(-carried.wire_bytes // setting.mtu_bytes)
        most = int(max(packets.sum(axis=0).max(), packets.sum(axis=1).max()))
        if schedule.by_server:
            most = server_packets(packets, setting.gpus_per_server)
        length = int((-(-plan.stage_bytes // setting.mtu_bytes)).sum())
        if length != most:
            raise ValueError(f"{schedule.name}: its stages last {length} packets, the bound is {most}")


def _check_words(what: str, words: object, carried: Demand, *, needed: bool) -> NDArray[np.uint32]:
    """Raises ValueError for what are no N x N words of 32 bits, and, where ``needed``, if one is 0 of a flow that is sent."""
    shape = carried.wire_bytes.shape
    if not isinstance(words, np.ndarray) or words.shape != shape or words.dtype != np.uint32:
        raise ValueError(f"{what} are no array of {shape[0]} x {shape[1]} uint32")
    if needed and (words[carried.wire_bytes > 0] == 0).any():
        raise ValueError(f"{what} are 0 for a flow that is sent")
    return words


def _check_servers(name: str, plan: Plan, demand: Demand, setting: Setting) -> None:
    """Raises ValueError where what servers move inside is none, or makes another demand of server on server."""
    server = np.arange(demand.hosts) // setting.gpus_per_server
    inside = server[:, None] == server[None, :]
    if plan.carries is not None:
        if not isinstance(plan.carries, Demand):
            raise ValueError(f"{name}: carries is no Demand")
        carried = _check_amounts(f"{name}: carries.wire_bytes", plan.carries.wire_bytes, demand)
        if carried.diagonal().any():
            raise ValueError(f"{name}: carries sends from a host to itself")
        found, meant = (np.zeros((server[-1] + 1,) * 2, dtype=np.int64) for _ in range(2))
        for sums, wire_bytes in ((found, carried), (meant, demand.wire_bytes)):
            np.add.at(sums, (server[:, None], server[None, :]), payload_of(wire_bytes, setting.mtu_bytes))
        if not np.array_equal(found, meant):
            raise ValueError(f"{name}: its servers send another amount than the demand")
    if plan.inner is not None:
        if not isinstance(plan.inner, tuple) or len(plan.inner) != 2:
            raise ValueError(f"{name}: inner is no pair of arrays")
        for moved in plan.inner:
            if _check_amounts(f"{name}: inner", moved, demand)[~inside].any():
                raise ValueError(f"{name}: inner moves from one server to another")


def _check_amounts(what: str, amounts: object, demand: Demand) -> NDArray[np.int64]:
    """Raises ValueError for what are no N x N wire bytes."""
    shape = demand.wire_bytes.shape
    if not isinstance(amounts, np.ndarray) or amounts.shape != shape or amounts.dtype != np.int64:
        raise ValueError(f"{what} is no array of {shape[0]} x {shape[1]} int64")
    if amounts.min() < 0:
        raise ValueError(f"{what} is negative")
    return amounts


def server_packets(packets: NDArray[np.int64], gpus_per_server: int) -> int:
    """The bound of a server in packets of one of its GPUs: of each pair of servers the GPU that has the most counts."""
    servers = len(packets) // gpus_per_server
    most = packets.reshape(servers, gpus_per_server, servers, gpus_per_server).max(axis=(1, 3))
    return int(max(most.sum(axis=0).max(), most.sum(axis=1).max()))


def payload_of(wire_bytes: NDArray[np.int64], mtu_bytes: int) -> NDArray[np.int64]:
    """Wire bytes without the headers of their packets."""
    return wire_bytes - HEADER_BYTES * -(-wire_bytes // mtu_bytes)


def durations_s(plan: Plan, speeds_bps: Sequence[Fraction]) -> list[Fraction]:
    """How long each stage takes at the line rates of its pairs: the clock's times are their sums."""
    rates = np.array([float(speed) for speed in speeds_bps])
    pair = np.minimum(rates[plan.stages["source"]], rates[plan.stages["destination"]])
    ends = np.searchsorted(plan.stages["stage"], np.arange(plan.stage_count + 1))
    found = []
    for first, last in pairwise(ends.tolist()):
        slowest = first + int(np.argmax(plan.stages["bytes"][first:last] / pair[first:last]))
        row = plan.stages[slowest]
        found.append(8 * int(row["bytes"]) / min(speeds_bps[row["source"]], speeds_bps[row["destination"]]))
    return found


def with_mode(plan: Plan, mode: Stages) -> Plan:
    """The same plan, gone through otherwise."""
    return replace(plan, mode=mode)
