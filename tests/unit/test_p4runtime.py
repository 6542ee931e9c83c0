"""The P4Runtime client and the fabric's program, against the server of p4runtime_server.py and, where it is, BMv2."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import pytest

from controller.errors import CannotRunError
from testbed.fabric.bmv2 import P4INFO, PROGRAM
from testbed.fabric.tables import SwitchTables, fabric_tables, mix32
from testbed.topology import leaf_spine, wire
from tests.conftest import REPOSITORY

try:
    from testbed.fabric.bmv2.bindings import code_pb2, grpc, p4runtime_pb2, status_pb2
    from testbed.fabric.bmv2.p4runtime import SwitchClient, UpdateKind
    from testbed.fabric.bmv2.pipeline import Entry, Pipeline
    from testbed.fabric.bmv2.program import fabric_pipeline, identity, member_entries, program_switch, route_entries
    from tests.unit.p4runtime_server import P4RuntimeServer
except CannotRunError as missing:
    pytest.skip(str(missing), allow_module_level=True)

PATH_SALT, MARK_SALT = 0xDEADBEEF, 0x01020304
SERVERS = ("in-process", "bmv2")


class Switch(Protocol):
    """What the tests program."""

    port: int

    def kill(self) -> None: ...


class Bmv2:
    """A simple_switch_grpc without interfaces, device 1."""

    def __init__(self, program: str, log: Path) -> None:
        self.port, thrift_port = free_port(), free_port()
        environment = dict(os.environ)
        libraries = Path(program).resolve().parent.parent / "lib"
        if libraries.is_dir():
            # Of an installation outside the system's folders.
            old = environment.get("LD_LIBRARY_PATH")
            environment["LD_LIBRARY_PATH"] = f"{libraries}:{old}" if old else str(libraries)
        command = [program, "--no-p4", "--device-id", "1", "--thrift-port", str(thrift_port)]
        command += ["--", "--grpc-server-addr", f"127.0.0.1:{self.port}"]
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=log.parent)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(params=SERVERS)
def switch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Switch]:
    """A switch without a program: the tests' own, and BMv2 where it is."""
    if request.param == "in-process":
        started: Switch = P4RuntimeServer()
    else:
        program = os.environ.get("INCASTFREE_BMV2") or shutil.which("simple_switch_grpc")
        if program is None:
            pytest.skip("needs BMv2: put simple_switch_grpc on the PATH, or its place into INCASTFREE_BMV2")
        started = Bmv2(program, tmp_path / "switch.log")
    yield started
    started.kill()


@pytest.fixture
def server() -> Iterator[P4RuntimeServer]:
    """The tests' own switch, for what BMv2 does not do when asked."""
    started = P4RuntimeServer()
    yield started
    started.kill()


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return fabric_pipeline()


def connect(switch: Switch, pipeline: Pipeline, **options: Any) -> SwitchClient:
    return SwitchClient("leaf1", switch.port, pipeline, **options)


def leaf(hosts: int = 10, hosts_per_leaf: int = 4) -> SwitchTables:
    return fabric_tables(network(hosts, hosts_per_leaf), PATH_SALT).switches[0]


def network(hosts: int, hosts_per_leaf: int) -> Any:
    return wire(leaf_spine(hosts, hosts_per_leaf, Fraction(800), Fraction(1000), {}, {}))


def route(host: int, port: int = 1) -> Entry:
    return Entry("route", (0x0A000001 + host,), "forward", (port,))


def line_of(call: Callable[[], object]) -> str:
    """Of the CannotRunError that it ends in; the name and address that it begins with are checked, and cut off."""
    with pytest.raises(CannotRunError) as caught:
        call()
    line = str(caught.value)
    assert "\n" not in line
    match = re.fullmatch(r"leaf1 \(127\.0\.0\.1:\d+\): (.*)", line)
    assert match, line
    return match[1]


# What the fabric's tables become.


