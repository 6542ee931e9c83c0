"""What a stage can be asked to run. Each task gets the folder that it shares with the host."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import resource
import struct
import time
import traceback
from array import array
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from controller.errors import CannotRunError, InputError
from controller.nic.rtnetlink import RtNetlink
from testbed.engine import ControlKind, Controls, EngineInput, FabricMemory, cca, run
from testbed.fabric.bmv2.installation import Installation
from testbed.fabric.kernel import KernelFabric
from testbed.fabric.programs import INJECT_IFINDEX, FabricPrograms
from testbed.net import LINK_KIND, FabricNet, FabricSwitch
from testbed.stage.console import CONSOLE, say
from testbed.stage.host.carriers import wait_for_carriers
from testbed.topology import TOPOLOGIES, Wiring, add_server_links, wire

__all__ = ["collective", "ranks", "script", "shell"]

_NS: Final = 10**9
_SETTLE_S: Final = 20
_FLOW: Final = struct.Struct("<IIQIIIIII")
"""FLOW_FIELDS of testbed/engine, without NumPy."""
_RATE_ONE: Final = 1 << 32
"""The line rate, in steps (ebpf/include/rate_table.h)."""
_USER_CONTROL: Final = "control.py"
LOGS: Final = "switches"
_LOOPBACK_IFINDEX: Final = 1
_OF_THE_ENGINE: Final = (RuntimeError, MemoryError, OSError, TimeoutError)
"""What the engine raises itself, which is none of a user's doing."""
_CARRIERS_PER_S: Final = 50
"""Virtual time for carriers to come up: the kernel raises at most 100 a second (net/core/link_watch.c)."""


def _build(job: dict[str, Any], work: Path, *, isolated_hosts: bool) -> tuple[FabricNet, Wiring, FabricPrograms]:
    network = job["network"]
    topo = TOPOLOGIES[network["topology"]](
        network["hosts"],
        **network["shape"],
        link_gbps=Fraction(network["link_gbps"]),
        link_ns=Fraction(network["link_ns"]),
        link_gbps_of={name: Fraction(value) for name, value in network["link_gbps_of"].items()},
        link_ns_of={name: Fraction(value) for name, value in network["link_ns_of"].items()},
    )
    if Fraction(network["server_link_gbps"]):
        server_gbps, link_ns = Fraction(network["server_link_gbps"]), Fraction(network["link_ns"])
        add_server_links(topo, network["hosts"], network["gpus_per_server"], server_gbps, link_ns)
    wiring = wire(topo)
    net = FabricNet(
        topo,
        wiring,
        mtu_bytes=network["mtu_bytes"],
        pairs=isolated_hosts or job["links"] != "trunk",
        isolated_hosts=isolated_hosts,
        link_kind="veth" if job["links"] == "veth" else LINK_KIND,
        switch=_switches(job, wiring, work),
    )
    net.build()
    given: dict[str, Any] = {
        "dilation": Fraction(job["dilation"]),
        "path_salt": job["path_salt"],
        "queue_bytes": network["queue_bytes"],
        "mtu_bytes": network["mtu_bytes"],
        "tracing": job["trace"],
        "constants": job["constants"],
    }
    if job["fabric"] == "kernel":
        fabric: FabricPrograms = KernelFabric(net, wiring, occupancy_bytes=network["occupancy_bytes"], **given)
        _settle(job, wiring)
        return net, wiring, fabric

    from testbed.fabric.bmv2.fabric import Bmv2Fabric  # gRPC: a second, and not everywhere

    with RtNetlink() as netlink:
        netlink.set_up(_LOOPBACK_IFINDEX)  # where the switches listen
    switches = Bmv2Fabric(net, wiring, **given)
    _settle(job, wiring)
    switches.start()
    return net, wiring, switches


def _settle(job: dict[str, Any], wiring: Wiring) -> None:
    if job["stage"] == "host":
        wait_for_carriers()
        return
    time.sleep(_SETTLE_S + len(wiring.ports) / _CARRIERS_PER_S)


def _switches(job: dict[str, Any], wiring: Wiring, work: Path) -> Callable[..., FabricSwitch]:
    """What Mininet makes the switches with."""
    if job["fabric"] == "kernel":
        return FabricSwitch

    from testbed.fabric.bmv2.switch import Bmv2Options, Bmv2Switch

    (work / LOGS).mkdir(exist_ok=True)
    options = Bmv2Options(Installation(Path(job["bmv2"])), work / LOGS)

    def make(name: str, **params: Any) -> Bmv2Switch:
        return Bmv2Switch(name, options=options, index=wiring.switches.index(name), **params)

    return make


