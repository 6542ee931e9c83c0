"""Tables and counters over P4Runtime: entries come back as they went, and what is refused is named in one line.

Against the server of p4runtime_server.py and, where it is, BMv2; last, that the two answer alike.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.errors import CannotRunError
from testbed.fabric.bmv2 import PROGRAM

try:
    from testbed.fabric.bmv2.bindings import code_pb2, grpc, p4runtime_pb2, status_pb2
    from testbed.fabric.bmv2.p4runtime import UpdateKind
    from testbed.fabric.bmv2.pipeline import Entry, Pipeline
    from testbed.fabric.bmv2.program import fabric_pipeline, identity
    from tests.unit.p4runtime_server import P4RuntimeServer
    from tests.unit.p4runtime_switches import MARK_SALT, Switch, altered, connect, leaf, line_of, route
except CannotRunError as missing:
    pytest.skip(str(missing), allow_module_level=True)


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
