"""The embedded store: a server on the progress thread of whoever is told to host it, and its client."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from ..errors import ProtocolError, StoreError
from ..wire.connection import Connection
from ..wire.frames import Header, Kind, pack_frame
from ..wire.listener import Listener, Pending
from ..wire.operation import Operation
from ..wire.progress import ProgressThread
from .state import Reply, Request, Status, StoreState, pack_strings, unpack_strings

__all__ = ["PURPOSE", "TCPStore", "TCPStoreServer"]

logger = logging.getLogger(__name__)

PURPOSE = "store"
NO_ANSWER = 0  # the number of requests that want none
T = TypeVar("T")
Answer = tuple[Status, list[bytes]]


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


class TCPStore:
    """A client of a ``TCPStoreServer``; implements ``Store``.

    It is a connection sink: dial with it, then ``attach``.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection: Connection | None = None
        self._pending: dict[int, Operation[Answer]] = {}
        self._seqs = itertools.count(1)
        self.lost_reason: str | None = None

    def attach(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def local_host(self) -> str:
        """The address that this process has towards the store: where its peers can reach it too."""
        assert self._connection is not None
        return str(self._connection.sock.getsockname()[0])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort("closed here")

    def get(self, key: str) -> Operation[bytes | None]:
        return self._map(self._request(Request.GET, [key.encode()]), _first)

    def set(self, key: str, value: bytes, *, lease: bool = False) -> Operation[None]:
        return self._map(self._request(Request.SET, [key.encode(), value], lease), _nothing)

    def add(self, key: str, amount: int) -> Operation[int]:
        return self._map(self._request(Request.ADD, [key.encode(), b"%d" % amount]), _number)

    def compare_set(
        self,
        key: str,
        expected: bytes | None,
        desired: bytes,
        *,
        lease: bool = False,
        guard: tuple[str, bytes] | None = None,
    ) -> Operation[bytes | None]:
        fields = [key.encode(), desired, *([] if expected is None else [expected])]
        if guard is not None:
            fields += [guard[0].encode(), guard[1]]
        return self._map(self._request(Request.COMPARE_SET, fields, lease), _first)

    def delete(self, keys: Sequence[str]) -> Operation[None]:
        return self._map(self._request(Request.DELETE, [key.encode() for key in keys]), _nothing)

    def discard(self, keys: Sequence[str]) -> None:
        self._tell(Request.DELETE, [key.encode() for key in keys])

    def entries(self, prefix: str) -> Operation[dict[str, bytes]]:
        return self._map(self._request(Request.LIST, [prefix.encode()]), _pairs)

    def wait(
        self, keys: Sequence[str], *, unless: tuple[str, bytes] | None = None, then: bytes | None = None
    ) -> Operation[list[bytes] | None]:
        fields = [b"%d" % len(keys), *(key.encode() for key in keys)]
        if unless is not None:
            fields += [unless[0].encode(), unless[1], *([] if then is None else [then])]
        return self._map(self._request(Request.WAIT, fields), _values_or_none)

    def _request(self, request: Request, fields: list[bytes], lease: bool = False) -> Operation[Answer]:
        seq = next(self._seqs)
        operation: Operation[Answer] = Operation(lambda: self._cancel(seq))
        self._pending[seq] = operation
        if self.lost_reason is not None or self._connection is None:
            self._pending.pop(seq, None)
            operation.fail(StoreError(self.url, self.lost_reason or "not connected"))
            return operation
        self._connection.send_soon(
            pack_frame(Kind.STORE_REQUEST, pack_strings(fields), flags=int(lease), tag=int(request), seq=seq)
        )
        if self.lost_reason is not None:  # lost while it was queued
            operation.fail(StoreError(self.url, self.lost_reason))
        return operation

    def _cancel(self, seq: int) -> None:
        if self._pending.pop(seq, None) is not None:
            self._tell(Request.CANCEL, [b"%d" % seq])

    def _tell(self, request: Request, fields: list[bytes]) -> None:
        if self._connection is not None:
            frame = pack_frame(Kind.STORE_REQUEST, pack_strings(fields), tag=int(request), seq=NO_ANSWER)
            self._connection.send_soon(frame)

    def _map(self, request: Operation[Answer], convert: Callable[[Status, list[bytes]], T]) -> Operation[T]:
        mapped: Operation[T] = Operation(lambda: _discard(request, self.url))

        def finish(_: Operation[Answer]) -> None:
            try:
                value = convert(*request.result())
            except StoreError as error:
                mapped.fail(error)
            except (IndexError, ValueError) as error:
                mapped.fail(StoreError(self.url, f"its answer makes no sense: {error}"))
            else:
                mapped.succeed(value)

        request.add_callback(finish)
        return mapped

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


def _discard(request: Operation[Answer], url: str) -> None:
    request.cancel(StoreError(url, "no longer wanted"))


def _fail(operation: Operation[Answer], error: StoreError) -> None:
    operation.fail(error)


def _succeed(operation: Operation[Answer], answer: Answer) -> None:
    operation.succeed(answer)


def _first(status: Status, values: list[bytes]) -> bytes | None:
    return values[0] if status is Status.OK else None


def _nothing(status: Status, values: list[bytes]) -> None:
    return None


def _number(status: Status, values: list[bytes]) -> int:
    return int(values[0])


def _pairs(status: Status, values: list[bytes]) -> dict[str, bytes]:
    return {key.decode(): value for key, value in zip(values[::2], values[1::2], strict=True)}


def _values_or_none(status: Status, values: list[bytes]) -> list[bytes] | None:
    return values if status is Status.OK else None
