"""DFS: every block of two servers is evened out and decomposed, and the blocks' matchings take the places of a decomposition
of the blocks' lengths. One frame: all of a demand is there when it begins.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from controller.demand import HEADER_BYTES, Demand
from controller.schedule.decomposition import Transfers, sliced, stages_of
from controller.schedule.matching import MATCHINGS
from controller.schedule.plan import Plan, Schedule, Setting, staged
from controller.schedule.servers import blocks_of, joined, moves, server_count, wire_of

__all__ = ["SCHEDULE", "balanced"]


def balanced(block: NDArray[np.int64], most: int) -> list[NDArray[np.int64]]:
    """The block with no row above ``most``, by moves inside columns (at the sender), and then, inside rows, no column either.

    m x m amounts that add up to m ``most`` or less. A move takes from the largest entries what a row has too much.
    """
    found, steps = block.copy(), []
    for turned in (False, True):  # rows, then as the transpose columns; moves inside a row leave rows as they are
        room = np.maximum(most - found.sum(axis=1), 0)
        for row in np.nonzero(found.sum(axis=1) > most)[0]:
            excess = int(found[row].sum()) - most
            for column in np.argsort(-found[row], kind="stable"):
                take = min(excess, int(found[row, column]))
                ends = np.minimum(np.cumsum(room), take)
                given = np.diff(ends, prepend=0)
                found[:, column] += given
                found[row, column] -= int(ends[-1])
                room = room - given
                excess -= int(ends[-1])
                if not excess:
                    break
        steps.append(found.T.copy() if turned else found)
        found = found.T.copy()
    return steps


def _plan(demand: Demand, setting: Setting) -> Plan:
    gpus, matching = setting.gpus_per_server, setting.options[0]
    servers = server_count("dfs", demand.hosts, gpus)
    blocks = blocks_of(demand, setting)
    payload = setting.mtu_bytes - HEADER_BYTES
    middle, even = np.zeros_like(blocks), np.zeros_like(blocks)
    for a, b in np.argwhere(blocks.any(axis=(2, 3))):
        # Whole packets, so that a matching's weight is a number of them.
        most = -(-int(blocks[a, b].sum()) // (gpus * payload)) * payload
        middle[a, b], even[a, b] = balanced(blocks[a, b], most)
    wire = wire_of(joined(even), setting.mtu_bytes)
    packets = (-(-wire // setting.mtu_bytes)).reshape(servers, gpus, servers, gpus).transpose(0, 2, 1, 3)
    waiting: dict[tuple[int, int], list[Transfers]] = {}
    lengths = np.zeros((servers, servers), dtype=np.int64)
    for a, b in np.argwhere(packets.any(axis=(2, 3))):
        waiting[a, b] = stages_of(packets[a, b], matching)[::-1]
        lengths[a, b] = sum(max(amount for *_, amount in stage) for stage in waiting[a, b])
    stages: list[Transfers] = []
    for outer in stages_of(lengths, matching):
        places = [(a, b) for a, b, _ in outer]
        left = {(a, b): weight for a, b, weight in outer}
        while left:
            # So long does no block come to the end of its matching.
            step = min(min(left[pair], max(sent for *_, sent in waiting[pair][-1])) for pair in left)
            stages.append([])
            for a, b in places:
                if (a, b) not in left:
                    continue
                inner = waiting[a, b].pop()
                stages[-1] += [(a * gpus + g, b * gpus + h, min(sent, step)) for g, h, sent in inner]
                rest = [(g, h, sent - step) for g, h, sent in inner if sent > step]
                if rest:
                    waiting[a, b].append(rest)
                left[a, b] -= step
                if not left[a, b]:
                    del left[a, b]
    plan = staged(demand.hosts, sliced(stages, wire, setting.mtu_bytes), carries=replace(demand, wire_bytes=wire))
    before, after = np.zeros_like(blocks), np.zeros_like(blocks)
    for a, b in np.argwhere(packets.any(axis=(2, 3))):
        before[a, a] += moves(blocks[a, b].T, middle[a, b].T)
        after[b, b] += moves(even[a, b], middle[a, b])
    return replace(plan, inner=(wire_of(joined(before), setting.mtu_bytes), wire_of(joined(after), setting.mtu_bytes)))


SCHEDULE = Schedule(
    name="dfs",
    source="Wu, Chang, Lee, Chao, arXiv 2602.22756",
    complexity="of n servers of m: n^2 decompositions of m x m, one of n x n: O(n^2 m^4.5 + n^4.5)",
    length="1 x the server bound, of blocks rounded up to whole packets of a GPU",
    plan=_plan,
    options=tuple(MATCHINGS),
    by_server=True,
)
