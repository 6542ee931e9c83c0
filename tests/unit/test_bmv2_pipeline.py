"""The fabric's program for BMv2: what its tables become, and files that are no program or of two different ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from controller.errors import CannotRunError
from testbed.fabric.bmv2 import P4INFO, PROGRAM
from testbed.fabric.tables import SwitchTables, fabric_tables, mix32
from tests.conftest import REPOSITORY

try:
    from testbed.fabric.bmv2.pipeline import Entry, Pipeline
    from testbed.fabric.bmv2.program import identity, member_entries, program_switch, route_entries
    from tests.unit.p4runtime_server import P4RuntimeServer
    from tests.unit.p4runtime_switches import MARK_SALT, PATH_SALT, Switch, altered, connect, leaf, network
except CannotRunError as missing:
    pytest.skip(str(missing), allow_module_level=True)


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


def test_numbers_are_as_short_as_p4runtime_wants_them(pipeline: Pipeline) -> None:
    """BMv2 takes others as well, another switch may not (P4Runtime 1.3, 8.3)."""
    for value, data in ((0, b"\0"), (1, b"\1"), (255, b"\xff"), (256, b"\1\0"), (511, b"\1\xff")):
        message = pipeline.encode(Entry("route", (value,), "forward", (value,)))
        assert (message.match[0].exact.value, message.action.action.params[0].value) == (data, data)


# Its files.


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
