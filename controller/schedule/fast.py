"""FAST: servers even out their rows, GPU g of a server sends to GPU g of the other, the receiver's server hands on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from controller.demand import Demand
from controller.schedule.decomposition import Transfers, sliced, stages_of
from controller.schedule.matching import MATCHINGS
from controller.schedule.plan import Plan, Schedule, Setting, staged
from controller.schedule.servers import blocks_of, joined, moves, server_count, wire_of

__all__ = ["SCHEDULE"]


def _plan(demand: Demand, setting: Setting) -> Plan:
    gpus = setting.gpus_per_server
    servers = server_count("fast", demand.hosts, gpus)
    blocks = blocks_of(demand, setting)
    amounts = blocks.sum(axis=(2, 3))
    # An even part each; what is left over goes to the first GPUs, a byte each.
    shares = amounts[:, :, None] // gpus + (np.arange(gpus) < amounts[:, :, None] % gpus)
    carried = np.zeros_like(blocks)
    carried[:, :, np.arange(gpus), np.arange(gpus)] = shares
    wire = wire_of(joined(carried), setting.mtu_bytes)
    packets = (-(-wire // setting.mtu_bytes)).reshape(servers, gpus, servers, gpus).max(axis=(1, 3))
    stages: list[Transfers] = [
        [(a * gpus + g, b * gpus + g, sent) for a, b, sent in stage for g in range(gpus)]
        for stage in stages_of(packets, setting.options[0])
    ]
    plan = staged(demand.hosts, sliced(stages, wire, setting.mtu_bytes), carries=replace(demand, wire_bytes=wire))
    before, after = np.zeros_like(blocks), np.zeros_like(blocks)
    for server in range(servers):
        # Before it is sent all of a sender's data for one server is alike: that server hands it on.
        before[server, server] = moves(blocks[server].sum(axis=2), shares[server])
        # What came from one server lies in even shares, and is for whom it was for.
        after[server, server] = moves(shares[:, server], blocks[:, server].sum(axis=1))
    return replace(plan, inner=(wire_of(joined(before), setting.mtu_bytes), wire_of(joined(after), setting.mtu_bytes)))


SCHEDULE = Schedule(
    name="fast",
    source="Lei et al., NSDI 2026, arXiv 2505.09764",
    complexity="of N servers: N^2 - 2N + 2 matchings at most, O(N^5) in all",
    length="1 x the server bound, the largest load of a server over its GPUs, in whole packets of a GPU",
    plan=_plan,
    options=tuple(MATCHINGS),
    exact=True,
    by_server=True,
)
