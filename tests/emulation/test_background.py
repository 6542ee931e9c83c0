"""Background flows: a constant load, and what paced flows with and without feedback make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.demand import load_demand
from testbed.scenario import Scenario
from tests.emulation.conftest import OPEN_LOOP, assert_all_arrived, run_each, run_once, scenario_of, write_matrix

MTU = 4096
PACKET_NS = 40.96


def one_flow(folder: Path, packets: int = 1000) -> Path:
    """From h1 to h6, across the spines."""
    counts = np.zeros((8, 8), dtype=int)
    counts[0, 5] = packets * MTU
    return write_matrix(folder / "one.csv", counts)


def load(source: str, destination: str, packets: int, rate_gbps: float, start_ns: float = 0) -> dict[str, Any]:
    return {
        "source": source,
        "destination": destination,
        "bytes": packets * MTU,
        "rate_gbps": rate_gbps,
        "start_ns": start_ns,
    }


@pytest.mark.parametrize("links", ["trunk", "pairs"])
@pytest.mark.parametrize("schedule", ["rr", "rate"])
def test_it_takes_its_part_of_the_senders_port(tmp_path: Path, schedule: str, links: str) -> None:
    """A quarter of the line rate, to another host. What is due first is served first.

    Round robin takes what is left of the port, three quarters. A flow that is paced at the line rate has all of its packets
    come at that rate, five for each four that the port can send.
    """
    background = [load("h1", "h3", 10_000, 200)]
    scenario = scenario_of(one_flow(tmp_path), links=links, phase="zero", background=background)
    data = run_once(scenario, schedule)
    assert_all_arrived(data, scenario)
    assert data.figures["cct_ns"] == pytest.approx(
        1000 * PACKET_NS * {"rr": 4 / 3, "rate": 5 / 4}[schedule] + 4 * 1000, rel=0.01
    )
    assert data.figures["lower_bound_ns"] == 1000 * PACKET_NS
    assert data.figures["packets"] == 1000
    # It ends with the demand, of which the sender hears 4 us after it has arrived.
    sent = data.figures["background_sent_packets"]
    assert sent == pytest.approx(data.figures["cct_last_ack_ns"] / (4 * PACKET_NS), rel=0.03)
    assert data.figures["background_delivered_packets"] == sent
    assert data.figures["background_trimmed_packets"] == 0


def test_it_keeps_its_time(tmp_path: Path) -> None:
    """From start_ns on, a packet every so often; in an open loop all of it. The trace tells it from the demand."""
    background = [load("h2", "h6", 300, 80, 5000), load("h2", "h6", 100, 10)]
    scenario = scenario_of(one_flow(tmp_path), trace=True, background=background, **OPEN_LOOP)
    data = run_once(scenario, "rate")
    assert data.figures["background_sent_packets"] == data.figures["background_delivered_packets"] == 400
    assert data.figures["delivered_bytes"] == data.figures["expected_bytes"] == 1000 * MTU
    assert data.trace is not None
    nic = (data.trace["port"] == 1) & (data.trace["source"] == 1)
    number = data.trace["psn"][nic] - 2**31
    left_ns = (data.trace["kernel_far_end_ns"][nic] / float(scenario.dilation)) - 1000 - PACKET_NS
    first, second = left_ns[number < 300], left_ns[number >= 300]
    assert first == pytest.approx(5000 + 10 * PACKET_NS * np.arange(300), abs=PACKET_NS)
    assert second == pytest.approx(80 * PACKET_NS * np.arange(100), abs=PACKET_NS)


def test_two_phases(tmp_path: Path) -> None:
    """Each has its own."""
    file = one_flow(tmp_path)
    from testbed.experiment import from_mapping
    from testbed.scenario import prepare

    demand = [
        {"file": str(file), "unit": "wire-bytes", "name": "a"},
        {"file": str(file), "unit": "wire-bytes", "name": "b", "after": ["a"]},
    ]
    scenario = prepare(from_mapping({"demand": demand, "background": [load("h1", "h3", 50, 200, 10_000)]}))
    data = run_once(scenario, "rr")
    assert data.figures["background_delivered_packets"] == 100
    assert data.figures["phase_cct_ns"] == pytest.approx([1050 * PACKET_NS + 4000] * 2, rel=0.01)


def test_it_is_trimmed_and_not_sent_again(tmp_path: Path) -> None:
    """Twice as much as a port takes, and a demand besides: the demand arrives, the background as far as there is room."""
    background = [load(source, "h6", 3000, 800) for source in ("h2", "h3")]
    scenario = scenario_of(one_flow(tmp_path), background=background)
    data = run_once(scenario, "rate")
    assert_all_arrived(data, scenario)
    figures = data.figures
    assert figures["background_trimmed_packets"] > 500
    # Its headers find no room, once they alone are too many.
    gone = figures["trims"] + figures["drops"]
    assert figures["background_sent_packets"] - figures["background_delivered_packets"] == pytest.approx(
        gone - figures["nacks"], abs=20
    )


def hot_load(file: Path, **keys: Any) -> Scenario:
    """With 30 % of its port into the host that most is sent to, from the one that sends least."""
    wire_bytes = load_demand(file, unit="wire-bytes", token_bytes=0, mtu_bytes=MTU, hosts_per_server=1).wire_bytes
    hot = int(wire_bytes.sum(axis=0).argmax())
    order = np.argsort(wire_bytes.sum(axis=1), kind="stable").tolist()
    source = next(host for host in order if host != hot)
    background = [load(f"h{source + 1}", f"h{hot + 1}", 200_000, 240)]
    return scenario_of(file, background=background, **keys)


DEMANDS = ["n16-s1.0", "n16-s0.5", "n16-s0.25", "n64-s0.5"]


@pytest.mark.parametrize("name", DEMANDS)
def test_without_a_background_feedback_costs_nothing(shared_data: Path, name: str) -> None:
    """No mark, and so R: what little is lost is the engine's clock against the NIC's."""
    scenario = scenario_of(shared_data / f"zipf/{name}.csv", seed=1)
    alone, *others = (
        data.figures
        for data in run_each((scenario, run) for run in ("rate", "rate+fallback", "rate+dcqcn", "rate+nscc"))
    )
    for figures in others:
        assert figures["marks"] == figures["trims"] == figures["drops"] == 0, figures["run"]
        assert figures["inflation"] - alone["inflation"] <= 0.002, figures["run"]
        assert figures["hot_queue_max_bytes"] < 40 * MTU
    assert others[0]["inflation"] == pytest.approx(alone["inflation"], abs=1e-4)


@pytest.mark.parametrize("trimming", [True, False])
@pytest.mark.parametrize("name", DEMANDS[:3])
def test_the_fallback_loses_nothing_to_a_background(shared_data: Path, name: str, trimming: bool) -> None:
    """30 % that R knows nothing of. The best that there can be is to take 1 / 0.7 of the time."""
    scenario = hot_load(shared_data / f"zipf/{name}.csv", seed=1, trimming=trimming)
    alone, fallback = (data.figures for data in run_each((scenario, run) for run in ("rate", "rate+fallback")))
    assert alone["trims" if trimming else "drops"] > 1000
    assert alone["retransmissions"] > 1000
    assert fallback["trims"] == fallback["drops"] == fallback["retransmissions"] == 0
    assert fallback["background_delivered_packets"] == fallback["background_sent_packets"]
    assert fallback["hot_queue_max_bytes"] < 180 * MTU
    assert 1 / 0.7 <= 1 + fallback["inflation"] < 1.05 / 0.7
    assert fallback["bottleneck_busy"] > 0.99


def test_the_fallback_recovers(shared_data: Path) -> None:
    """A background that ends leaves R: it costs what it took of the port, and little more."""
    file = shared_data / "zipf/n16-s1.0.csv"
    wire_bytes = load_demand(file, unit="wire-bytes", token_bytes=0, mtu_bytes=MTU, hosts_per_server=1).wire_bytes
    hot = int(wire_bytes.sum(axis=0).argmax())
    source = next(host for host in range(16) if host != hot)
    background = [load(f"h{source + 1}", f"h{hot + 1}", 1500, 240, 300_000)]
    scenario = scenario_of(file, seed=1, background=background)
    figures = run_once(scenario, "rate+fallback").figures
    assert figures["background_delivered_packets"] == 1500
    assert figures["marks"] > 0
    assert figures["trims"] == 0
    quiet = run_once(scenario_of(file, seed=1), "rate").figures
    taken_ns = 1500 * PACKET_NS
    assert taken_ns * 0.9 < figures["cct_ns"] - quiet["cct_ns"] < taken_ns * 1.5
