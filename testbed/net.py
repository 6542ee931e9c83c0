"""Mininet's Net over netlink: its objects adopt interfaces that were made in batches.

Mininet starts a shell for every node and an ``ip`` process for every interface, a fork each (20 ms in the
virtual-time kernel; minutes for 512 hosts). Here a node's shell starts when it is first asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final

from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Host, Switch
from mininet.topo import Topo

from controller.nic.rtnetlink import RtNetlink
from testbed.topology import Port, Wiring

__all__ = ["HOST_MAC", "LINK_KIND", "PORT_IFINDEX_BASE", "FabricNet", "host_address"]

PORT_IFINDEX_BASE: Final = 1000
"""Port p has interface index 1000 + p, in whichever namespace (ebpf/include/fabric.h)."""
LINK_KIND: Final = "netkit"
"""A packet that a netkit interface sends meets the far end's program at once: no backlog between."""
HOST_MAC: Final = bytes.fromhex("020000000001")
"""Of every host: frames are forwarded by IP address, and without ARP a neighbour has one's own address."""
_HOST_ADDRESS_BASE: Final = 0x0A000001
_PREFIX_BITS: Final = 8
_ETHERNET_HEADER_BYTES: Final = 14


def host_address(host: int) -> str:
    """IPv4 address of a host: 10.0.0.1 plus its index."""
    return ".".join(str(b) for b in (_HOST_ADDRESS_BASE + host).to_bytes(4, "big"))