def test_a_leaf_as_entries() -> None:
    tables = leaf(4, 2)
    for trimming in (False, True):
        salts = mix32(PATH_SALT), mix32(MARK_SALT)
        assert identity(tables, MARK_SALT, trimming) == Entry("identity", (), "set_identity", (*salts, int(trimming)))
    # Ports 4, 5, 8, 10 are 1 to 4: h1, h2, spine1, spine2.
    assert route_entries(tables) == [
        Entry("route", (0x0A000001,), "forward", (1,)),
        Entry("route", (0x0A000002,), "forward", (2,)),
        Entry("route", (0x0A000003,), "spread", (0, 2)),
        Entry("route", (0x0A000004,), "spread", (0, 2)),
    ]
    assert member_entries(tables) == [Entry("members", (0,), "forward", (3,)), Entry("members", (1,), "forward", (4,))]


def test_no_two_switches_draw_the_same_marks() -> None:
    switches = fabric_tables(network(64, 8), PATH_SALT).switches
    assert len({identity(tables, MARK_SALT, True).values[1] for tables in switches}) == len(switches) == 16


@pytest.mark.parametrize("shape", [(10, 4), (4, 4), (64, 8)])
def test_every_switch_reads_back_as_it_was_programmed(
    switch: Switch, pipeline: Pipeline, shape: tuple[int, int]
) -> None:
    """On one switch one after the other, so that the program clears what the one before had."""
    with connect(switch, pipeline) as client:
        for tables in fabric_tables(network(*shape), PATH_SALT).switches:
            trimming = tables.index % 2 == 0
            program_switch(client, tables, MARK_SALT, trimming)
            assert sorted(client.read_entries("route"), key=repr) == sorted(route_entries(tables), key=repr)
            assert sorted(client.read_entries("members"), key=repr) == sorted(member_entries(tables), key=repr)
            assert client.read_entries("identity") == []
            assert client.read_default("identity") == identity(tables, MARK_SALT, trimming)
            assert client.read_default("route") == Entry("route", (), "drop_foreign")
            assert len(client.read_entries("route")) == shape[0]


def test_numbers_are_as_short_as_p4runtime_wants_them(pipeline: Pipeline) -> None:
    """BMv2 takes others as well, another switch may not (P4Runtime 1.3, 8.3)."""
    for value, data in ((0, b"\0"), (1, b"\1"), (255, b"\xff"), (256, b"\1\0"), (511, b"\1\xff")):
        message = pipeline.encode(Entry("route", (value,), "forward", (value,)))
        assert (message.match[0].exact.value, message.action.action.params[0].value) == (data, data)


@pytest.mark.parametrize("value", [0, 1, 0xFF, 0x100, 0x0A000001, 0xFFFFFFFF])
def test_numbers_of_any_size_survive(switch: Switch, pipeline: Pipeline, value: int) -> None:
    """P4Runtime cuts leading zeros, but leaves one byte of a zero."""
    with connect(switch, pipeline) as client:
        client.push_pipeline()
        entry = Entry("route", (value,), "spread", (value, value ^ 0xFFFFFFFF))
        client.write([entry])
        client.set_default(Entry("identity", (), "set_identity", (value, value, value & 1)))
        assert client.read_entries("route") == [entry]
        assert client.read_default("identity").values == (value, value, value & 1)


def test_a_full_table_takes_many_batches(switch: Switch, pipeline: Pipeline) -> None:
    entries = [route(host, host % 510 + 1) for host in range(1024)]
    with connect(switch, pipeline) as client:
        client.push_pipeline()
        client.write(entries)
        assert sorted(client.read_entries("route"), key=repr) == sorted(entries, key=repr)
        line = line_of(lambda: client.write([route(1024)]))
    assert line == (
        "1 of 1 updates refused: insert route 0x0a000401: refused (UNKNOWN: Error when adding match entry to target)"
    )
    if isinstance(switch, P4RuntimeServer):
        assert switch.write_sizes == [256, 256, 256, 256, 1]


