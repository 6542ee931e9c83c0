"""What a schedule is run against: each a few levels, each level some keys of an experiment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from controller.schedule import Plan
from controller.schedule.plan import Discipline
from testbed.experiment import DOCA_MODEL, Run
from testbed.scenario import Scenario

__all__ = ["DISTURBANCES", "Disturbance", "Level"]

_WHOLE_RUN_NS: Final = 10**12
"""A quarter of an hour: longer than any run."""
_BOUNDS: Final = 10
"""Lower bounds for which a background lasts."""
_DPU_BITS: Final = 20


@dataclass(frozen=True)
class Level:
    """How strong."""

    shown: str
    """In the unit of its disturbance."""
    keys: Callable[[Scenario], dict[str, Any]]
    """What it changes of the undisturbed experiment, which is given."""


@dataclass(frozen=True)
class Disturbance:
    """One kind of trouble."""

    name: str
    title: str
    """What the levels are, with their unit."""
    levels: tuple[Level, ...]
    spares: Callable[[Run, Plan], str]
    """Why it cannot touch a run, which has this plan for the undisturbed demand; empty where it can."""
    lacks: Callable[[Scenario], str] = lambda _scenario: ""
    """Why it cannot touch any run of this network; empty where it can."""


def _none(_run: Run, _plan: Plan) -> str:
    return ""


def _without_plan(_run: Run, plan: Plan) -> str:
    return "it needs no plan" if plan.discipline is Discipline.ROUND_ROBIN else ""


def _never_waits(run: Run, plan: Plan) -> str:
    if plan.discipline in (Discipline.PACED, Discipline.STAGED):
        return ""
    return _without_plan(run, plan) or "it starts without its plan"


def _sets_no_rates(run: Run, plan: Plan) -> str:
    """Why a run has no rates that a DPU could round."""
    return "" if plan.discipline is Discipline.PACED and run.schedule == "rate" else "it sets no rates"


def _one_way_up(scenario: Scenario) -> str:
    return "" if _ways_up(scenario) else "no switch of this network has a way up"


def _same_ways_up(scenario: Scenario) -> str:
    several = any(len(links) > 1 for links in _ways_up(scenario).values())
    return "" if several else "no switch of this network has two ways up"


def _one_server(scenario: Scenario) -> str:
    servers = scenario.hosts // scenario.experiment.gpus_per_server
    return "" if servers > 1 else "with one server there are no other favourites"


def _ways_up(scenario: Scenario) -> dict[str, list[str]]:
    """Links, node-node, by the switch that they lead up from."""
    ways: dict[str, list[str]] = {}
    for port in scenario.wiring.ports[2 * len(scenario.wiring.hosts) :]:
        if port.index < port.peer:
            ways.setdefault(port.node, []).append(f"{port.node}-{port.peer_node}")
    return ways


def _one_key(name: str, values: dict[str, Any]) -> tuple[Level, ...]:
    def keys(value: Any) -> Callable[[Scenario], dict[str, Any]]:
        return lambda _scenario: {name: value}

    return tuple(Level(shown, keys(value)) for shown, value in values.items())


def _delays(longest_ns: int) -> Level:
    """Of each switch's ways up the n-th of K is longer by (n - 1) / (K - 1) of ``longest_ns``: packets of one flow overtake each other.

    Queues stay as they were: a longer cable brings no larger switch.
    """

    def keys(scenario: Scenario) -> dict[str, Any]:
        experiment = scenario.experiment
        own_ns = {name: float(value) for name, value in experiment.link_ns_of.items()}
        for links in _ways_up(scenario).values():
            for number, link in enumerate(links):
                least_ns = own_ns.get(link, float(experiment.link_ns))
                own_ns[link] = least_ns + longest_ns * number // max(1, len(links) - 1)
        parameters = scenario.parameters
        return {
            "link_ns_of": own_ns,
            "queue_bytes": parameters.queue_bytes,
            "ecn_kmin_bytes": parameters.ecn_kmin_bytes,
            "ecn_kmax_bytes": parameters.ecn_kmax_bytes,
        }

    return Level(f"{longest_ns / 1000:g}", keys)


def _background(share: float) -> Level:
    """Every host sends so much of its line rate to the one half of all hosts further on, and so gets as much."""

    def keys(scenario: Scenario) -> dict[str, Any]:
        hosts = scenario.wiring.hosts[: scenario.hosts]
        flows = []
        for number, host in enumerate(hosts):
            gbps = share * float(scenario.wiring.ports[number].gbps)
            flows.append(
                {
                    "source": host,
                    "destination": hosts[(number + len(hosts) // 2) % len(hosts)],
                    "bytes": max(64, int(_BOUNDS * float(scenario.lower_bound_s) * gbps * 1e9 / 8)),
                    "rate_gbps": gbps,
                }
            )
        return {"background": flows}

    return Level(f"{100 * share:g}", keys)


def _slow(part: int, divisor: int) -> Level:
    """One host (``part`` 0), or one in ``part``, has a link of a ``divisor``-th of its speed, which schedules know."""

    def keys(scenario: Scenario) -> dict[str, Any]:
        ports = scenario.wiring.ports[: scenario.hosts]
        slow = ports[::part] if part else ports[:1]
        own = {name: float(value) for name, value in scenario.experiment.link_gbps_of.items()}
        return {"link_gbps_of": own | {port.node: float(port.gbps) / divisor for port in slow}}

    return Level(f"{'one' if not part else f'1 in {part}'} at 1/{divisor}", keys)


def _uplink(shown: str, until_ns: int) -> Level:
    """The first way up of the first host's switch loses what is on it, from the start on."""

    def keys(scenario: Scenario) -> dict[str, Any]:
        wiring = scenario.wiring
        switch = wiring.ports[0].peer_node
        ways = [port for port in wiring.ports[2 * len(wiring.hosts) :] if port.node == switch]
        return {
            "link_failure": [
                {"link": f"{port.node}-{port.peer_node}", "down_ns": 0, "up_ns": until_ns} for port in ways[:1]
            ]
        }

    return Level(shown, keys)


