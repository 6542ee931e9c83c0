"""What a virtual machine can be started for. Each task gets the folder that it shares with the host."""

from __future__ import annotations

import json
import os
import resource
import time
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from testbed.engine import EngineInput, run
from testbed.fabric.kernel import INJECT_IFINDEX, KernelFabric
from testbed.net import FabricNet
from testbed.stage.virtual.console import CONSOLE, say
from testbed.topology import Wiring, leaf_spine, wire

__all__ = ["collective", "script", "shell"]

_SETTLE_S: Final = 20
_CARRIERS_PER_S: Final = 50
"""Virtual time for carriers to come up: the kernel raises at most 100 a second (net/core/link_watch.c)."""


def _build(job: dict[str, Any], *, isolated_hosts: bool) -> tuple[FabricNet, Wiring, KernelFabric]:
    network = job["network"]
    topo = leaf_spine(
        network["hosts"],
        network["hosts_per_leaf"],
        Fraction(network["link_gbps"]),
        Fraction(network["link_ns"]),
        {name: Fraction(value) for name, value in network["link_gbps_of"].items()},
        {name: Fraction(value) for name, value in network["link_ns_of"].items()},
    )
    wiring = wire(topo)
    net = FabricNet(
        topo,
        wiring,
        mtu_bytes=network["mtu_bytes"],
        pairs=isolated_hosts or job["links"] == "pairs",
        isolated_hosts=isolated_hosts,
    )
    net.build()
    fabric = KernelFabric(
        net,
        wiring,
        dilation=Fraction(job["dilation"]),
        path_salt=job["path_salt"],
        queue_bytes=network["queue_bytes"],
        tracing=job["trace"],
    )
    time.sleep(_SETTLE_S + len(wiring.ports) / _CARRIERS_PER_S)
    return net, wiring, fabric


def collective(work: Path) -> None:
    """Runs the phases of job.json, one after the other, and writes what was measured beside it."""
    job = json.loads((work / "job.json").read_text())
    _, wiring, fabric = _build(job, isolated_hosts=False)
    hosts = len(wiring.hosts)
    say("ready")
    for number, phase in enumerate(job["phases"]):
        fabric.begin_phase()
        rates = memoryview((work / f"rates-{number}.bin").read_bytes())
        for host, table in enumerate(fabric.rate_tables):
            table.write(rates[host * hosts * 4 : (host + 1) * hosts * 4])
        trace_fd = -1
        if job["trace"]:
            trace_fd = os.open(work / f"trace-{number}.bin", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        given = EngineInput(
            flows=(work / f"flows-{number}.bin").read_bytes(),
            start_ns=(work / f"start-{number}.bin").read_bytes(),
            byte_ns=(work / "byte_ns.bin").read_bytes(),
            propagation_ns=(work / "propagation_ns.bin").read_bytes(),
            mtu_bytes=job["network"]["mtu_bytes"],
            seed=job["entropy_seed"],
            discipline=job["discipline"],
            balancing=job["balancing"],
            sockets=job["sockets"],
            period_ns=phase["period_ns"],
            limit_ns=phase["limit_ns"],
            bucket_ns=phase["bucket_ns"],
            slot_ns=job["slot_ns"],
        )
        say("phase", str(number))
        output = run(given, fabric.head, fabric.records, INJECT_IFINDEX, CONSOLE, trace_fd)
        if trace_fd >= 0:
            os.close(trace_fd)
        say("measured")
        figures = {name: value for name, value in output.items() if isinstance(value, int)}
        figures["ports"] = fabric.port_counters()  # type: ignore[assignment]
        for name, value in output.items():
            if isinstance(value, bytes):
                (work / f"{name}-{number}.bin").write_bytes(value)
        (work / f"receives-{number}.bin").write_bytes(fabric.receives)
        (work / f"output-{number}.json").write_text(json.dumps(figures))


def shell(work: Path) -> None:
    """Mininet's command line on the network of job.json, each host in a namespace of its own."""
    from mininet.cli import CLI

    job = json.loads((work / "job.json").read_text())
    # A shell a host, and its namespace; no more, since mnexec closes every descriptor that there may be.
    descriptors = 1024 + 4 * job["network"]["hosts"]
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    net, _, _ = _build(job, isolated_hosts=True)
    commands = work / "commands"
    CLI(net, script=str(commands) if commands.exists() else None)
    for host in net.hosts:
        host.terminate()


def script(work: Path) -> None:
    """Runs script.py of the work folder, for tests: as root, on a machine of its own."""
    source = (work / "script.py").read_text()
    exec(compile(source, "script.py", "exec"), {"__name__": "__main__", "WORK": work})