def test_entries_change_and_go(switch: Switch, pipeline: Pipeline) -> None:
    with connect(switch, pipeline) as client:
        client.push_pipeline()
        client.write([route(0, 1), route(1, 1), route(2, 1)])
        client.write([route(1, 7)], UpdateKind.MODIFY)
        client.write([route(0)], UpdateKind.DELETE)
        assert sorted(client.read_entries("route"), key=repr) == [route(1, 7), route(2, 1)]
        line = line_of(lambda: client.write([route(0)], UpdateKind.DELETE))
        assert line == (
            "1 of 1 updates refused: delete route 0x0a000001: there is no such entry "
            "(NOT_FOUND: Cannot find match entry)"
        )
        assert "modify route 0x0a000001: there is no such entry" in line_of(
            lambda: client.write([route(0)], UpdateKind.MODIFY)
        )
        line = line_of(lambda: client.write([identity(leaf(), MARK_SALT, True)]))
        assert line == (
            "1 of 1 updates refused: insert the default action of identity: its program does not take that "
            "(INVALID_ARGUMENT: Cannot use INSERT for default entry)"
        )
    with pytest.raises(ValueError, match="route 0x0a000001 is no default action"):
        client.set_default(route(0))


def test_counters(switch: Switch, pipeline: Pipeline) -> None:
    with connect(switch, pipeline) as client:
        client.push_pipeline()
        expected = [0] * 512
        if isinstance(switch, P4RuntimeServer):
            trims, marks = pipeline.counter("trims").id, pipeline.counter("marks").id
            switch.counts = {(trims, 3): 70, (trims, 511): 2**40, (marks, 4): 1}
            expected[3], expected[511] = 70, 2**40
        assert client.read_counter("trims") == expected
        assert client.read_counter("foreign") == [0] * 512
        with pytest.raises(CannotRunError, match=r"fabric\.json has no counter 'trim': it has trims, drops, marks"):
            client.read_counter("trim")


# Errors of one write.


def test_a_duplicate_is_named_with_its_table_and_key(switch: Switch, pipeline: Pipeline) -> None:
    with connect(switch, pipeline) as client:
        client.push_pipeline()
        client.write([route(0)])
        line = line_of(lambda: client.write([route(1), route(0, 2), route(2)]))
        assert line == (
            "1 of 3 updates refused: insert route 0x0a000001: there is such an entry already "
            "(ALREADY_EXISTS: Match entry exists, use MODIFY if you wish to change action)"
        )
        # What was not refused is there, and the old entry as it was.
        assert sorted(client.read_entries("route"), key=repr) == [route(0), route(1), route(2)]
        client.write([Entry("members", (5,), "forward", (1,))])
        assert "insert members 0x00000005: there is such an entry already" in line_of(
            lambda: client.write([Entry("members", (5,), "forward", (2,))])
        )


def test_of_many_refused_updates_three_are_named(switch: Switch, pipeline: Pipeline) -> None:
    """Of 256: the details are more than gRPC takes by itself."""
    with connect(switch, pipeline) as client:
        client.push_pipeline()
        entries = [route(host) for host in range(256)]
        client.write(entries)
        line = line_of(lambda: client.write([*entries[1:], route(300), route(301)]))
        assert line.startswith("255 of 256 updates refused: insert route 0x0a000002: there is such an entry already (")
        assert "; route 0x0a000003: there" in line
        assert "; route 0x0a000004: there" in line
        assert "0x0a000005" not in line
        assert line.endswith("; and 252 more")
        # The batch of the refused ones was carried out as far as possible, the next was not sent.
        assert len(client.read_entries("route")) == 257
        assert route(301) not in client.read_entries("route")


