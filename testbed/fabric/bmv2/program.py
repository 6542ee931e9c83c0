"""The fabric's tables as entries of p4src/fabric.p4, and how a switch is given them."""

from __future__ import annotations

from typing import Final

from controller.errors import CannotRunError
from testbed.fabric.bmv2 import P4INFO, PROGRAM
from testbed.fabric.bmv2.p4runtime import SwitchClient
from testbed.fabric.bmv2.pipeline import Entry, Pipeline
from testbed.fabric.tables import OnePort, SwitchTables, mix32

__all__ = ["fabric_pipeline", "identity", "member_entries", "program_switch", "route_entries"]

_FIRST_ADDRESS: Final = 0x0A000001
"""IPv4 address of host 0 (testbed/net.py; p4src/forward.p4 subtracts it before it hashes)."""
_MOST_PORTS: Final = 510
"""Ports are 9 bits, and 511 drops."""


def fabric_pipeline() -> Pipeline:
    """p4src/fabric.p4 as p4src/build has it."""
    return Pipeline(P4INFO, PROGRAM)


def identity(switch: SwitchTables, mark_salt: int, trimming: bool) -> Entry:
    """The salts of a switch's hashes and whether it trims, the default action of table ``identity``.

    ``mark_salt``: the experiment's, 32 bits. BMv2 draws marks by the switch's own port numbers, which all switches
    share, so that each needs a salt of its own; the kernel fabric draws by the port's index, which none share.

    ``trimming``: without it a full port drops frames of the engine too, and counts them in ``drops``.
    """
    return Entry("identity", (), "set_identity", (switch.salt, mix32(mark_salt ^ switch.index), int(trimming)))


def route_entries(switch: SwitchTables) -> list[Entry]:
    """Table ``route``: by the host's address, one port or a group."""
    return [
        Entry("route", (_FIRST_ADDRESS + host,), "forward", (switch.number_of(way.port),))
        if isinstance(way, OnePort)
        else Entry("route", (_FIRST_ADDRESS + host,), "spread", (way.first, way.ways))
        for host, way in switch.routes.items()
    ]


def member_entries(switch: SwitchTables) -> list[Entry]:
    """Table ``members``: place in the groups to port."""
    return [
        Entry("members", (place,), "forward", (switch.number_of(port),)) for place, port in enumerate(switch.members)
    ]


def program_switch(client: SwitchClient, switch: SwitchTables, mark_salt: int, trimming: bool) -> None:
    """Pushes the program and fills its tables; members come before the routes that lead to them."""
    routes, members = route_entries(switch), member_entries(switch)
    for table, entries in (("route", routes), ("members", members)):
        size = client.pipeline.table(table).size
        if len(entries) > size:
            # BMv2 would only say "Error when adding match entry to target".
            raise CannotRunError(
                f"{switch.name} needs {len(entries)} entries in table {table}, the program has room for {size}: "
                "use fewer hosts or switches"
            )
    if len(switch.ports) > _MOST_PORTS:
        raise CannotRunError(
            f"{switch.name} has {len(switch.ports)} ports, BMv2 at most {_MOST_PORTS}: use fewer hosts"
        )
    client.push_pipeline()
    client.set_default(identity(switch, mark_salt, trimming))
    client.write(members)
    client.write(routes)
