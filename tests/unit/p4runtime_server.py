"""A P4Runtime server in the test's own process, on a real port: it answers as BMv2 1.15.5 (PI's server) does.

test_p4runtime_tables.py puts the same questions to both where BMv2 is. What BMv2 never does by itself, it can be told to do:
refuse a program, fall silent, drop all connections, demote its clients.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

from testbed.fabric.bmv2.bindings import code_pb2, grpc, p4runtime_pb2, p4runtime_pb2_grpc, status_pb2

SPACE = "ALL-sswitch-p4org"
Key = tuple[tuple[int, int], ...]
"""(field, value) by field."""


class UpdateError(Exception):
    """One refused update."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.detail = p4runtime_pb2.Error(canonical_code=code, message=message, space=SPACE)


class Connection:
    """One open stream."""

    def __init__(self, election_id: int) -> None:
        self.election_id = election_id
        self.responses: queue.SimpleQueue[Any] = queue.SimpleQueue()


class P4RuntimeServer(p4runtime_pb2_grpc.P4RuntimeServicer):  # type: ignore[misc]
    """One switch, device 1."""

    def __init__(self, port: int = 0) -> None:
        self.refuses_programs: str | None = None
        """Answer to a program, instead of taking it."""
        self.foreign_error: bytes | None = None
        """Status details of an answer to every write, instead of carrying it out."""
        self.silent = threading.Event()
        """While set, writes get no answer."""
        self.write_sizes: list[int] = []
        self.counts: dict[tuple[int, int], int] = {}
        """(counter, index) to packets."""
        self.p4info: Any = None
        self.program = b""
        self._killed = False
        self._lock = threading.RLock()
        self._connections: list[Connection] = []
        self._entries: dict[int, dict[Key, Any]] = {}
        self._defaults: dict[int, Any] = {}
        self._server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=12), options=[("grpc.max_receive_message_length", 1 << 28)]
        )
        p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(self, self._server)
        self.port: int = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    def kill(self) -> None:
        """All connections end at once, and no new one is taken."""
        self._killed = True
        stopped = self._server.stop(0)
        self.silent.clear()
        with self._lock:
            for connection in self._connections:
                connection.responses.put(None)
        stopped.wait()

    def hang_up(self) -> None:
        """All streams end in order, as of a server that shuts down."""
        with self._lock:
            for connection in self._connections:
                connection.responses.put(None)

    def demote(self, *, notify: bool = True) -> None:
        """As if a controller with election id 99 had come; ``notify``: tell the others."""
        with self._lock:
            self._connections.insert(0, Connection(99))
            if notify:
                self._notify(self._connections)

    # The service. Names are the protocol's.

    def StreamChannel(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        first = next(requests, None)
        if first is None:
            return
        own = Connection(_number(first.arbitration.election_id))
        with self._lock:
            if any(other.election_id == own.election_id for other in self._connections):
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Election id already exists")
            self._connections.append(own)
            self._connections.sort(key=lambda connection: -connection.election_id)
            self._notify(self._connections if own is self._connections[0] else [own])

        def drain() -> None:
            try:
                for _ in requests:
                    pass
            except Exception:  # noqa: BLE001 (a bare one is what gRPC raises where the client is gone)
                pass
            own.responses.put(None)

        threading.Thread(target=drain, daemon=True).start()
        yield from iter(own.responses.get, None)
        with self._lock:
            was_primary = own is self._connections[0]
            self._connections.remove(own)
            if was_primary:
                self._notify(self._connections)
        if self._killed:
            # A dead process sends no orderly end.
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    def SetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._require_primary(request, context)
        if self.refuses_programs is not None:
            context.abort(grpc.StatusCode.UNKNOWN, self.refuses_programs)
        with self._lock:
            self.p4info = request.config.p4info
            self.program = request.config.p4_device_config
            self._entries = {table.preamble.id: {} for table in self.p4info.tables}
            self._defaults = {}
            for table in self.p4info.tables:
                entry = p4runtime_pb2.TableEntry(table_id=table.preamble.id, is_default_action=True)
                # The p4info does not say which is a table's default; those of fabric.p4 have no parameters.
                plain = [
                    action.preamble.id
                    for action in self.p4info.actions
                    if not action.params and action.preamble.id in {reference.id for reference in table.action_refs}
                ]
                entry.action.action.action_id = plain[0]
                self._defaults[table.preamble.id] = entry
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def Write(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._require_primary(request, context)
        self._require_program(context)
        self.write_sizes.append(len(request.updates))
        while self.silent.is_set() and context.is_active():
            threading.Event().wait(0.01)
        if self.foreign_error is not None:
            context.set_trailing_metadata([("grpc-status-details-bin", self.foreign_error)])
            context.abort(grpc.StatusCode.UNKNOWN, "not as\nspecified")
        status = status_pb2.Status(code=code_pb2.UNKNOWN)
        refused = False
        with self._lock:
            for update in request.updates:
                detail = p4runtime_pb2.Error()
                try:
                    self._carry_out(update)
                except UpdateError as error:
                    detail = error.detail
                    refused = True
                status.details.add().Pack(detail)
        if refused:
            context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
            context.abort(grpc.StatusCode.UNKNOWN, "")
        return p4runtime_pb2.WriteResponse()

    def Read(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self._require_program(context)
        response = p4runtime_pb2.ReadResponse()
        with self._lock:
            for entity in request.entities:
                if entity.HasField("counter_entry"):
                    self._read_counter(entity.counter_entry, response, context)
                    continue
                wanted = entity.table_entry
                if wanted.table_id not in self._entries:
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Invalid P4 id")
                if wanted.is_default_action:
                    response.entities.add().table_entry.CopyFrom(self._defaults[wanted.table_id])
                    continue
                for entry in self._entries[wanted.table_id].values():
                    response.entities.add().table_entry.CopyFrom(entry)
        yield response

    def _read_counter(self, wanted: Any, response: Any, context: Any) -> None:
        for counter in self.p4info.counters:
            if counter.preamble.id == wanted.counter_id:
                for index in range(counter.size):
                    entry = response.entities.add().counter_entry
                    entry.counter_id = wanted.counter_id
                    entry.index.index = index
                    entry.data.packet_count = self.counts.get((wanted.counter_id, index), 0)
                return
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Invalid P4 id")

    def _notify(self, connections: list[Connection]) -> None:
        for connection in connections:
            highest = self._connections[0]
            connection.responses.put(_standing(highest.election_id, primary=connection is highest))

    def _require_primary(self, request: Any, context: Any) -> None:
        with self._lock:
            primary = self._connections[0].election_id if self._connections else None
        if request.device_id != 1 or primary != _number(request.election_id):
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "Not primary")

    def _require_program(self, context: Any) -> None:
        if self.p4info is None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "No forwarding pipeline config set for this device")

    def _carry_out(self, update: Any) -> None:
        invalid = code_pb2.INVALID_ARGUMENT
        if update.type == p4runtime_pb2.Update.UNSPECIFIED:
            raise UpdateError(invalid, "Update type is not set")
        if not update.entity.HasField("table_entry"):
            raise UpdateError(code_pb2.UNKNOWN, "Incorrect entity type")
        entry = update.entity.table_entry
        tables = {table.preamble.id: table for table in self.p4info.tables}
        if entry.table_id not in tables:
            raise UpdateError(invalid, "Invalid P4 id")
        table = tables[entry.table_id]
        if entry.is_default_action:
            if entry.match:
                raise UpdateError(invalid, "Non-empty key for default entry")
            if update.type != p4runtime_pb2.Update.MODIFY:
                name = p4runtime_pb2.Update.Type.Name(update.type)
                raise UpdateError(invalid, f"Cannot use {name} for default entry")
            self._defaults[entry.table_id] = self._canonical(table, entry)
            return
        key = _key(table, entry)
        stored = self._entries[entry.table_id]
        if update.type == p4runtime_pb2.Update.INSERT:
            canonical = self._canonical(table, entry)
            if key in stored:
                raise UpdateError(
                    code_pb2.ALREADY_EXISTS, "Match entry exists, use MODIFY if you wish to change action"
                )
            if len(stored) >= table.size or not table.match_fields:
                raise UpdateError(code_pb2.UNKNOWN, "Error when adding match entry to target")
            stored[key] = canonical
            return
        if key not in stored:
            raise UpdateError(code_pb2.NOT_FOUND, "Cannot find match entry")
        if update.type == p4runtime_pb2.Update.MODIFY:
            stored[key] = self._canonical(table, entry)
        else:
            del stored[key]

    def _canonical(self, table: Any, entry: Any) -> Any:
        """The entry as it is read back: values without leading zeros."""
        if not entry.HasField("action"):
            raise UpdateError(code_pb2.INVALID_ARGUMENT, "'action' field must be set")
        actions = {action.preamble.id: action for action in self.p4info.actions}
        wanted = entry.action.action
        if wanted.action_id not in actions:
            raise UpdateError(code_pb2.INVALID_ARGUMENT, "Invalid P4 id")
        if wanted.action_id not in {reference.id for reference in table.action_refs}:
            raise UpdateError(code_pb2.INVALID_ARGUMENT, "Invalid action for table")
        params = {param.id: param.bitwidth for param in actions[wanted.action_id].params}
        if len(wanted.params) != len(params):
            raise UpdateError(code_pb2.INVALID_ARGUMENT, "Unexpected number of action parameters")
        result = p4runtime_pb2.TableEntry()
        result.CopyFrom(entry)
        for match in result.match:
            match.exact.value = _bytes(_value(match.exact.value, 1 << 16))
        for param in result.action.action.params:
            if param.param_id not in params:
                raise UpdateError(code_pb2.INVALID_ARGUMENT, "Unknown action parameter")
            param.value = _bytes(_value(param.value, params[param.param_id]))
        return result


def _key(table: Any, entry: Any) -> Key:
    if len(entry.match) > len(table.match_fields):
        raise UpdateError(code_pb2.INVALID_ARGUMENT, "Too many fields in match key")
    given = {match.field_id: match.exact.value for match in entry.match}
    if set(given) != {field.id for field in table.match_fields}:
        raise UpdateError(code_pb2.INVALID_ARGUMENT, "Missing non-ternary field in match key")
    if entry.priority:
        raise UpdateError(code_pb2.INVALID_ARGUMENT, "Non-zero priority for non-ternary match")
    return tuple((field.id, _value(given[field.id], field.bitwidth)) for field in table.match_fields)


def _standing(highest: int, *, primary: bool) -> Any:
    response = p4runtime_pb2.StreamMessageResponse()
    response.arbitration.device_id = 1
    response.arbitration.election_id.high, response.arbitration.election_id.low = divmod(highest, 1 << 64)
    response.arbitration.status.code = code_pb2.OK if primary else code_pb2.ALREADY_EXISTS
    response.arbitration.status.message = "Is primary" if primary else "Is backup"
    return response


def _number(election_id: Any) -> int:
    return int(election_id.high) << 64 | int(election_id.low)


def _value(data: bytes, bits: int) -> int:
    value = int.from_bytes(data, "big")
    if value >= 1 << bits:
        raise UpdateError(code_pb2.INVALID_ARGUMENT, f"Bytestring provided does not fit within {bits} bits")
    return value


def _bytes(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