def altered(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    """A copy of the p4info with other text in it."""
    text = P4INFO.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "altered.p4info.txt"
    path.write_text(text)
    return path


def test_entries_of_another_program(switch: Switch, pipeline: Pipeline, tmp_path: Path) -> None:
    other = Pipeline(altered(tmp_path, (f"id: {pipeline.table('members').id}", "id: 33554433")), PROGRAM)
    with connect(switch, other, election_id=1) as client:
        client.push_pipeline()
        client.write([Entry("members", (0,), "forward", (1,))])
    with connect(switch, pipeline, election_id=1) as client:
        line = line_of(lambda: client.write([route(0), Entry("members", (0,), "forward", (1,))]))
        assert line == (
            "1 of 2 updates refused: insert members 0x00000000: its program does not take that "
            "(INVALID_ARGUMENT: Invalid P4 id)"
        )
        line = line_of(lambda: client.read_entries("members"))
        assert line == "reading table members failed: INVALID_ARGUMENT (Invalid P4 id)"


def test_what_is_read_back_of_another_program(server: P4RuntimeServer, pipeline: Pipeline, tmp_path: Path) -> None:
    forward = pipeline.table("route").actions["forward"].id
    other = Pipeline(altered(tmp_path, (f"id: {forward}", "id: 16777217")), PROGRAM)
    with connect(server, other) as client:
        client.push_pipeline()
        client.write([route(0)])
    with connect(server, pipeline) as client:
        line = line_of(lambda: client.read_entries("route"))
    assert line == "an entry that was read back is not of fabric.json: the switch runs another program"


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (Entry("rout", (1,), "forward", (1,)), "has no table 'rout': it has identity, route, members"),
        (
            Entry("members", (1,), "spread", (1, 1)),
            "table members has no action 'spread': it has forward, drop_foreign",
        ),
        (Entry("route", (1, 2), "forward", (1,)), "the key of route has 1 fields, not 2"),
        (Entry("route", (1 << 32,), "forward", (1,)), "4294967296 does not fit hdr.ipv4.destination's 32 bits"),
        (Entry("route", (1,), "forward", ()), "action forward has 1 fields, not 0"),
        (Entry("route", (1,), "forward", (512,)), "action forward: 512 does not fit port's 9 bits"),
        (Entry("route", (1,), "forward", (-1,)), "-1 does not fit port's 9 bits"),
        (Entry("identity", (1,), "NoAction"), "the key of identity has 0 fields, not 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_program_does_not_know_is_not_sent(
    server: P4RuntimeServer, pipeline: Pipeline, entry: Entry, reason: str
) -> None:
    with connect(server, pipeline) as client:
        client.push_pipeline()
        with pytest.raises(CannotRunError) as caught:
            client.write([route(0), entry])
    assert str(caught.value).startswith("fabric.json")
    assert str(caught.value).endswith(reason)
    assert server.write_sizes == []


@pytest.mark.parametrize("details", [b"", b"\xff\xff", "count", "kind"])
def test_an_answer_without_usable_details_is_one_line_too(
    server: P4RuntimeServer, pipeline: Pipeline, details: bytes | str
) -> None:
    status = status_pb2.Status(code=2)
    status.details.add().Pack(p4runtime_pb2.Error(canonical_code=3) if details == "count" else status_pb2.Status())
    server.foreign_error = details if isinstance(details, bytes) else status.SerializeToString()
    entries = [route(host) for host in range(2 if details == "count" else 1)]
    with connect(server, pipeline) as client:
        client.push_pipeline()
        line = line_of(lambda: client.write(entries))
    assert line == f"writing {len(entries)} entries failed: UNKNOWN (not as specified)"


# Who may write.


def test_nothing_is_written_before_the_program(switch: Switch, pipeline: Pipeline) -> None:
    with connect(switch, pipeline) as client:
        for call in (lambda: client.write([route(0)]), lambda: client.read_entries("route")):
            line = line_of(call)
            assert line.endswith(
                "failed (No forwarding pipeline config set for this device): the program must be pushed first"
            )
        client.push_pipeline()
        client.write([route(0)])


def test_a_lower_election_id_is_not_primary(switch: Switch, pipeline: Pipeline) -> None:
    with connect(switch, pipeline, election_id=2**64 + 5) as client:
        line = line_of(lambda: connect(switch, pipeline, election_id=7))
        assert line == f"another controller, with election id {2**64 + 5}, is primary, not this one with 7"
        client.push_pipeline()


def test_an_election_id_in_use_is_refused(switch: Switch, pipeline: Pipeline) -> None:
    with connect(switch, pipeline, election_id=5) as client:
        line = line_of(lambda: connect(switch, pipeline, election_id=5))
        assert line == "the switch refused election id 5 (Election id already exists)"
        client.push_pipeline()


def test_whoever_is_demoted_stays_out(switch: Switch, pipeline: Pipeline) -> None:
    with connect(switch, pipeline, election_id=5) as old:
        old.push_pipeline()
        with connect(switch, pipeline, election_id=9) as new:
            expected = "another controller, with election id 9, has taken over from this one with 5"
            assert line_of(lambda: old.write([route(0)])) == expected
            new.push_pipeline()
            new.write([route(1)])
        # The switch makes the old one primary again: its tables are not what it believes.
        for call in (lambda: old.write([route(0)]), old.push_pipeline, lambda: old.read_entries("route")):
            assert line_of(call) == expected
    with connect(switch, pipeline, election_id=5) as again:
        assert again.read_entries("route") == [route(1)]


def test_a_demotion_while_nothing_is_called(server: P4RuntimeServer, pipeline: Pipeline) -> None:
    with connect(server, pipeline) as client:
        client.push_pipeline()
        server.demote()
        assert line_of(lambda: client.write([route(0)])) == (
            "another controller, with election id 99, has taken over from this one with 1"
        )
    assert server.write_sizes == []


def test_a_demotion_of_which_only_the_write_tells(server: P4RuntimeServer, pipeline: Pipeline) -> None:
    with connect(server, pipeline) as client:
        client.push_pipeline()
        server.demote(notify=False)
        expected = "this controller is not primary any more: another one has taken over"
        assert line_of(lambda: client.write([route(0)])) == expected
        assert line_of(client.push_pipeline) == expected


def test_another_device_is_refused(server: P4RuntimeServer, pipeline: Pipeline) -> None:
    with connect(server, pipeline, device_id=7) as client:
        assert "not primary" in line_of(client.push_pipeline)


def test_a_closed_client_writes_nothing(switch: Switch, pipeline: Pipeline) -> None:
    before = threading.active_count()
    client = connect(switch, pipeline)
    client.push_pipeline()
    client.close()
    client.close()
    assert client._stream.code() == grpc.StatusCode.OK  # its end, not a cancellation
    assert line_of(lambda: client.write([route(0)])) == "the connection was closed"
    assert not [thread for thread in threading.enumerate() if thread.name == "p4runtime leaf1"]
    assert threading.active_count() <= before + (8 if isinstance(switch, P4RuntimeServer) else 0)
    # Its election id is free again at once.
    with connect(switch, pipeline) as next_one:
        next_one.write([route(0)])


# Switches that are not there, or not any more.


def test_no_server(pipeline: Pipeline) -> None:
    with pytest.raises(CannotRunError) as caught:
        SwitchClient("leaf1", free_port(), pipeline, timeout_s=0.4)
    assert re.fullmatch(
        r"leaf1 \(127\.0\.0\.1:\d+\): no P4Runtime server answers within 0\.4 s: "
        r"is the switch running\? Its log says why not",
        str(caught.value),
    )


def test_a_server_that_comes_a_little_later(pipeline: Pipeline) -> None:
    """As BMv2, which listens only some tenths of a second after it was started."""
    port = free_port()
    started: list[P4RuntimeServer] = []
    timer = threading.Timer(0.3, lambda: started.append(P4RuntimeServer(port)))
    timer.start()
    try:
        with SwitchClient("leaf1", port, pipeline, timeout_s=10) as client:
            client.push_pipeline()
        assert started[0].program == pipeline.program
    finally:
        timer.join()
        started[0].kill()


@pytest.mark.parametrize("call", ["write", "read", "counter", "push"])
def test_a_switch_that_is_gone_in_the_middle(switch: Switch, pipeline: Pipeline, call: str) -> None:
    with connect(switch, pipeline) as client:
        client.push_pipeline()
        client.write([route(0)])
        switch.kill()
        calls: dict[str, Callable[[], object]] = {
            "write": lambda: client.write([route(1)]),
            "read": lambda: client.read_entries("route"),
            "counter": lambda: client.read_counter("trims"),
            "push": client.push_pipeline,
        }
        for _ in range(2):
            line = line_of(calls[call])
            assert line.startswith("the switch is gone")
            assert line.endswith("its log says why")


def test_a_switch_that_goes_during_a_write(server: P4RuntimeServer, pipeline: Pipeline) -> None:
    with connect(server, pipeline) as client:
        client.push_pipeline()
        server.silent.set()
        timer = threading.Timer(0.2, server.kill)
        timer.start()
        line = line_of(lambda: client.write([route(1)]))
        timer.join()
    assert line.startswith("the switch is gone")


def test_a_switch_that_does_not_answer(server: P4RuntimeServer, pipeline: Pipeline) -> None:
    with connect(server, pipeline, timeout_s=0.5) as client:
        client.push_pipeline()
        server.silent.set()
        assert line_of(lambda: client.write([route(0)])) == "no answer within 0.5 s, while writing 1 entries"
        server.silent.clear()


def test_a_session_that_the_server_ends(server: P4RuntimeServer, pipeline: Pipeline) -> None:
    with connect(server, pipeline) as client:
        client.push_pipeline()
        server.hang_up()
        client._listener.join(5)
        assert line_of(lambda: client.write([route(0)])) == "the switch ended the session: its log says why"


# The program.


def test_a_refused_program_is_the_switch_s_last(switch: Switch) -> None:
    """BMv2 takes no program after bad JSON, and crashes at the next write: there must be none."""
    pipeline = fabric_pipeline()
    good = pipeline.program
    pipeline.program = b"not json"
    if isinstance(switch, P4RuntimeServer):
        switch.refuses_programs = "Unexpected error in RPC handling"
    with connect(switch, pipeline) as client:
        expected = (
            "the switch refused the program fabric.json (Unexpected error in RPC handling): "
            "start it anew, its log may say more"
        )
        assert line_of(client.push_pipeline) == expected
        pipeline.program = good
        assert line_of(client.push_pipeline) == expected
        assert line_of(lambda: client.write([route(0)])) == expected
    if isinstance(switch, Bmv2):
        assert switch.process.poll() is None


ALTERATIONS = [
    ('name: "FabricIngress.forward.members"', 'name: "FabricIngress.forward.memberz"', "table members"),
    ('name: "meta.member"', 'name: "meta.membre"', "table members"),
    ("action_refs {\n    id: 19421580\n  }\n", "", "table route"),
    ("  size: 1\n", "  size: 2\n", "the size of table identity"),
    ('name: "port"\n    bitwidth: 9', 'name: "port"\n    bitwidth: 16', "action forward"),
    ('name: "trims"', 'name: "trimz"', "counter trims"),
]


@pytest.mark.parametrize(("old", "new", "what"), ALTERATIONS, ids=[what for _, _, what in ALTERATIONS])
def test_files_of_different_programs(tmp_path: Path, old: str, new: str, what: str) -> None:
    with pytest.raises(CannotRunError) as caught:
        Pipeline(altered(tmp_path, (old, new)), PROGRAM)
    assert str(caught.value) == (
        f"{PROGRAM} and altered.p4info.txt are of different programs: they differ in {what}; make p4 compiles both anew"
    )


@pytest.mark.parametrize(
    ("p4info", "program", "line"),
    [
        (None, b"not json", "program: not a program for BMv2 (JSONDecodeError: "),
        (None, b"{}", "program: not a program for BMv2 (KeyError: 'pipelines')"),
        (None, b"[]", "program: not a program for BMv2 (TypeError: "),
        (b"tables {", None, "p4info: not a p4info in text: "),
        (b"\xff", None, "p4info: not a p4info in text: "),
        (
            P4INFO.read_bytes().replace(b"EXACT", b"LPM") if P4INFO.exists() else b"",
            None,
            "p4info: table route matches",
        ),
    ],
)
def test_files_that_are_no_program(tmp_path: Path, p4info: bytes | None, program: bytes | None, line: str) -> None:
    (tmp_path / "p4info").write_bytes(P4INFO.read_bytes() if p4info is None else p4info)
    (tmp_path / "program").write_bytes(PROGRAM.read_bytes() if program is None else program)
    with pytest.raises(CannotRunError) as caught:
        Pipeline(tmp_path / "p4info", tmp_path / "program")
    assert str(caught.value).startswith(f"{tmp_path}/{line}")
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for p4info, program in ((tmp_path / "none", PROGRAM), (P4INFO, tmp_path / "none")):
        with pytest.raises(CannotRunError) as caught:
            Pipeline(p4info, program)
        assert str(caught.value) == f"{tmp_path}/none: No such file or directory; make p4 compiles both anew"


@pytest.mark.parametrize(
    ("tables", "line"),
    [
        (
            SwitchTables(0, "s", 1, tuple(range(1100)), {}, tuple(range(1100))),
            "s needs 1100 entries in table members, the program has room for 1024: use fewer hosts or switches",
        ),
        (SwitchTables(0, "s", 1, tuple(range(511)), {}, ()), "s has 511 ports, BMv2 at most 510: use fewer hosts"),
    ],
    ids=["members", "ports"],
)
def test_a_switch_that_is_too_large(
    server: P4RuntimeServer, pipeline: Pipeline, tables: SwitchTables, line: str
) -> None:
    with connect(server, pipeline) as client, pytest.raises(CannotRunError) as caught:
        program_switch(client, tables, MARK_SALT, True)
    assert str(caught.value) == line
    assert server.program == b""


@pytest.mark.parametrize(
    ("sabotage", "line"),
    [
        ("sys.modules['grpc'] = None", "the BMv2 fabric needs a Python package that is missing (grpc)"),
        ("sys.modules['p4'] = None", "the BMv2 fabric needs a Python package that is missing (p4)"),
        (
            "class Refuse:\n"
            "    def find_spec(self, name, *_):\n"
            "        if name == 'p4.config.v1.p4types_pb2':\n"
            "            raise TypeError('Descriptors cannot be created directly.\\nIf this call came from ...')\n"
            "sys.meta_path.insert(0, Refuse())",
            "protobuf is too new for the P4Runtime bindings",
        ),
    ],
    ids=["grpc", "p4runtime", "protobuf"],
)
def test_bindings_that_are_missing_are_one_line(sabotage: str, line: str) -> None:
    program = f"import sys\n{sabotage}\nimport testbed.fabric.tables, testbed.fabric.bmv2\n"
    program += "from controller.errors import CannotRunError\n"
    program += "try:\n    import testbed.fabric.bmv2.program\nexcept CannotRunError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{line}: pip install -e '.[bmv2]' brings what works together\n", "")


