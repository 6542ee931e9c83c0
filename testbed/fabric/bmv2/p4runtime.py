"""A P4Runtime client for one switch: becomes its primary controller, pushes the program, writes and reads its tables.

On the protobuf messages and gRPC alone, not on p4runtime-shell: its client (0.0.6) calls sys.exit where no server is,
prints where it is not primary, does not see that it lost mastership, sets no deadlines, and hangs for good on the
answer to a batch of which some updates were refused and some were not (P4RuntimeErrorIterator never passes an "OK").
"""

from __future__ import annotations

import enum
import queue
import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Final

from controller.errors import CannotRunError
from testbed.fabric.bmv2.bindings import DecodeError, code_pb2, grpc, p4runtime_pb2, p4runtime_pb2_grpc, status_pb2
from testbed.fabric.bmv2.pipeline import Entry, Pipeline

__all__ = ["SwitchClient", "UpdateKind"]

_BATCH: Final = 256
"""Updates a request. BMv2 takes 0.15 ms an update in batches, 0.66 ms one by one."""
_NAMED: Final = 3
"""Refused updates that an error line names."""
_DETAILS_LIMIT_BYTES: Final = 1 << 20
"""The answer to a batch that was refused has some 40 to 170 bytes an update, in a header; gRPC's own limit of 16 KiB
would turn it into RESOURCE_EXHAUSTED and lose them.
"""
_MESSAGE_LIMIT_BYTES: Final = 1 << 28
"""PI's server has the same; gRPC's own limit for what is received is 4 MiB."""
_RECONNECT_MS: Final = 100
"""A switch that has just been started listens in some tenths of a second; gRPC's own first pause is 1 s."""
_NOTICE_S: Final = 1.0
"""Longest wait for the word of who has taken over, once a call was refused for that."""
_STATUS_KEY: Final = "grpc-status-details-bin"
_REASONS: Final = {
    "ALREADY_EXISTS": "there is such an entry already",
    "NOT_FOUND": "there is no such entry",
    "RESOURCE_EXHAUSTED": "the table is full",
    "INVALID_ARGUMENT": "its program does not take that",
}


class UpdateKind(enum.Enum):
    """What a write does with an entry; the values are P4Runtime's (p4.v1.Update.Type)."""

    INSERT = 1
    MODIFY = 2
    DELETE = 3