def collective(work: Path) -> None:
    """Runs the phases of job.json, one after the other, and writes what was measured beside it."""
    job = json.loads((work / "job.json").read_text())
    _, wiring, fabric = _build(job, work, isolated_hosts=False)
    hosts = len(wiring.hosts)
    memory = FabricMemory(
        head=fabric.head,
        records=fabric.records,
        feedback=fabric.feedback,
        ports=fabric.ports,
        ifindex=INJECT_IFINDEX,
    )
    gc.disable()  # controls make no circles, and a collection would walk all of them
    say("ready")
    for number, phase in enumerate(job["phases"]):
        flows = (work / f"flows-{number}.bin").read_bytes()
        fabric.begin_phase(
            (source, destination, packets, word)
            for source, destination, _, packets, _, _, word, _, _ in _FLOW.iter_unpack(flows)
        )
        controls = _controls(job, flows, work)
        mailbox = (work / f"mailbox-{number}.bin").read_bytes()
        if mailbox and controls.kind is ControlKind.RATE:
            raise InputError(
                f"nic doca-model: {job['control']['cc']} sets rates, and a DPU runs one program; give a control of windows, or "
                "nic ebpf"
            )
        rates = memoryview((work / f"rates-{number}.bin").read_bytes())
        # Where rates change on the way the engine keeps the pace, and two clocks would add up.
        if controls.kind is ControlKind.RATE or phase["rates_ns"] or mailbox:
            rates = memoryview(bytes(len(rates)))
        for host, table in enumerate(fabric.rate_tables):
            table.write(rates[host * hosts * 4 : (host + 1) * hosts * 4])
        trace_fd = events_fd = -1
        if job["trace"]:
            trace_fd, events_fd = (
                os.open(work / f"{name}-{number}.bin", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
                for name in ("trace", "events")
            )
        epoch_ns = (time.monotonic_ns() // _NS + 2) * _NS
        fabric.fail_links((port, epoch_ns + down_ns, epoch_ns + up_ns) for port, down_ns, up_ns in job["failures"])
        given = EngineInput(
            flows=flows,
            background=(work / "background.bin").read_bytes(),
            mailbox=mailbox,
            start_ns=(work / f"start-{number}.bin").read_bytes(),
            byte_ns=(work / "byte_ns.bin").read_bytes(),
            propagation_ns=(work / "propagation_ns.bin").read_bytes(),
            mtu_bytes=job["network"]["mtu_bytes"],
            seed=job["entropy_seed"],
            discipline=phase["discipline"],
            balancing=job["balancing"],
            sockets=job["sockets"],
            epoch_ns=epoch_ns,
            **job["transport"],
            dilation=float(Fraction(job["dilation"])),
            period_ns=phase["period_ns"],
            lead_ns=phase["lead_ns"],
            limit_ns=phase["limit_ns"],
            bucket_ns=phase["bucket_ns"],
            slot_ns=job["slot_ns"],
            late_records=job["late_records"],
            linger_ns=job["linger_ns"],
            freeze_ns=job["freeze_ns"],
            rates_ns=phase["rates_ns"],
            stages=(work / f"stages-{number}.bin").read_bytes(),
            barrier=phase["barrier"],
            barrier_ns=job["barrier_ns"],
        )
        say("phase", str(number))
        try:
            with _blaming(job["control"]["cc"], work):
                output = run(given, memory, controls, CONSOLE, trace_fd, events_fd)
        except TimeoutError as error:
            raise _endless(job, error) from None
        if trace_fd >= 0:
            os.close(trace_fd)
            os.close(events_fd)
        say("measured")
        fabric.check()
        figures = {name: value for name, value in output.items() if isinstance(value, int)}
        figures["control_kind"] = int(controls.kind)
        figures["ports"] = fabric.port_counters()  # type: ignore[assignment]
        for name, value in output.items():
            if isinstance(value, bytes):
                (work / f"{name}-{number}.bin").write_bytes(value)
        (work / f"receives-{number}.bin").write_bytes(fabric.receives)
        (work / f"output-{number}.json").write_text(json.dumps(figures))


def _controls(job: dict[str, Any], flows: bytes, work: Path) -> Controls:
    """A congestion control for each flow."""
    given = job["control"]
    name = str(work / _USER_CONTROL) if given["cc"].endswith(".py") else given["cc"]
    with _blaming(given["cc"], work):
        control = cca.load(name)
        if control is None:
            return Controls()
        network = cca.Network(
            mtu_bytes=job["network"]["mtu_bytes"],
            header_bytes=given["header_bytes"],
            rtt_ns=given["rtt_ns"],
            trimming=given["trimming"],
            seed=given["seed"],
        )
        objects = [
            # The base RTT of every pair is RTT0 until a sample is smaller, as in the reference simulator.
            control(
                network,
                cca.Path(
                    source,
                    destination,
                    given["line_rate_bps"][source],
                    given["rtt_ns"],
                    given["line_rate_bps"][source] * steps / _RATE_ONE,
                ),
            )
            for source, destination, _, _, _, steps, *_ in _FLOW.iter_unpack(flows)
        ]
        starts = array("d", (each.start() for each in objects))
        for start in starts:
            if not 0 <= start < math.inf:
                raise ValueError(f"start returned {start}, which is neither a window nor a rate")
    kind = ControlKind.WINDOW if control.kind == "window" else ControlKind.RATE
    if kind is ControlKind.RATE and any(phase["stages"] for phase in job["phases"]):
        raise InputError(f"{given['cc']} sets rates, which stages have none of: give one of windows")
    return Controls(kind, objects, starts.tobytes(), control.on_sent is not cca.Control.on_sent)


@contextlib.contextmanager
def _blaming(cc: str, work: Path) -> Iterator[None]:
    """Where a user's congestion control fails, says which file it is, and the line."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace(str(work / _USER_CONTROL), cc)) from None
    except CannotRunError:  # such as that a switch has died, which may strike anywhere
        raise
    except (Exception, SystemExit) as error:
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(_USER_CONTROL)
        ]
        if not cc.endswith(".py") or (type(error) in _OF_THE_ENGINE and not frames):
            raise
        where = f" (line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
        raise CannotRunError(f"{cc}{where}: {type(error).__name__}: {error}") from None


def _endless(job: dict[str, Any], error: TimeoutError) -> CannotRunError:
    """What a run that did not end in time is told."""
    cc = job["control"]["cc"]
    if job["recovery_name"] == "none" and any(phase["barrier"] for phase in job["phases"]):
        hint = "a barrier waits for what was dropped, which nobody sends again: give loss_recovery sack, or --queue-bytes 0"
    elif cc == "none" and all(phase["paced"] for phase in job["phases"]):
        hint = "its rates are too small for what is sent, or too much is lost on the way"
    elif cc == "none" and job["control"]["trimming"]:
        hint = (
            "without a congestion control the trimmed headers of many senders may fill a port alone: give one (rr+nscc), or "
            "--queue-bytes 0"
        )
    else:
        hint = f"too much is lost for {job['recovery_name']} recovery, or {cc} lets too little be sent"
    return CannotRunError(f"{error}, many times the lower bound: {hint}")


def shell(work: Path) -> None:
    """Mininet's command line on the network of job.json, each host in a namespace of its own."""
    from mininet.cli import CLI

    job = json.loads((work / "job.json").read_text())
    _raise_descriptors(job)
    net, _, _ = _build(job, work, isolated_hosts=True)
    commands = work / "commands"
    CLI(net, script=str(commands) if commands.exists() else None)
    for host in net.hosts:
        host.terminate()


def ranks(work: Path) -> None:
    """A command once a host, on the network of job.json: see testbed/stage/ranks.py."""
    from testbed.stage.ranks import run_ranks

    job = json.loads((work / "job.json").read_text())
    _raise_descriptors(job)
    net, _, fabric = _build(job, work, isolated_hosts=True)
    run_ranks(job, net, fabric, work)


def _raise_descriptors(job: dict[str, Any]) -> None:
    """A shell a host, and its namespace; no more, since mnexec closes every descriptor that there may be."""
    descriptors = 1024 + 4 * job["network"]["hosts"]
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))


def script(work: Path) -> None:
    """Runs script.py of the work folder, for tests: as root, on a machine of its own."""
    source = (work / "script.py").read_text()
    exec(compile(source, "script.py", "exec"), {"__name__": "__main__", "WORK": work})