class _LazyShell:
    """A Mininet node whose shell starts with the first command."""

    shell: Any

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: N802 (Mininet's name)
        """Mininet calls this from the constructor: put off."""

    def start_shell(self) -> None:
        """Starts the node's shell, and with it the node's namespace if it has one."""
        if not self.shell:
            super().startShell()  # type: ignore[misc]

    def cmd(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a command in the node's shell and returns what it printed."""
        self.start_shell()
        return super().cmd(*args, **kwargs)  # type: ignore[misc]

    def sendCmd(self, *args: Any, **kwargs: Any) -> None:  # noqa: N802
        """Starts a command in the node's shell."""
        self.start_shell()
        super().sendCmd(*args, **kwargs)  # type: ignore[misc]

    def terminate(self) -> None:
        """Ends the shell, if there is one."""
        if self.shell:
            super().terminate()  # type: ignore[misc]


class FabricHost(_LazyShell, Host):  # type: ignore[misc]
    """A host. For the engine, which sends for all hosts, it is a NIC in the switches' namespace."""


class FabricSwitch(_LazyShell, Switch):  # type: ignore[misc]
    """A switch of the in-kernel fabric: ports with programs, and no process."""

    def __init__(self, name: str, **params: Any) -> None:
        self._complete = False
        super().__init__(name, **params)
        self._complete = True

    def cmd(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a command; the constructor's own, on the loopback interface, is not worth a shell."""
        return super().cmd(*args, **kwargs) if self._complete else ""

    def start(self, controllers: Iterable[Any]) -> None:
        """Nothing to start: the programs are attached with the ports."""

    def connected(self) -> bool:
        """There is no controller to wait for."""
        return True


class _FabricIntf(Intf):  # type: ignore[misc]
    """An interface that exists already."""

    def config(self, *_args: Any, **_kwargs: Any) -> dict[str, Any]:
        """Nothing: address and state were set over netlink."""
        return {}

    def delete(self) -> None:
        """Goes with the namespace that it lies in."""


class _FabricLink(Link):  # type: ignore[misc]
    """A link whose pair of interfaces FabricNet makes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["intf"] = _FabricIntf
        super().__init__(*args, **kwargs)

    @classmethod
    def makeIntfPair(cls, *_args: Any, **_kwargs: Any) -> tuple[str, str]:  # noqa: N802
        """Put off to FabricNet.connect."""
        return "", ""

    def delete(self) -> None:
        """Goes with the namespace that it lies in."""

    def status(self) -> str:
        """For Mininet's ``links``: they are up as long as there is a network."""
        return "(OK OK)"


class FabricNet(Mininet):  # type: ignore[misc]
    """A network of fabric switches, without controllers."""

    def __init__(
        self,
        topo: Topo,
        wiring: Wiring,
        *,
        mtu_bytes: int,
        pairs: bool,
        isolated_hosts: bool,
        link_kind: str = LINK_KIND,
        switch: Callable[..., FabricSwitch] = FabricSwitch,
    ) -> None:
        """``pairs``: every link is a pair of interfaces; else the fabric makes one trunk for all of them.

        ``isolated_hosts``: each host in a network namespace of its own, for real applications; needs pairs.
        ``link_kind``: what pairs are: netkit, or veth, for processes as switches and kernels before 6.7.
        """
        self.pairs = pairs
        self.link_kind = link_kind
        self.wiring = wiring
        self._mtu_bytes = mtu_bytes
        self.isolated_hosts = isolated_hosts
        Mininet.inited = True  # Mininet.init raises limits by one sysctl process each; the stage has set them
        super().__init__(topo=topo, switch=switch, host=FabricHost, link=_FabricLink, controller=None, build=False)

    def addHost(self, name: str, **params: Any) -> Any:  # noqa: N802
        """A host, with its namespace if hosts have one."""
        index = self.wiring.hosts.index(name)
        host = super().addHost(
            name, inNamespace=self.isolated_hosts, ip=f"{host_address(index)}/{_PREFIX_BITS}", **params
        )
        if self.isolated_hosts:
            host.start_shell()
        return host

    def configHosts(self) -> None:  # noqa: N802
        """Makes all links, in place of Mininet's one process an interface."""
        if self.pairs:
            self.connect()

    def connect(self) -> None:
        """All pairs of interfaces, addresses and states. Returns before carriers are up: that takes a second for every hundred."""
        mtu_bytes = self._mtu_bytes - _ETHERNET_HEADER_BYTES
        namespaces = {
            index: os.open(f"/proc/{host.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            for index, host in enumerate(self.hosts if self.isolated_hosts else [])
        }
        with RtNetlink() as netlink:
            for port in self.wiring.ports:
                if self.is_primary(port):
                    first, second = port, self.wiring.ports[port.peer]
                    netlink.add_pair(
                        self.link_kind,
                        first.name,
                        PORT_IFINDEX_BASE + first.index,
                        second.name,
                        PORT_IFINDEX_BASE + second.index,
                        mtu_bytes=mtu_bytes,
                        address=HOST_MAC,
                        peer_namespace_fd=namespaces.get(second.index),
                    )
        for namespace in namespaces.values():
            os.close(namespace)
        with RtNetlink() as netlink:
            for port in self.wiring.ports:
                if not self._in_namespace(port):
                    netlink.set_up(PORT_IFINDEX_BASE + port.index, arp=False)
        for index, host in enumerate(self.hosts):
            interface = host.intf()
            interface.ip, interface.prefixLen = host_address(index), _PREFIX_BITS
            if self.isolated_hosts:
                with in_namespace(host.pid), RtNetlink() as netlink:
                    netlink.add_ipv4(PORT_IFINDEX_BASE + index, host_address(index), _PREFIX_BITS)
                    netlink.set_up(PORT_IFINDEX_BASE + index, arp=False)
                    netlink.set_up(1)

    def is_primary(self, port: Port) -> bool:
        """Whether a port is the first of its pair: the switch's end of a host's link."""
        hosts = len(self.wiring.hosts)
        return port.index >= hosts and (port.peer < hosts or port.index < port.peer)

    def _in_namespace(self, port: Port) -> bool:
        return self.isolated_hosts and port.index < len(self.wiring.hosts)


class in_namespace:  # noqa: N801 (used as a statement)
    """``with in_namespace(pid):`` runs in the network namespace of a process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __enter__(self) -> None:
        self._own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        target = os.open(f"/proc/{self._pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        _set_namespace(target)
        os.close(target)

    def __exit__(self, *_: object) -> None:
        _set_namespace(self._own)
        os.close(self._own)


def _set_namespace(fd: int) -> None:
    """os.setns is Python 3.12."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).setns(fd, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