class SwitchClient:
    """The primary controller of one switch, for as long as it is open.

    All that goes wrong is a CannotRunError, one line that begins with the switch's name and address. Whoever is
    demoted once, or loses the connection, stays out: another controller may have written since, and BMv2 promotes the
    old one again without a word when the new one leaves.
    """

    def __init__(
        self,
        name: str,
        port: int,
        pipeline: Pipeline,
        *,
        device_id: int = 1,
        election_id: int = 1,
        timeout_s: float = 10.0,
    ) -> None:
        """Connects to 127.0.0.1 and becomes primary, or fails; waits for the server at most ``timeout_s``.

        ``election_id``: 128 bits, not 0; the highest is primary. ``timeout_s`` holds for every later call as well.
        """
        self.name = name
        self.pipeline = pipeline
        self._where = f"{name} (127.0.0.1:{port})"
        self._device_id = device_id
        self._election_id = election_id
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._primary = False
        self._lost: str | None = None
        """Why nothing can be written any more."""
        self._closed = False
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(
            f"127.0.0.1:{port}",
            options=[
                ("grpc.enable_http_proxy", 0),
                ("grpc.max_receive_message_length", _MESSAGE_LIMIT_BYTES),
                ("grpc.max_metadata_size", _DETAILS_LIMIT_BYTES),
                ("grpc.absolute_max_metadata_size", _DETAILS_LIMIT_BYTES),
                ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MS),
                ("grpc.min_reconnect_backoff_ms", _RECONNECT_MS),
                ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS),
                # Else the clients of one process share connections, and a new one a dead one's pauses.
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self._stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self._stream = self._stub.StreamChannel(iter(self._requests.get, None), wait_for_ready=True)
        self._listener = threading.Thread(target=self._listen, name=f"p4runtime {name}", daemon=True)
        self._listener.start()
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = device_id
        self._set_election_id(request.arbitration)
        self._requests.put(request)
        with self._changed:
            decided = self._changed.wait_for(lambda: self._primary or self._lost is not None, timeout_s)
            lost = self._lost
        if not decided:
            lost = f"no P4Runtime server answers within {timeout_s:g} s: is the switch running? Its log says why not"
        if lost is not None:
            self.close()
            raise self._error(lost)

    def __enter__(self) -> SwitchClient:
        """Nothing more: it is open once it is made."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()

    def close(self) -> None:
        """Leaves the switch, which forwards on as it is; another controller becomes primary. May be called twice."""
        if self._closed:
            return
        self._closed = True
        # The end of the requests is the orderly way: a server may hold a cancelled stream's election id a while longer.
        self._requests.put(None)
        if self._primary:
            self._listener.join(1.0)
        self._stream.cancel()
        self._channel.close()
        self._listener.join(1.0)

    def push_pipeline(self) -> None:
        """Loads the program: the switch's tables are empty after that, its default actions the program's own."""
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(
            device_id=self._device_id,
            action=p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        )
        self._set_election_id(request)
        request.config.p4info.CopyFrom(self.pipeline.p4info)
        request.config.p4_device_config = self.pipeline.program
        self._check_standing()
        try:
            self._stub.SetForwardingPipelineConfig(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL):
                # BMv2 takes no other program after one that it refused, and crashes at the next write.
                self._lose(
                    f"the switch refused the program {self.pipeline.path.name} ({_detail(error)}): "
                    "start it anew, its log may say more"
                )
                self._check_standing()
            raise self._explained(error, "pushing the program") from None

    def write(self, entries: Iterable[Entry], kind: UpdateKind = UpdateKind.INSERT) -> None:
        """Writes entries in batches, in their order. An entry without a key, a default action, can only be modified.

        Where some are refused the others of that batch are written all the same, and later batches are not.
        """
        waiting = list(entries)
        updates = [
            p4runtime_pb2.Update(type=kind.value, entity=p4runtime_pb2.Entity(table_entry=self.pipeline.encode(entry)))
            for entry in waiting
        ]
        for start in range(0, len(waiting), _BATCH):
            request = p4runtime_pb2.WriteRequest(device_id=self._device_id, updates=updates[start : start + _BATCH])
            self._set_election_id(request)
            self._check_standing()
            try:
                self._stub.Write(request, timeout=self._timeout_s)
            except grpc.RpcError as error:
                batch = waiting[start : start + _BATCH]
                refused = _refused(error, batch)
                if refused:
                    raise self._error(self._count(kind, batch, refused)) from None
                raise self._explained(error, f"writing {len(batch)} entries") from None

    def set_default(self, entry: Entry) -> None:
        """Sets a table's default action; the entry has no key."""
        if entry.key:
            raise ValueError(f"{self.pipeline.describe(entry)} is no default action")
        self.write([entry], UpdateKind.MODIFY)

    def read_entries(self, table: str) -> list[Entry]:
        """All entries of a table but its default action, in the switch's order."""
        request = p4runtime_pb2.ReadRequest(device_id=self._device_id)
        request.entities.add().table_entry.table_id = self.pipeline.table(table).id
        entities = self._read(request, f"reading table {table}")
        return [self._decoded(entity.table_entry) for entity in entities if not entity.table_entry.is_default_action]

    def read_default(self, table: str) -> Entry:
        """A table's default action."""
        request = p4runtime_pb2.ReadRequest(device_id=self._device_id)
        wanted = request.entities.add().table_entry
        wanted.table_id = self.pipeline.table(table).id
        wanted.is_default_action = True
        entities = self._read(request, f"reading the default action of {table}")
        if len(entities) != 1:
            raise self._error(f"{len(entities)} default actions of {table} were read, not one")
        return self._decoded(entities[0].table_entry)

    def read_counter(self, name: str) -> list[int]:
        """Packets in each place of a counter array."""
        counter = self.pipeline.counter(name)
        request = p4runtime_pb2.ReadRequest(device_id=self._device_id)
        request.entities.add().counter_entry.counter_id = counter.id
        packets = [0] * counter.size
        for entity in self._read(request, f"reading counter {name}"):
            entry = entity.counter_entry
            if entry.counter_id != counter.id or not 0 <= entry.index.index < counter.size:
                raise self._error(f"a counter that was read back is not of {self.pipeline.path.name}")
            packets[entry.index.index] = entry.data.packet_count
        return packets

    def _read(self, request: Any, doing: str) -> list[Any]:
        self._check_standing()
        try:
            responses: Sequence[Any] = list(self._stub.Read(request, timeout=self._timeout_s))
        except grpc.RpcError as error:
            raise self._explained(error, doing) from None
        return [entity for response in responses for entity in response.entities]

    def _decoded(self, message: Any) -> Entry:
        try:
            return self.pipeline.decode(message)
        except CannotRunError as error:
            raise self._error(str(error)) from None

    def _set_election_id(self, message: Any) -> None:
        message.election_id.high, message.election_id.low = divmod(self._election_id, 1 << 64)

    def _listen(self) -> None:
        """The stream's own thread: whether this client is primary, until the stream ends."""
        try:
            for message in self._stream:
                if message.HasField("arbitration"):
                    self._hear(message.arbitration)
            self._lose("the switch ended the session: its log says why")
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
                # As PI's server answers an election id that another client has.
                self._lose(f"the switch refused election id {self._election_id} ({_detail(error)})")
            else:
                self._lose(f"the switch is gone ({_detail(error)}): its log says why")

    def _hear(self, arbitration: Any) -> None:
        if arbitration.status.code == code_pb2.OK:
            with self._changed:
                self._primary = True
                self._changed.notify_all()
            return
        highest = arbitration.election_id.high << 64 | arbitration.election_id.low
        other = f"another controller, with election id {highest}"
        how = "has taken over from" if self._primary else "is primary, not"
        self._lose(f"{other}, {how} this one with {self._election_id}")

    def _lose(self, why: str) -> None:
        with self._changed:
            # What came first is the reason; what follows, its consequences.
            self._lost = self._lost or why
            self._changed.notify_all()

    def _check_standing(self) -> None:
        with self._changed:
            lost = self._lost
        if self._closed:
            raise self._error("the connection was closed")
        if lost is not None:
            raise self._error(lost)

    def _explained(self, error: Any, doing: str) -> CannotRunError:
        """Of a failed call."""
        code = error.code()
        if code == grpc.StatusCode.PERMISSION_DENIED:
            self._await_loss()
            self._lose("this controller is not primary any more: another one has taken over")
        elif code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            self._lose(f"the switch is gone, while {doing} ({_detail(error)}): its log says why")
        elif code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._error(f"no answer within {self._timeout_s:g} s, while {doing}")
        elif code == grpc.StatusCode.FAILED_PRECONDITION:
            return self._error(f"{doing} failed ({_detail(error)}): the program must be pushed first")
        else:
            return self._error(f"{doing} failed: {code.name} ({_detail(error)})")
        with self._changed:
            return self._error(f"{self._lost}")

    def _await_loss(self) -> None:
        """The stream says who has taken over, but may say so a little later than the call fails."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None, _NOTICE_S)

    def _count(self, kind: UpdateKind, batch: Sequence[Entry], refused: Sequence[tuple[Entry, Any]]) -> str:
        named = []
        for entry, detail in refused[:_NAMED]:
            code = code_pb2.Code.Name(detail.canonical_code)
            reason = _REASONS.get(code, "refused")
            named.append(f"{self.pipeline.describe(entry)}: {reason} ({code}: {_one_line(detail.message)})")
        more = f"; and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        return f"{len(refused)} of {len(batch)} updates refused: {kind.name.lower()} {'; '.join(named)}{more}"

    def _error(self, why: str) -> CannotRunError:
        return CannotRunError(f"{self._where}: {why}")


def _refused(error: Any, batch: Sequence[Entry]) -> list[tuple[Entry, Any]]:
    """The refused updates of a batch, with a p4.v1.Error each.

    A google.rpc.Status in the answer's trailing header has one for every update, in their order, those that were
    carried out with code OK (P4Runtime 1.3, 12.3). Empty if the answer is not of that kind.
    """
    packed_status = dict(error.trailing_metadata() or ()).get(_STATUS_KEY, b"")
    refused = []
    try:
        status = status_pb2.Status.FromString(packed_status)
        if len(status.details) != len(batch):
            return []
        for entry, packed in zip(batch, status.details, strict=True):
            detail = p4runtime_pb2.Error()
            if not packed.Unpack(detail):
                return []
            if detail.canonical_code != code_pb2.OK:
                refused.append((entry, detail))
    except DecodeError:
        return []
    return refused


def _detail(error: Any) -> str:
    return _one_line(error.details()) or str(error.code().name)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