def _buffer(packets: int) -> Level:
    """Marks begin and end at a fifth and four fifths of a queue that is shorter than what they are set to."""

    def keys(scenario: Scenario) -> dict[str, Any]:
        queue_bytes = packets * scenario.experiment.mtu_bytes
        parameters = scenario.parameters
        return {
            "queue_bytes": queue_bytes,
            "ecn_kmin_bytes": min(parameters.ecn_kmin_bytes, queue_bytes // 5),
            "ecn_kmax_bytes": min(parameters.ecn_kmax_bytes, queue_bytes * 4 // 5),
        }

    return Level(str(packets), keys)


def _dpu(_scenario: Scenario) -> dict[str, Any]:
    """A DPU without its mailbox's delay. It has no links inside servers, which a run of rates does not use."""
    return {"nic": DOCA_MODEL, "control_delay_ns": 0, "server_link_gbps": 0}


_ESTIMATES: Final = {"5": 0.05, "20": 0.2, "50": 0.5}

DISTURBANCES: Final = {
    each.name: each
    for each in (
        Disturbance(
            "jitter",
            "senders start late by up to [us]",
            _one_key("start_jitter_ns", {"10": 10e3, "30": 30e3, "100": 100e3}),
            _none,
        ),
        Disturbance(
            "delays", "ways differ by up to [us]", tuple(map(_delays, (1000, 4000, 16_000))), _none, _same_ways_up
        ),
        Disturbance(
            "background", "background, of every link [%]", tuple(map(_background, (0.05, 0.1, 0.2, 0.4))), _none
        ),
        Disturbance("slow", "hosts with slow links", (_slow(0, 2), _slow(0, 4), _slow(4, 2), _slow(4, 4)), _none),
        Disturbance(
            "uplink",
            "an uplink loses all for [us]",
            (
                _uplink("20", 20_000),
                _uplink("50", 50_000),
                _uplink("100", 100_000),
                _uplink("the whole run", _WHOLE_RUN_NS),
            ),
            _none,
            _one_way_up,
        ),
        Disturbance(
            "stale",
            "of the estimate is out of date [%]",
            _one_key("estimate_stale", _ESTIMATES),
            _without_plan,
            _one_server,
        ),
        Disturbance("wrong", "flows are estimated wrong by [%]", _one_key("estimate_error", _ESTIMATES), _without_plan),
        Disturbance(
            "steps",
            "rates in steps of the line rate over",
            (Level(f"2^{_DPU_BITS}", _dpu),),
            _sets_no_rates,
        ),
        Disturbance("buffers", "queues of [packets]", tuple(map(_buffer, (1000, 300, 100, 30, 10))), _none),
        Disturbance(
            "control",
            "plans come late by [us]",
            _one_key("control_delay_ns", {"1": 1e3, "10": 10e3, "100": 100e3}),
            _never_waits,
        ),
    )
}
"""By name, in the order of tables and pictures."""
