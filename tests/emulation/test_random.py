"""Two hundred small experiments drawn at random: nothing is lost from the books, and a second run is the same."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.engine import BACKGROUND_PSN
from testbed.experiment import from_mapping
from testbed.measure.results import RunData
from testbed.runner import WALL_FIGURES
from testbed.scenario import Scenario, prepare
from tests.emulation.conftest import assert_all_arrived, run_each, write_matrix

BOOTS, PHASES = 67, 3
CONTROLS = ("", "+nscc", "+dcqcn", "+dcqcn-paper", "+fallback")
AGAIN = 20
"""Of the boots, repeated in another."""
STAGED, MODES = ("bvn", "bvn:any", "spreadout", "gmwd", "chronos", "dfs"), ("barrier", "clock", "free")
STAGED_BOOTS = 18


def matrix(draw: random.Random, hosts: int, mtu_bytes: int) -> Any:
    """Sparse; a few to a few hundred packets a flow, the last of its own length."""
    counts = np.zeros((hosts, hosts), dtype=int)
    pairs = [(i, j) for i in range(hosts) for j in range(hosts) if i != j]
    for i, j in draw.sample(pairs, draw.randint(1, min(len(pairs), 16))):
        packets = draw.choice((1, 2, draw.randint(3, 20), draw.randint(20, 300)))
        counts[i, j] = (packets - 1) * mtu_bytes + draw.randint(64, mtu_bytes)
    return counts


def experiment(seed: int, folder: Path, staged: bool = False) -> tuple[Scenario, str]:
    """Everything that there is to choose, and a run; ``staged``: one of stages."""
    draw = random.Random(seed)
    hosts, mtu_bytes = draw.randint(2, 9), draw.choice((1024, 4096, 4096, 9000))
    fat_tree = draw.random() < 0.25
    hosts_per_leaf = 0 if fat_tree else draw.randint(1, 4)
    leaves = 0 if fat_tree else -(-hosts // hosts_per_leaf)
    links = [f"h{host + 1}" for host in range(hosts)]
    if leaves > 1:
        links += [f"leaf{leaf + 1}-spine{spine + 1}" for leaf in range(leaves) for spine in range(hosts_per_leaf)]
    recovery = draw.choice(("sack", "sack", "timeout", "none"))
    run = draw.choice(("rr", "rate")) + ("" if recovery == "none" else draw.choice(("", *CONTROLS)))
    if staged:
        recovery = draw.choice(("sack", "timeout"))
        run = f"{draw.choice(STAGED)}:{MODES[seed % len(MODES)]}{draw.choice(('', '+nscc'))}"
    kmax = draw.choice(("auto", 0, draw.randint(0, 30 * mtu_bytes)))
    keys: dict[str, Any] = {
        "topology": "fat-tree" if fat_tree else "leaf-spine",
        "hosts_per_leaf": hosts_per_leaf,
        "control_delay_ns": draw.choice((0, 0, 700, 8000)),
        "meanwhile": draw.choice(("wait", "old")) if run == "rate" else "wait",
        "mtu_bytes": mtu_bytes,
        "queue_bytes": draw.choice(("auto", 0, mtu_bytes, draw.randint(mtu_bytes, 20 * mtu_bytes))),
        "trimming": draw.random() < 0.6,
        "ecn_kmax_bytes": kmax,
        "ecn_kmin_bytes": draw.randint(0, kmax) if isinstance(kmax, int) else 0,
        "lb": draw.choice(("ops", "ecmp", "ar") if recovery == "none" else ("ops", "reps", "ecmp", "ar")),
        "phase": draw.choice(("random", "zero", "golden")),
        "links": draw.choice(("trunk", "pairs")),
        "loss_data": draw.choice((0, 0, 0.01, 0.1)),
        "loss_ack": draw.choice((0, 0, 0.01, 0.1)),
        "loss_recovery": recovery,
        "start_jitter_ns": draw.choice((0, 100, 5000)),
        "link_ns": draw.choice((50, 500, 1000)),
        "link_gbps_of": {link: draw.choice((200, 400, 733.3)) for link in links if draw.random() < 0.2},
        "link_ns_of": {link: draw.randint(20, 3000) for link in links if draw.random() < 0.2},
        "seed": seed,
        "trace": True,
    }
    if draw.random() < 0.3:
        down_ns = draw.uniform(0, 20_000)
        keys["link_failure"] = [
            {"link": draw.choice(links), "down_ns": down_ns, "up_ns": down_ns + draw.uniform(1, 20_000)}
        ]
    demand = []
    for phase in range(PHASES):
        file = write_matrix(folder / f"{seed}-{phase}.csv", matrix(draw, hosts, mtu_bytes))
        after = {"after": [f"p{phase - 1}"]} if phase else {}
        demand.append({"name": f"p{phase}", "file": str(file), "unit": "wire-bytes", **after})
    for _ in range(draw.choice((0, 0, 1, 3))):
        source, destination = draw.sample(range(1, hosts + 1), 2)
        keys.setdefault("background", []).append(
            {
                "source": f"h{source}",
                "destination": f"h{destination}",
                "bytes": draw.randint(64, 200 * mtu_bytes),
                "rate_gbps": draw.uniform(1, 200),
                "start_ns": draw.uniform(0, 5000),
            }
        )
    if run in ("rate", "rate+nscc", "rate+fallback") and draw.random() < 0.5:
        keys["nic"] = "doca-model"
    return prepare(from_mapping({"demand": demand, "schedule": [run], **keys})), run


def assert_books_balance(data: RunData, scenario: Scenario) -> None:
    """Every packet of every flow entered, once and again as often as was said; each copy went somewhere."""
    assert data.trace is not None
    flows, figures, trace = data.flows, data.figures, data.trace
    hosts = len(scenario.wiring.hosts)
    mtu_bytes = scenario.experiment.mtu_bytes
    facing = {scenario.wiring.host_port(host) for host in range(hosts)}
    sent, last_hop = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    names = ("phase", "source", "destination", "psn", "port", "wire_bytes")
    sizes: dict[tuple[int, ...], int] = {}
    background = Counter[tuple[int, int]]()
    for phase, source, destination, psn, port, size in zip(*(trace[name].tolist() for name in names), strict=True):
        if psn >= BACKGROUND_PSN:
            background[phase, psn] += port < hosts
            continue
        key = (phase, source, destination, psn)
        sent[key] += port < hosts
        last_hop[key] += port in facing
        assert sizes.setdefault(key, size) == size
    closed = scenario.experiment.loss_recovery != "none"
    columns = ("phase", "src", "dst", "bytes", "delivered_bytes", "retransmissions", "duplicates")
    for phase, source, destination, size, delivered, again, duplicates in zip(
        *(flows[name].tolist() for name in columns), strict=True
    ):
        packets = -(-size // mtu_bytes)
        keys = [(phase, source, destination, psn) for psn in range(packets)]
        assert sum(sizes[key] for key in keys) == size
        assert min(sent[key] for key in keys) >= 1
        assert sum(sent[key] for key in keys) == packets + again
        assert delivered == size if closed else delivered <= size
        # At the last port whole: they came, a second time perhaps, or were lost on the last link.
        ended = sum(last_hop[key] for key in keys)
        assert ended >= (packets + duplicates if closed else 0)
    assert len(sent) == sum(-(-size // mtu_bytes) for size in flows["bytes"].tolist())
    assert sum(sent.values()) == figures["packets"]
    # A background is sent once, all of it where nobody knows when the demand has arrived, and never again.
    assert set(background.values()) <= {1}
    assert len(background) == figures["background_sent_packets"]
    whole = PHASES * sum(-(-flow.bytes // mtu_bytes) for flow in scenario.experiment.background)
    assert len(background) <= whole if closed else len(background) == whole
    assert figures["background_delivered_packets"] + figures["background_trimmed_packets"] <= len(background)
    lost_at_last = sum(data.counters["lost"][port] for port in facing)
    arrived = sum(last_hop.values()) - lost_at_last  # control is lost there as well
    if closed:
        assert_all_arrived(data, scenario)
        assert arrived <= len(sent) + figures["duplicates"] <= sum(last_hop.values())
    else:
        gone = figures["trims"] + figures["drops"] + figures["lost"]
        assert figures["retransmissions"] == figures["duplicates"] == figures["acks"] == 0
        # A trimmed packet may be dropped or lost besides, as a header.
        missing = figures["expected_bytes"] - figures["delivered_bytes"]
        assert gone > 0 or not missing
        if not scenario.experiment.background:
            assert missing > 0 or not gone
        assert missing <= gone * mtu_bytes
    assert figures["drops"] >= 0
    if not scenario.experiment.trimming or not scenario.parameters.queue_bytes:
        assert figures["trims"] == 0
    if not scenario.parameters.queue_bytes:
        assert figures["drops"] == 0
    else:
        assert figures["hot_queue_max_bytes"] <= scenario.parameters.queue_bytes + mtu_bytes
    if not scenario.parameters.ecn_kmax_bytes:
        assert figures["marks"] == 0
    if not (scenario.experiment.loss_data or scenario.experiment.loss_ack or scenario.experiment.link_failure):
        assert figures["lost"] == 0


def assert_same(one: RunData, other: RunData) -> None:
    """But for wall times."""
    for figures in (one.figures, other.figures):
        for name in WALL_FIGURES:
            del figures[name]
    assert json.dumps(one.figures) == json.dumps(other.figures)
    for table, again in ((one.flows, other.flows), (one.counters, other.counters), (one.trace, other.trace)):
        assert table is not None
        assert again is not None
        for name in table:
            assert np.array_equal(table[name], again[name], equal_nan=table[name].dtype.kind == "f"), name


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Scenario, str, RunData]]:
    """All of them, three phases a boot."""
    folder = tmp_path_factory.mktemp("random")
    chosen = [experiment(seed, folder) for seed in range(BOOTS)]
    return [(*each, data) for each, data in zip(chosen, run_each(chosen), strict=True)]


@pytest.mark.parametrize("seed", range(BOOTS))
def test_books_balance(runs: list[tuple[Scenario, str, RunData]], seed: int) -> None:
    scenario, _, data = runs[seed]
    assert_books_balance(data, scenario)


def test_the_draw_is_a_mixture(runs: list[tuple[Scenario, str, RunData]]) -> None:
    """Each thing that can happen does, in several experiments."""
    for name in ("marks", "trims", "drops", "lost", "nacks", "timeouts", "sack_losses", "probes", "duplicates"):
        assert sum(data.figures[name] > 0 for _, _, data in runs) >= 5, name
    assert Counter(run for _, run, _ in runs).keys() == {
        f"{schedule}{control}" for schedule in ("rr", "rate") for control in CONTROLS
    }
    assert Counter(scenario.experiment.topology for scenario, _, _ in runs)["fat-tree"] >= 10
    assert Counter(scenario.experiment.nic for scenario, _, _ in runs)["doca-model"] >= 5
    assert (
        sum(
            scenario.experiment.meanwhile == "old" and scenario.experiment.control_delay_ns > 0
            for scenario, _, _ in runs
        )
        >= 2
    )


def test_another_boot_gives_the_same(runs: list[tuple[Scenario, str, RunData]]) -> None:
    """All figures but wall times, all tables, every packet's hops."""
    sample = runs[:: BOOTS // AGAIN][:AGAIN]
    assert len(sample) == AGAIN
    for (_, _, data), again in zip(sample, run_each(each[:2] for each in sample), strict=True):
        assert_same(data, again)


def test_stages(tmp_path: Path) -> None:
    """The same of schedules in stages."""
    pytest.importorskip("scipy", reason="needs scipy (extra schedules): stages are matchings that it finds")
    chosen = [experiment(seed, tmp_path, staged=True) for seed in range(STAGED_BOOTS)]
    found = run_each(chosen)
    for (scenario, _), data in zip(chosen, found, strict=True):
        assert_books_balance(data, scenario)
    for name in ("drops", "lost", "retransmissions", "duplicates"):
        assert sum(data.figures[name] > 0 for data in found) >= 2, name
    for data, again in zip(found[::6], run_each(chosen[::6]), strict=True):
        assert_same(data, again)