# The tests' own server answers as BMv2 does.


def update(kind: int, change: Callable[[Any], None] = lambda _: None) -> Any:
    """One of table route, of key 9 to port 1, changed."""
    result = p4runtime_pb2.Update(type=kind)
    entry = result.entity.table_entry
    pipeline = fabric_pipeline()
    entry.CopyFrom(pipeline.encode(Entry("route", (9,), "forward", (1,))))
    change(result)
    return result


def entry_of(change: Callable[[Any], object]) -> Callable[[Any], None]:
    def change_update(changed: Any) -> None:
        change(changed.entity.table_entry)

    return change_update


def default(entry: Any) -> None:
    entry.is_default_action = True
    entry.ClearField("match")


INSERT, MODIFY, DELETE = 1, 2, 3
INVALID = 3
QUESTIONS: dict[str, tuple[int, Callable[[Any], None], int, str]] = {
    "insert": (INSERT, lambda _: None, 0, ""),
    "no kind": (0, lambda _: None, INVALID, "Update type is not set"),
    "no entity": (INSERT, lambda u: u.ClearField("entity"), 2, "Incorrect entity type"),
    "table": (INSERT, entry_of(lambda e: setattr(e, "table_id", 33554433)), INVALID, "Invalid P4 id"),
    "no action": (INSERT, entry_of(lambda e: e.ClearField("action")), INVALID, "'action' field must be set"),
    "action": (INSERT, entry_of(lambda e: setattr(e.action.action, "action_id", 16777217)), INVALID, "Invalid P4 id"),
    "action of another table": (
        INSERT,
        entry_of(lambda e: setattr(e.action.action, "action_id", 32149067)),
        INVALID,
        "Invalid action for table",
    ),
    "no parameters": (
        INSERT,
        entry_of(lambda e: e.action.action.ClearField("params")),
        INVALID,
        "Unexpected number of action parameters",
    ),
    "parameter": (
        INSERT,
        entry_of(lambda e: setattr(e.action.action.params[0], "param_id", 2)),
        INVALID,
        "Unknown action parameter",
    ),
    "wide parameter": (
        INSERT,
        entry_of(lambda e: setattr(e.action.action.params[0], "value", b"\x02\x00")),
        INVALID,
        "Bytestring provided does not fit within 9 bits",
    ),
    "padded parameter": (INSERT, entry_of(lambda e: setattr(e.action.action.params[0], "value", b"\0\0\x02")), 0, ""),
    "no key": (INSERT, entry_of(lambda e: e.ClearField("match")), INVALID, "Missing non-ternary field in match key"),
    "field": (
        INSERT,
        entry_of(lambda e: setattr(e.match[0], "field_id", 2)),
        INVALID,
        "Missing non-ternary field in match key",
    ),
    "field twice": (
        INSERT,
        entry_of(lambda e: e.match.add(field_id=1)),
        INVALID,
        "Too many fields in match key",
    ),
    "wide key": (
        INSERT,
        entry_of(lambda e: setattr(e.match[0].exact, "value", b"\x01\0\0\0\0")),
        INVALID,
        "Bytestring provided does not fit within 32 bits",
    ),
    "priority": (
        INSERT,
        entry_of(lambda e: setattr(e, "priority", 1)),
        INVALID,
        "Non-zero priority for non-ternary match",
    ),
    "modify nothing": (MODIFY, lambda _: None, 5, "Cannot find match entry"),
    "delete nothing": (DELETE, lambda _: None, 5, "Cannot find match entry"),
    "insert a default": (INSERT, entry_of(default), INVALID, "Cannot use INSERT for default entry"),
    "delete a default": (DELETE, entry_of(default), INVALID, "Cannot use DELETE for default entry"),
    "default": (MODIFY, entry_of(default), 0, ""),
    "default with a key": (
        MODIFY,
        entry_of(lambda e: setattr(e, "is_default_action", True)),
        INVALID,
        "Non-empty key for default entry",
    ),
}


