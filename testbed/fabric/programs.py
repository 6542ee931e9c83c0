"""The eBPF programs of one network and the memory that they share with the engine: NICs, ports, receivers."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final

from controller.errors import CannotRunError
from controller.nic.libbpf import BpfObject, Hook, attach_program
from controller.nic.rate_table import RateTable
from controller.nic.rtnetlink import RtNetlink
from testbed.fabric import KERNEL_OBJECT, PLAIN_OBJECT
from testbed.fabric.offload import switch_off_offloads
from testbed.fabric.tables import FabricTables, fabric_tables
from testbed.net import HOST_MAC, PORT_IFINDEX_BASE, FabricNet, in_namespace
from testbed.times import delay_ns, fixed_byte_ns
from testbed.topology import Wiring

__all__ = ["INJECT_IFINDEX", "PLAIN", "FabricPrograms"]

INJECT_IFINDEX: Final = 990
_INJECT_PEER_IFINDEX: Final = 991
_MAX_PORTS: Final = 8192
_BYTE_NS_ONE: Final = 1 << 32
_ARRIVAL_CAPACITY: Final = 1 << 21
_UNLIMITED_ARRIVAL_SLOTS: Final = 1024
_PORT: Final = struct.Struct("<QQQQIIIIIIIIIIIIQQIIIIIIII")
"""struct port of ebpf/include/fabric.h."""
_CONTROL_COUNT, _MARKS, _DROPS, _TRIMS, _LOST, _FOREIGN = 14, 15, 18, 19, 20, 23
"""Places of its counters."""
_RECEIVE: Final = struct.Struct("<QQQIIIIIIIIII")
"""struct receive."""
_WORD: Final = struct.Struct("<I")
_NOTHING_COUNTED: Final = (0,) * 18
_MAX_CONNECTIONS: Final = 1 << 16
_FAILURE: Final = struct.Struct("<QQ")
_FAILURE_OFFSET: Final = 80
_SERVICE: Final = struct.Struct("<II")
_SERVICE_OFFSET: Final = 120
_HEAD_BYTES: Final = 112
PLAIN: Final = {
    "trunk": 1,
    **dict.fromkeys(("real_programs", "veth", "tracing", "loss_data", "loss_control", "failing", "adaptive"), 0),
}
"""What PLAIN_OBJECT was compiled with: COMMON in ebpf/fabric/state.h."""


class FabricPrograms:
    """What every fabric has, whatever its switches are: the hosts' NICs, and what is known of each port. Times are dilated."""

    def __init__(
        self,
        net: FabricNet,
        wiring: Wiring,
        *,
        dilation: Fraction,
        path_salt: int,
        queue_bytes: int,
        mtu_bytes: int,
        tracing: bool,
        constants: Mapping[str, int],
    ) -> None:
        """``constants``: those of ebpf/fabric/state.h that say what queues, links and receivers do."""
        if len(wiring.ports) > _MAX_PORTS:
            raise CannotRunError(
                f"the topology has {len(wiring.ports)} ports, the fabric's programs at most {_MAX_PORTS}: use fewer hosts"
            )
        self.net = net
        self.wiring = wiring
        self.tables = fabric_tables(wiring, path_salt)
        hosts = len(wiring.hosts)
        slots = _arrival_slots(wiring, queue_bytes, mtu_bytes)
        own = {"host_count": hosts, "trunk": not net.pairs, "tracing": tracing, "arrival_slots": slots}
        own |= {"veth": net.link_kind == "veth", "real_programs": net.isolated_hosts}
        values = {**own, **constants}
        plain = all(values[name] == value for name, value in PLAIN.items())
        self.object = programs = BpfObject(PLAIN_OBJECT if plain else KERNEL_OBJECT)
        programs.resize_map("rate_tables", hosts)
        programs.resize_map("edt_flows", hosts * hosts)
        programs.resize_map("receives", hosts * hosts)
        programs.resize_map("connections", _MAX_CONNECTIONS if net.isolated_hosts else 1)
        for name, value in values.items():
            if not plain or name not in PLAIN:
                programs.set_constant(name, _WORD.pack(value))
        programs.load()

        self.data = data = programs.map(".bss").map_memory()
        self.places = at = programs.globals_of(".bss")
        self.ports = data[at["ports"][0] :][: _PORT.size * len(wiring.ports)]
        self.records = data[at["records"][0] :][: at["records"][1]]
        self.head = data[at["record_head"][0] :][:_HEAD_BYTES]
        self.feedback = data[at["feedback"][0] :][: at["feedback"][1]]
        self._deepest = data[at["deepest_ns"][0] :][: 8 * len(wiring.ports)]
        self._received = data[at["received"][0] :][: at["received"][1]]
        self.receives = programs.map("receives").map_memory()
        self._edt_flows = programs.map("edt_flows").map_memory()
        rates = programs.map("rate_tables")
        memory = rates.map_memory()
        self.rate_tables = [RateTable(memory[host * rates.stride_bytes :]) for host in range(hosts)]
        self._fill_ports(dilation, queue_bytes, self.tables)
        self._attach_inject()

    def check(self) -> None:
        """Raises CannotRunError where a switch does not work any more; the kernel's always do."""

    def port_counters(self) -> list[dict[str, int]]:
        """What each port counted, by the names of struct port."""
        return [
            {
                "control": values[_CONTROL_COUNT],
                "marks": values[_MARKS],
                "drops": values[_DROPS],
                "trims": values[_TRIMS],
                "lost": values[_LOST],
                "foreign": values[_FOREIGN],
            }
            for values in _PORT.iter_unpack(self.ports)
        ]

    def deepest_ns(self) -> list[int]:
        """The most kernel time that each port's queue would have taken to serialise; of real programs' packets."""
        return list(self._deepest.cast("Q"))

    def flows(self) -> list[tuple[int, int, int, int, int, int]]:
        """(source, destination, wire bytes, packets, first and last arrival in kernel time) of all that came; of real programs."""
        hosts = len(self.wiring.hosts)
        found = []
        for place, (count_bytes, first_ns, last_ns, packets, *_) in enumerate(_RECEIVE.iter_unpack(self.receives)):
            if packets:
                found.append((*divmod(place, hosts), count_bytes, packets, first_ns, last_ns))
        return found

    def begin_phase(self, flows: Iterable[tuple[int, int, int, int]]) -> None:
        """Forgets what was received, and what the NICs' flows still owe; ``flows``: (source, destination,
        packets, word of its bits) of the next phase.
        """
        for memory in (self.receives, self._edt_flows):
            memory[:] = bytes(len(memory))
        used = 0
        hosts = len(self.wiring.hosts)
        for source, destination, packets, word in flows:
            at = (source * hosts + destination) * _RECEIVE.size
            _RECEIVE.pack_into(self.receives, at, 0, 0, 0, 0, packets, word, 0, 0, 0, 0, 0, 0, 0)
            used = max(used, word + packets // 64 + 1)
        self._received[: 8 * used] = bytes(8 * used)

    def fail_links(self, failures: Iterable[tuple[int, int, int]]) -> None:
        """(port, down_ns, up_ns) in kernel time: what is on the port's link in between is lost."""
        for port, down_ns, up_ns in failures:
            _FAILURE.pack_into(self.ports, port * _PORT.size + _FAILURE_OFFSET, down_ns, up_ns)

    def set_service(self, port: int, data_ns: int, control_ns: int) -> None:
        """How long a switch that is a process serves a packet of each priority, in kernel time: what it is held to."""
        _SERVICE.pack_into(self.ports, port * _PORT.size + _SERVICE_OFFSET, data_ns, control_ns)

    def _fill_ports(self, dilation: Fraction, queue_bytes: int, tables: FabricTables) -> None:
        node_of = {name: index for index, name in enumerate(self.wiring.switches)}
        hosts = len(self.wiring.hosts)
        for port in self.wiring.ports:
            byte_ns = fixed_byte_ns(port.gbps, dilation)
            # A NIC is no switch: it holds what its host gives it.
            limit_ns = queue_bytes * byte_ns // _BYTE_NS_ONE if port.index >= hosts else 0
            propagation_ns = delay_ns(port.ns, dilation)
            node = node_of.get(port.node, 0)
            salt = tables.switches[node].salt  # of no meaning to a NIC
            _PORT.pack_into(
                self.ports,
                port.index * _PORT.size,
                0,
                0,
                limit_ns,
                byte_ns,
                propagation_ns,
                port.peer,
                node * hosts,
                salt,
                *_NOTHING_COUNTED,
            )

    def _attach_inject(self) -> None:
        """Where the engine's frames enter. Not part of any link, so that a veth or a netkit will do."""
        with RtNetlink() as netlink:
            netlink.add_pair(
                self.net.link_kind,
                "inject",
                INJECT_IFINDEX,
                "inject-peer",
                _INJECT_PEER_IFINDEX,
                mtu_bytes=1500,
                address=HOST_MAC,
            )
            netlink.set_up(INJECT_IFINDEX, arp=False)
            netlink.set_up(_INJECT_PEER_IFINDEX, arp=False)
        if self.net.link_kind == "veth":
            self.attach_clsact(INJECT_IFINDEX, egress="inject")
        else:
            attach_program(self.object.program_fd("inject"), INJECT_IFINDEX, Hook.NETKIT_PRIMARY)

    def attach_clsact(self, ifindex: int, *, ingress: str = "", egress: str = "") -> None:
        """Programs on a veth, by the hooks that kernels before 6.6 have as well."""
        with RtNetlink() as netlink:
            netlink.add_clsact(ifindex)
        with RtNetlink() as netlink:
            for program, outward in ((ingress, False), (egress, True)):
                if program:
                    netlink.attach(ifindex, self.object.program_fd(program), program, egress=outward)

    def attach_veth(self, switch_ingress: str, switch_egress: str) -> None:
        """All ports of a network whose links are veth."""
        hosts = len(self.wiring.hosts)

        def equip(port: int) -> None:
            with RtNetlink() as netlink:
                netlink.set_fq(PORT_IFINDEX_BASE + port, flows=2)
            switch_off_offloads(self.wiring.ports[port].name)
            nic = port < hosts
            self.attach_clsact(
                PORT_IFINDEX_BASE + port,
                ingress="veth_far_end" if nic else switch_ingress,
                egress="nic_egress" if nic else switch_egress,
            )

        for port in range(hosts, len(self.wiring.ports)):
            equip(port)
        for index in range(hosts):
            if self.net.isolated_hosts:
                with in_namespace(self.net.hosts[index].pid):
                    equip(index)
            else:
                equip(index)


def _arrival_slots(wiring: Wiring, queue_bytes: int, mtu_bytes: int) -> int:
    """How many of its latest packets a port remembers: all that may have come behind one that has just arrived at the far
    end, which a full queue and a link full of packets bound. Few, since they are to stay in the processor's cache.
    """
    most = 1 << (_ARRIVAL_CAPACITY // len(wiring.ports)).bit_length() - 1
    if not queue_bytes:
        return min(most, _UNLIMITED_ARRIVAL_SLOTS)
    in_flight_bytes = max(port.ns * port.gbps / 8 for port in wiring.ports)
    packets = math.ceil((queue_bytes + in_flight_bytes) / mtu_bytes)
    return min(most, 1 << packets.bit_length())
