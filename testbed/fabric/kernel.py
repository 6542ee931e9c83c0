"""The in-kernel fabric: loads the eBPF object, fills its tables from the wiring, attaches it to all ports."""

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
from testbed.fabric import KERNEL_OBJECT
from testbed.fabric.tables import FabricTables, OnePort, fabric_tables
from testbed.net import HOST_MAC, LINK_KIND, PORT_IFINDEX_BASE, FabricNet, in_namespace
from testbed.times import delay_ns, fixed_byte_ns
from testbed.topology import Wiring

__all__ = ["INJECT_IFINDEX", "KernelFabric"]

INJECT_IFINDEX: Final = 990
_TRUNK_IFINDEX: Final = 992
_TRUNK_PEER_IFINDEX: Final = 993
_INJECT_PEER_IFINDEX: Final = 991
_MAX_PORTS: Final = 8192
_MAX_ROUTES: Final = 1 << 19
_MAX_MEMBERS: Final = 1 << 16
_ROUTE_WAYS_SHIFT: Final = 20
_BYTE_NS_ONE: Final = 1 << 32
_ARRIVAL_CAPACITY: Final = 1 << 20
_UNLIMITED_ARRIVAL_SLOTS: Final = 1024
_PORT: Final = struct.Struct("<QQQQIIIIIIIIIIIIQQIIIIII8x")
"""struct port of ebpf/include/fabric.h."""
_CONTROL_COUNT, _MARKS, _DROPS, _TRIMS, _LOST, _FOREIGN = 14, 15, 18, 19, 20, 23
"""Places of its counters."""
_RECEIVE: Final = struct.Struct("<QQQIIIIIIIIII")
"""struct receive."""
_WORD: Final = struct.Struct("<I")
_NOTHING_COUNTED: Final = (0,) * 16
_FAILURE: Final = struct.Struct("<QQ")
_FAILURE_OFFSET: Final = 80
_HEAD_BYTES: Final = 64


class KernelFabric:
    """The fabric of one network, in this process's network namespace. Times are dilated."""

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
        tables = fabric_tables(wiring, path_salt)
        member_count = sum(len(switch.members) for switch in tables.switches)
        if len(wiring.switches) * len(wiring.hosts) > _MAX_ROUTES or member_count > _MAX_MEMBERS:
            raise CannotRunError("the topology has too many routes for the kernel fabric: use fewer hosts or switches")
        if len(wiring.ports) > _MAX_PORTS:
            raise CannotRunError(
                f"the topology has {len(wiring.ports)} ports, the kernel fabric at most {_MAX_PORTS}: use fewer hosts"
            )
        self.wiring = wiring
        hosts = len(wiring.hosts)
        self._object = fabric = BpfObject(KERNEL_OBJECT)
        fabric.resize_map("rate_tables", hosts)
        fabric.resize_map("edt_flows", hosts * hosts)
        fabric.resize_map("receives", hosts * hosts)
        fabric.set_constant("host_count", struct.pack("<I", hosts))
        fabric.set_constant("trunk", struct.pack("<I", not net.pairs))
        fabric.set_constant("tracing", struct.pack("<I", tracing))
        slots = _arrival_slots(wiring, queue_bytes, mtu_bytes)
        fabric.set_constant("arrival_slots", _WORD.pack(slots))
        for name, value in constants.items():
            fabric.set_constant(name, _WORD.pack(value))
        fabric.load()

        data = fabric.map(".bss").map_memory()
        at = fabric.globals_of(".bss")
        self.ports = data[at["ports"][0] :][: _PORT.size * len(wiring.ports)]
        self.records = data[at["records"][0] :][: at["records"][1]]
        self.head = data[at["record_head"][0] :][:_HEAD_BYTES]
        self.feedback = data[at["feedback"][0] :][: at["feedback"][1]]
        self._received = data[at["received"][0] :][: at["received"][1]]
        self.receives = fabric.map("receives").map_memory()
        self._edt_flows = fabric.map("edt_flows").map_memory()
        rates = fabric.map("rate_tables")
        memory = rates.map_memory()
        self.rate_tables = [RateTable(memory[host * rates.stride_bytes :]) for host in range(hosts)]

        self._fill_ports(dilation, queue_bytes, tables)
        self._fill_routes(tables, data[at["routes"][0] :], data[at["members"][0] :])
        self._attach(net)

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

    def _fill_routes(self, tables: FabricTables, routes: memoryview, members: memoryview) -> None:
        """The switches' groups one after the other, in one table."""
        hosts = len(self.wiring.hosts)
        used = 0
        for switch in tables.switches:
            for place, port in enumerate(switch.members, used):
                _WORD.pack_into(members, place * _WORD.size, port)
            for host, route in switch.routes.items():
                ways, index = (1, route.port) if isinstance(route, OnePort) else (route.ways, used + route.first)
                word = ways << _ROUTE_WAYS_SHIFT | index
                _WORD.pack_into(routes, (switch.index * hosts + host) * _WORD.size, word)
            used += len(switch.members)

    def _attach(self, net: FabricNet) -> None:
        program = self._object.program_fd
        hosts = len(self.wiring.hosts)
        with RtNetlink() as netlink:
            netlink.add_pair(
                LINK_KIND,
                "inject",
                INJECT_IFINDEX,
                "inject-peer",
                _INJECT_PEER_IFINDEX,
                mtu_bytes=1500,
                address=HOST_MAC,
            )
            netlink.set_up(INJECT_IFINDEX, arp=False)
            netlink.set_up(_INJECT_PEER_IFINDEX, arp=False)
        attach_program(program("inject"), INJECT_IFINDEX, Hook.NETKIT_PRIMARY)
        if not net.pairs:
            self._attach_trunk()
            return

        def equip(ports: Iterable[int]) -> None:
            with RtNetlink() as netlink:
                for port in ports:
                    netlink.set_fq(PORT_IFINDEX_BASE + port, flows=2)
            for port in ports:
                hook = "nic_egress" if port < hosts else "port_egress"
                attach_program(program(hook), PORT_IFINDEX_BASE + port, Hook.TCX_EGRESS)

        equip(range(hosts, len(self.wiring.ports)))
        if not net.isolated_hosts:
            equip(range(hosts))
        for port in self.wiring.ports:
            # The far end's program runs where the packet is sent; a pair's are attached through its first.
            primary = net.is_primary(port)
            first = port if primary else self.wiring.ports[port.peer]
            hook = Hook.NETKIT_PRIMARY if primary else Hook.NETKIT_PEER
            attach_program(program("far_end"), PORT_IFINDEX_BASE + first.index, hook)
        if net.isolated_hosts:
            for index, host in enumerate(net.hosts):
                with in_namespace(host.pid):
                    equip([index])

    def _attach_trunk(self) -> None:
        """One interface for all ports, two flows of its sch_fq each: data and control."""
        with RtNetlink() as netlink:
            netlink.add_pair(
                LINK_KIND, "trunk", _TRUNK_IFINDEX, "trunk-peer", _TRUNK_PEER_IFINDEX, mtu_bytes=9216, address=HOST_MAC
            )
            netlink.set_up(_TRUNK_IFINDEX, arp=False)
            netlink.set_up(_TRUNK_PEER_IFINDEX, arp=False)
            netlink.set_fq(_TRUNK_IFINDEX, flows=2 * len(self.wiring.ports))
        attach_program(self._object.program_fd("port_egress"), _TRUNK_IFINDEX, Hook.TCX_EGRESS)
        attach_program(self._object.program_fd("trunk_far_end"), _TRUNK_IFINDEX, Hook.NETKIT_PRIMARY)


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
