"""A simulated store: the real state of one behind a network that takes its time."""

from __future__ import annotations

import itertools
from functools import partial

from multiworld.errors import StoreError
from multiworld.store.client import Answer, StoreClient
from multiworld.store.state import Reply, Request, Status, StoreState
from multiworld.store.tcp import NO_ANSWER
from multiworld.wire.progress.operation import Operation

from .network import LEASE_S, TRAVEL_S, Network
from .turns import Process, Turns

SEEN_S = 0.005
"""Mean time until one end of a connection has seen that the other one was closed."""


class Server:
    """``process``: that serves it; it is over when that is killed."""

    def __init__(self, turns: Turns, network: Network, process: Process, url: str) -> None:
        self.url, self.process = url, process
        self._turns, self._network = turns, network
        self.state = StoreState()
        self._clients: dict[int, Client] = {}
        self._ids = itertools.count(1)
        process.on_killed.append(self._ended)

    def connect(self, process: Process) -> Operation[Client]:
        """Connect a process. Fails with StoreError if it is over, and never ends if it cannot be reached."""
        operation: Operation[Client] = Operation()

        def came() -> None:
            client = Client(self._turns, self._network, self, process, next(self._ids))
            self._clients[client.number] = client
            process.on_killed.append(partial(self._closed_later, client))
            self._network.carry(self.process, process, "store", lambda: _give(operation, client))

        if self.process.is_alive:
            self._network.carry(process, self.process, "store", came)
        else:
            self._turns.after(TRAVEL_S, lambda: operation.fail(StoreError(self.url, "it is refused")), process)
        return operation

    def put(self, key: str, value: bytes) -> None:
        self._reply(self.state.handle(None, NO_ANSWER, Request.SET, 0, [key.encode(), value]))

    def take(self, client: Client, seq: int, request: Request, fields: list[bytes], *, lease: bool) -> None:
        """A request has come."""
        if client.number in self._clients:
            self._reply(self.state.handle(client.number, seq, int(request), int(lease), fields))

    def _closed_later(self, client: Client) -> None:
        self._turns.after(self._turns.some(SEEN_S), lambda: self.closed(client), self.process)

    def closed(self, client: Client) -> None:
        """The connection of a client has ended."""
        if self._clients.pop(client.number, None) is not None:
            self._reply(self.state.disconnect(client.number))

    def follow_cut(self) -> None:
        """A lease after a cut both sides give their connections up."""
        for client in list(self._clients.values()):
            if not self._network.reaches(client.process, self.process):
                self.closed(client)
                self._turns.at(self._turns.now, lambda client=client: client.lost("no answer"), client.process)  # type: ignore[misc]

    def _reply(self, replies: list[Reply]) -> None:
        for reply in replies:
            client = self._clients.get(reply.client) if isinstance(reply.client, int) else None
            if client is not None and reply.seq != NO_ANSWER:
                self._network.carry(self.process, client.process, "store", partial(client.answered, reply))

    def _ended(self) -> None:
        for client in self._clients.values():
            seen_s = self._turns.some(SEEN_S)
            self._turns.after(seen_s, partial(client.lost, "its connection was closed"), client.process)


class Client(StoreClient):
    """See ``TCPStore``."""

    def __init__(self, turns: Turns, network: Network, server: Server, process: Process, number: int) -> None:
        super().__init__(server.url)
        self.process, self.number = process, number
        self._turns, self._network, self._server = turns, network, server
        self._pending: dict[int, Operation[Answer]] = {}
        self._seqs = itertools.count(1)
        self.lost_reason: str | None = None

    def close(self) -> None:
        if self.lost_reason is None:
            self.lost("closed here")
            self._turns.after(self._turns.some(SEEN_S), lambda: self._server.closed(self))

    def lost(self, reason: str) -> None:
        if self.lost_reason is not None:
            return
        self.lost_reason = reason
        pending, self._pending = self._pending, {}
        for operation in pending.values():
            operation.fail(StoreError(self.url, reason))

    def answered(self, reply: Reply) -> None:
        operation = self._pending.pop(reply.seq, None)
        if operation is None:
            return
        if reply.status is Status.INVALID:
            operation.fail(StoreError(self.url, str(reply.values)))
        else:
            operation.succeed((reply.status, reply.values))

    def _request(self, request: Request, fields: list[bytes], lease: bool = False) -> Operation[Answer]:
        self._turns.check_alive()
        operation: Operation[Answer] = Operation()
        if self.lost_reason is not None:
            operation.fail(StoreError(self.url, self.lost_reason))
            return operation
        seq = next(self._seqs)
        self._pending[seq] = operation
        self._send(request, fields, seq, lease=lease)
        return operation

    def _tell(self, request: Request, fields: list[bytes]) -> None:
        if self.lost_reason is None:
            self._send(request, fields, NO_ANSWER, lease=False)

    def _send(self, request: Request, fields: list[bytes], seq: int, *, lease: bool) -> None:
        def arrive() -> None:
            self._server.take(self, seq, request, fields, lease=lease)

        self._network.carry(self.process, self._server.process, "store", arrive)


def _give(operation: Operation[Client], client: Client) -> None:
    if not operation.succeed(client):
        client.close()


def lease_later(turns: Turns, server: Server) -> None:
    """After a cut: have both ends find out."""
    turns.after(LEASE_S, server.follow_cut)
