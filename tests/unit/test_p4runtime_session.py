"""A controller's session with a switch: who may write, switches that are not there or go, a program that is refused.

Against the server of p4runtime_server.py and, where it is, BMv2.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import pytest

from controller.errors import CannotRunError

try:
    from testbed.fabric.bmv2.bindings import grpc
    from testbed.fabric.bmv2.p4runtime import SwitchClient
    from testbed.fabric.bmv2.pipeline import Pipeline
    from testbed.fabric.bmv2.program import fabric_pipeline
    from tests.unit.p4runtime_server import P4RuntimeServer
    from tests.unit.p4runtime_switches import Bmv2, Switch, connect, free_port, line_of, route
except CannotRunError as missing:
    pytest.skip(str(missing), allow_module_level=True)


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