def test_both_servers_answer_alike(switch: Switch, pipeline: Pipeline) -> None:
    with connect(switch, pipeline) as client:
        client.push_pipeline()

        def ask(*updates: Any) -> list[tuple[int, str]]:
            request = p4runtime_pb2.WriteRequest(device_id=1, updates=updates)
            request.election_id.low = 1
            try:
                client._stub.Write(request, timeout=10)
            except grpc.RpcError as error:
                # Not what the call itself failed with, but what its details say.
                answer = (error.code(), error.details(), dict(error.trailing_metadata())["grpc-status-details-bin"])
            else:
                return [(0, "")] * len(updates)
            assert answer[:2] == (grpc.StatusCode.UNKNOWN, "")
            status = status_pb2.Status.FromString(answer[2])
            details = []
            for packed in status.details:
                detail = p4runtime_pb2.Error()
                assert packed.Unpack(detail)
                assert detail.space == ("ALL-sswitch-p4org" if detail.canonical_code else "")
                details.append((detail.canonical_code, detail.message))
            return details

        for name, (kind, change, code, message) in QUESTIONS.items():
            assert (name, ask(update(kind, change))) == (name, [(code, message)])
            client.write(client.read_entries("route"), UpdateKind.DELETE)
        exists = (code_pb2.ALREADY_EXISTS, "Match entry exists, use MODIFY if you wish to change action")
        assert ask(update(INSERT), update(INSERT), update(0)) == [(0, ""), exists, (INVALID, "Update type is not set")]
