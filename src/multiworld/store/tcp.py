"""The embedded store: a server on the progress thread of the process that hosts it, and its client."""

from __future__ import annotations

import itertools
import logging
from functools import partial

from ..errors import ProtocolError, StoreError
from ..wire.connection.connection import Connection
from ..wire.connection.frames import Header, Kind, pack_frame
from ..wire.endpoints.listener import Listener, Pending
from ..wire.progress.operation import Operation
from ..wire.progress.thread import ProgressThread
from .client import Answer, StoreClient
from .state import Reply, Request, Status, StoreState, pack_strings, unpack_strings

logger = logging.getLogger(__name__)

PURPOSE = "store"
NO_ANSWER = 0  # the number of requests that want none


class TCPStoreServer:
    """Serves one ``StoreState`` on an address of its own. Create and close it on the progress thread."""

    def __init__(self, loop: ProgressThread, host: str, port: int, token: bytes) -> None:
        self._state = StoreState()
        self._clients: dict[int, Connection] = {}
        self._ids = itertools.count()
        self._listener = Listener(loop, host, port, token, {PURPOSE: self._admit})
        self.host, self.port = self._listener.host, self._listener.port

    def close(self) -> None:
        self._listener.close()
        for connection in list(self._clients.values()):
            connection.abort("the store was closed")

    def __len__(self) -> int:
        return len(self._state)

    def put(self, key: str, value: bytes) -> None:
        """Set a key here, where the store is served."""
        self._reply(self._state.handle(None, NO_ANSWER, Request.SET, 0, [key.encode(), value]))

    def _admit(self, pending: Pending) -> None:
        client = next(self._ids)
        self._clients[client] = pending.connection
        pending.accept(_ServedClient(self, client))

    def request(self, client: int, header: Header, meta: bytes) -> None:
        replies = self._state.handle(client, header.seq, header.tag, header.flags, unpack_strings(meta))
        self._reply([reply for reply in replies if reply.seq != NO_ANSWER])

    def disconnect(self, client: int) -> None:
        self._clients.pop(client, None)
        self._reply(self._state.disconnect(client))

    def _reply(self, replies: list[Reply]) -> None:
        for reply in replies:
            connection = self._clients.get(reply.client)  # type: ignore[call-overload]
            if connection is not None:
                frame = pack_frame(Kind.STORE_REPLY, pack_strings(reply.values), tag=int(reply.status), seq=reply.seq)
                connection.send_soon(frame)


class _ServedClient:
    """The server's end of one client's connection."""

    def __init__(self, server: TCPStoreServer, client: int) -> None:
        self._server, self._client = server, client

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        if header.payload_bytes or header.kind != Kind.STORE_REQUEST:
            raise ProtocolError(f"frame kind {header.kind} on a store connection")
        return None

    def end(self, header: Header, meta: bytes) -> None:
        self._server.request(self._client, header, meta)

    def lost(self, reason: str) -> None:
        self._server.disconnect(self._client)


class TCPStore(StoreClient):
    """A client of a ``TCPStoreServer``. It is a connection sink: dial with it, then ``attach``."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._connection: Connection | None = None
        self._pending: dict[int, Operation[Answer]] = {}
        self._seqs = itertools.count(1)
        self.lost_reason: str | None = None

    def attach(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def local_host(self) -> str:
        """The address that this process has towards the store: where its peers can reach it too. Raises StoreError."""
        assert self._connection is not None
        try:
            return str(self._connection.sock.getsockname()[0])
        except OSError as error:  # lost since it was connected
            raise StoreError(self.url, self.lost_reason or "the connection was closed") from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort("closed here")

    def _request(self, request: Request, fields: list[bytes], lease: bool = False) -> Operation[Answer]:
        seq = next(self._seqs)
        operation: Operation[Answer] = Operation(lambda: self._cancel(seq))
        self._pending[seq] = operation
        if self.lost_reason is not None or self._connection is None:
            self._pending.pop(seq, None)
            operation.fail(StoreError(self.url, self.lost_reason or "not connected"))
            return operation
        self._send(request, fields, seq, lease)
        if self.lost_reason is not None:  # lost while it was queued
            operation.fail(StoreError(self.url, self.lost_reason))
        return operation

    def _tell(self, request: Request, fields: list[bytes]) -> None:
        self._send(request, fields, NO_ANSWER)

    def _cancel(self, seq: int) -> None:
        if self._pending.pop(seq, None) is not None:
            self._tell(Request.CANCEL, [b"%d" % seq])

    def _send(self, request: Request, fields: list[bytes], seq: int, lease: bool = False) -> None:
        if self._connection is not None:
            meta = pack_strings(fields)
            self._connection.send_soon(
                pack_frame(Kind.STORE_REQUEST, meta, flags=int(lease), tag=int(request), seq=seq)
            )

    # connection sink
    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        if header.payload_bytes or header.kind != Kind.STORE_REPLY:
            raise ProtocolError(f"frame kind {header.kind} from a store")
        return None

    def end(self, header: Header, meta: bytes) -> None:
        try:
            status, values = Status(header.tag), unpack_strings(meta)
        except ValueError as bad:
            raise ProtocolError(f"a store answered with status {header.tag}") from bad
        operation = self._pending.pop(header.seq, None)
        if operation is None:
            return  # cancelled meanwhile
        assert self._connection is not None
        if status is Status.INVALID:
            error = StoreError(self.url, b" ".join(values).decode(errors="replace"))
            self._connection.defer(partial(_fail, operation, error))
        else:
            self._connection.defer(partial(_succeed, operation, (status, values)))

    def lost(self, reason: str) -> None:
        self.lost_reason = f"the connection to the store is lost: {reason}"
        while self._pending:
            _, operation = self._pending.popitem()
            operation.fail(StoreError(self.url, self.lost_reason))


def _fail(operation: Operation[Answer], error: StoreError) -> None:
    operation.fail(error)


def _succeed(operation: Operation[Answer], answer: Answer) -> None:
    operation.succeed(answer)
