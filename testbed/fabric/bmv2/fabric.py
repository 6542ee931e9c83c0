"""A network whose switches are BMv2: starts them, gives them program, tables, queues and thresholds, reads their counters.

The links are veth. BMv2 serves so many packets a second; the links' own programs (ebpf/fabric/fabric.bpf.c) add what a link
takes, and write the records from which queues are measured.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from fractions import Fraction
from types import FrameType
from typing import Any, Final

from testbed.fabric.bmv2.p4runtime import SwitchClient
from testbed.fabric.bmv2.pipeline import Pipeline
from testbed.fabric.bmv2.program import fabric_pipeline, program_switch
from testbed.fabric.bmv2.rates import queue_rates
from testbed.fabric.bmv2.switch import CONTROL, DATA, Bmv2Switch
from testbed.fabric.bmv2.thrift import QueueControl
from testbed.fabric.programs import FabricPrograms
from testbed.net import FabricNet
from testbed.topology import Wiring

__all__ = ["Bmv2Fabric"]

_NS: Final = 10**9
_ANY_DEPTH: Final = 1 << 20
"""Of BMv2's own queues: the program's registers limit them, since it counts what it drops."""
_COUNTERS: Final = ("marks", "trims", "drops")
_NOT_OF_THE_LINKS: Final = ("ecn_kmin_bytes", "ecn_kmax_bytes", "trimming")
"""Constants of the in-kernel switch, which BMv2 stands for."""


class Bmv2Fabric(FabricPrograms):
    """Times are dilated; limits and thresholds are whole packets, as BMv2 counts them."""

    def __init__(
        self,
        net: FabricNet,
        wiring: Wiring,
        *,
        dilation: Fraction,
        queue_bytes: int,
        mtu_bytes: int,
        constants: Mapping[str, int],
        **given: Any,
    ) -> None:
        """As FabricPrograms. The switches run when it returns; raises CannotRunError where one does not."""
        own = {name: value for name, value in constants.items() if name not in _NOT_OF_THE_LINKS}
        super().__init__(net, wiring, dilation=dilation, queue_bytes=0, mtu_bytes=mtu_bytes, constants=own, **given)
        self.attach_veth("process_ingress", "process_egress")
        self._pipeline = fabric_pipeline()
        self._queue_packets = queue_bytes // mtu_bytes
        self._kmin_packets = constants["ecn_kmin_bytes"] // mtu_bytes
        self._kmax_packets = constants["ecn_kmax_bytes"] // mtu_bytes
        self._mark_salt = constants["mark_salt"]
        self._trimming = bool(constants["trimming"])
        self._rates = queue_rates(wiring, dilation, mtu_bytes)
        for port in range(len(wiring.hosts), len(wiring.ports)):
            self.set_service(port, *(_NS // packets_per_s for packets_per_s in self._rates[port]))
        self._clients: list[SwitchClient] = []

    def start(self) -> None:
        """Starts all switches, then programs each. Links must be up. A switch that dies from then on raises CannotRunError."""
        switches: list[Bmv2Switch] = self.net.switches
        for switch, table in zip(switches, self.tables.switches, strict=True):
            switch.interfaces = [self.wiring.ports[port].name for port in table.ports]
            switch.start([])
        for switch, table in zip(switches, self.tables.switches, strict=True):
            try:
                self._program(switch, self._pipeline, table.index)
            finally:
                switch.check()
        signal.signal(signal.SIGCHLD, self._on_child)
        self.check()

    def _on_child(self, _signal: int, _frame: FrameType | None) -> None:
        self.check()

    def _program(self, switch: Bmv2Switch, pipeline: Pipeline, index: int) -> None:
        table = self.tables.switches[index]
        client = SwitchClient(switch.name, switch.grpc_port, pipeline, device_id=switch.device_id, timeout_s=30)
        self._clients.append(client)
        program_switch(client, table, self._mark_salt, self._trimming)
        queues = QueueControl(switch.name, switch.thrift_port, switch.python_paths)
        for port in table.ports:
            number = table.number_of(port)
            data_pps, control_pps = self._rates[port]
            for priority, packets_per_s in ((DATA, data_pps), (CONTROL, control_pps)):
                queues.set_queue_depth(number, priority, _ANY_DEPTH)
                queues.set_queue_rate(number, priority, packets_per_s)
            queues.write_register("queue_limit", number, self._queue_packets)
        queues.write_register("ecn_kmin", 0, self._kmin_packets)
        queues.write_register("ecn_kmax", 0, self._kmax_packets)
        queues.close()
        switch.widen_buffers()

    def check(self) -> None:
        """Raises CannotRunError where a switch has ended."""
        for switch in self.net.switches:
            switch.check()

    def port_counters(self) -> list[dict[str, int]]:
        """As the links' programs counted, and the switches."""
        counted = super().port_counters()
        for client, table in zip(self._clients, self.tables.switches, strict=True):
            for name in _COUNTERS:
                packets = client.read_counter(name)
                for port in table.ports:
                    counted[port][name] = packets[table.number_of(port)]
            foreign = client.read_counter("foreign")
            for port in table.ports:
                counted[port]["foreign"] += foreign[table.number_of(port)]
        return counted
