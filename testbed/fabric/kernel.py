"""The in-kernel fabric: fills the programs' tables from the wiring and attaches them to all ports."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Final

from controller.errors import CannotRunError
from controller.nic.libbpf import Hook, attach_program
from controller.nic.rtnetlink import RtNetlink
from testbed.fabric.programs import FabricPrograms
from testbed.fabric.tables import FabricTables, OnePort
from testbed.net import HOST_MAC, LINK_KIND, PORT_IFINDEX_BASE, FabricNet, in_namespace
from testbed.times import fixed_byte_ns
from testbed.topology import Wiring

__all__ = ["KernelFabric"]

_TRUNK_IFINDEX: Final = 992
_TRUNK_PEER_IFINDEX: Final = 993
_MAX_ROUTES: Final = 1 << 19
_MAX_MEMBERS: Final = 1 << 16
_ADAPTIVE_WAYS: Final = 64
_ROUTE_WAYS_SHIFT: Final = 20
_WORD: Final = struct.Struct("<I")
_DOUBLE_WORD: Final = struct.Struct("<Q")
_BYTE_NS_ONE: Final = 1 << 32


class KernelFabric(FabricPrograms):
    """The fabric of one network, in this process's network namespace. Times are dilated."""

    def __init__(self, net: FabricNet, wiring: Wiring, *, occupancy_bytes: int = 0, **given: Any) -> None:
        """``occupancy_bytes``: the queue that adaptive routing takes the occupancy of; ``given``: as FabricPrograms takes it."""
        super().__init__(net, wiring, **given)
        member_count = sum(len(switch.members) for switch in self.tables.switches)
        if len(wiring.switches) * len(wiring.hosts) > _MAX_ROUTES or member_count > _MAX_MEMBERS:
            raise CannotRunError("the topology has too many routes for the kernel fabric: use fewer hosts or switches")
        if given["constants"].get("adaptive"):
            self._fill_occupancies(occupancy_bytes, given["dilation"])
        self._fill_routes(self.tables, self.data[self.places["routes"][0] :], self.data[self.places["members"][0] :])
        if net.link_kind == "veth":
            self.attach_veth("veth_far_end", "port_egress")
        else:
            self._attach(net)

    def _fill_occupancies(self, occupancy_bytes: int, dilation: Fraction) -> None:
        """Raises CannotRunError for a group that is too large for adaptive routing."""
        ways = max((len(route.ports) for route in self.wiring.routes.values()), default=0)
        if ways > _ADAPTIVE_WAYS:
            raise CannotRunError(
                f"lb ar: a switch has {ways} ways to a host, adaptive routing at most {_ADAPTIVE_WAYS}: use lb ops"
            )
        occupancies = self.data[self.places["occupancy_ns"][0] :]
        for port in self.wiring.ports:
            occupancy_ns = occupancy_bytes * fixed_byte_ns(port.gbps, dilation) // _BYTE_NS_ONE
            _DOUBLE_WORD.pack_into(occupancies, port.index * _DOUBLE_WORD.size, occupancy_ns)

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
        program = self.object.program_fd
        hosts = len(self.wiring.hosts)
        if not net.pairs:
            self._attach_trunk()
            return

        def equip(ports: Iterable[int]) -> None:
            with RtNetlink() as netlink:
                for port in ports:
                    # A real program's flow is a destination, a port's its data or its control.
                    real = net.isolated_hosts and port < hosts
                    netlink.set_fq(PORT_IFINDEX_BASE + port, flows=2 * hosts if real else 2)
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
            self._attach_trunk()  # the ports of the NICs, behind their pacing
            for index, host in enumerate(net.hosts):
                with in_namespace(host.pid):
                    equip([index])

    def _attach_trunk(self) -> None:
        """One interface for all ports, two flows of its sch_fq each: data and control.

        Of real programs for their NICs alone, with as many flows for what is on the hosts' links.
        """
        with RtNetlink() as netlink:
            netlink.add_pair(
                LINK_KIND, "trunk", _TRUNK_IFINDEX, "trunk-peer", _TRUNK_PEER_IFINDEX, mtu_bytes=9216, address=HOST_MAC
            )
            netlink.set_up(_TRUNK_IFINDEX, arp=False)
            netlink.set_up(_TRUNK_PEER_IFINDEX, arp=False)
            netlink.set_fq(_TRUNK_IFINDEX, flows=2 * max(len(self.wiring.ports), 2 * len(self.wiring.hosts)))
        attach_program(self.object.program_fd("port_egress"), _TRUNK_IFINDEX, Hook.TCX_EGRESS)
        attach_program(self.object.program_fd("trunk_far_end"), _TRUNK_IFINDEX, Hook.NETKIT_PRIMARY)
