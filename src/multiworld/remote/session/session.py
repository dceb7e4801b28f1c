"""The master's end of one node in one generation: commands go out in batches, values come back when somebody asks."""

from __future__ import annotations

import itertools
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import torch
from torch import Tensor

from ...channel.payload.tensors import memory_of
from ...errors import (
    MultiworldError,
    PeerDiedError,
    PeerLeftError,
    PeerSilentError,
    PeerStoppedError,
    PeerUnreachableError,
    RequestCancelledError,
    WorldBrokenError,
)
from ...wire.progress.operation import Operation
from ...wire.progress.waiting import run_in_thread, start_and_wait
from ...world.world import World
from ..errors import ConnectionEndedError, NodeDeadError, RemoteError
from ..lane import bytes_of, listen
from ..protocol import lanes, records, specs
from ..protocol.calls import DeclaredCall
from ..protocol.elements import arrived_spec, elements_of, tensor_of
from ..protocol.messages import (
    TO_MASTER,
    TO_NODE,
    Arrives,
    AskStatistics,
    Declined,
    Executed,
    Failed,
    NodeHello,
    NodeStatistics,
    Outcome,
    ToMaster,
    ToNode,
)
from ..protocol.reply import elements_in, read
from ..protocol.specs import Spec
from .command_queue import ignore
from .command_stream import CommandStream, SessionStatistics
from .origins import here, line_of, origin
from .plainly import plainly
from .sync_points import SyncPoints
from .waits import Wait, count_bytes

logger = logging.getLogger(__name__)

_ids = itertools.count(1)
next_id = _ids.__next__
"""Ids are never used twice in a process: a late command can't reach another tensor."""


class Session:
    """``number``: the node's. ``dead``: why the node is lost, once it is. ``hello``: what the node said of itself."""

    def __init__(
        self,
        number: int,
        world: World,
        bulk: World,
        sync_points: SyncPoints,
        on_hello: Callable[[NodeHello], None] = lambda hello: None,
    ) -> None:
        self.number, self.world, self.bulk = number, world, bulk
        self.generation = world.generation
        self.dead: str | None = None
        self.ended: str | None = None
        self.hello: NodeHello | None = None
        self.statistics = SessionStatistics()
        self.before_call: Callable[[DeclaredCall, str], object] = lambda call, line: None
        """Called with each function that the node is to call, and the line, before the call is queued. May raise."""
        self._lock = threading.RLock()  # one batch is taken and sent at a time
        self.stream = CommandStream(
            0, number, world, self.statistics, self._lock, is_over=lambda: self.is_over, lose=self._lose_by
        )
        self.free = self.stream.queue.free
        self._sync_points, self._on_hello = sync_points, on_hello
        self._death_was_seen = False
        self._requests = itertools.count(1)
        self._sending: dict[int, Operation[None]] = {}  # large tensors, by id
        world.on_broken(self._lost)
        bulk.on_broken(self._bulk_lost)
        listen(world, lanes.NEWS, lanes.NODE, self._heard)

    @property
    def is_over(self) -> bool:
        """Whether the node is lost, or the connection ended here."""
        return self.dead is not None or self.ended is not None

    def __repr__(self) -> str:
        state = self.dead or self.ended or "alive"
        return f"<Session node={self.number} generation={self.generation} {state}>"

    # ---- commands

    def emit(self, record: bytes, operation: str, depth: int = 1) -> None:
        """Queue one record. A lost node takes nothing any more: who waits for the outcome learns it."""
        self.stream.emit(record, operation, depth + 1)

    def flush(self) -> None:
        """Send what is queued. Waits while the node is too far behind."""
        self.stream.flush()

    def first_unconfirmed(self) -> str:
        """Return the oldest operation that may be lost, with its line; empty if there is none."""
        return self.stream.queue.first_unconfirmed()

    # ---- news

    def _heard(self, message: memoryview) -> None:
        said = TO_MASTER.decode(message)
        if isinstance(said, Executed):
            self.stream.executed(said)
        elif isinstance(said, Declined):
            self._give_up(said.id)
        elif isinstance(said, NodeHello):
            self.hello = said
            self._on_hello(said)

    # ---- tensors to the node

    @plainly
    def load(self, tensor: Tensor, id_: int, *, wait: bool = True, depth: int = 1) -> Spec:
        """Send the values of a local tensor. ``wait``: until its memory may be changed."""
        plain, spec = elements_of(tensor)
        self.statistics.sent_bytes += plain.nbytes
        if plain.nbytes <= lanes.INLINE_BYTES:
            self.emit(records.load(id_, spec, memory_of(plain)), "send", depth + 1)
            return spec
        place = origin(sys._getframe(depth))
        try:
            sending = self.bulk.start_send_tensors(plain, lanes.NODE, id_, None)
        except MultiworldError as error:
            self._lose_by(error)
            return spec
        self.stream.room.hold(plain.nbytes)
        self._sending[id_] = sending  # before the node hears of it: it may have no room
        sending.add_callback(lambda _: self._sent(id_, plain.nbytes))
        with self._lock:
            self.stream.queue.append((records.arrived(id_), "send", place))
            self._tell(Arrives(id=id_, spec=specs.to_json(spec)), lanes.ARRIVALS)
        self.stream.queued()
        count_bytes(place, plain.nbytes)
        if wait:
            with Wait("send", line_of(place)):
                self._wait_sent(sending)
        return spec

    def _wait_sent(self, sending: Operation[None]) -> None:
        try:
            self.bulk.wait_thread(sending, lanes.NODE, None)
        except RequestCancelledError:
            return  # the node has no room: what needs the tensor gets that error
        except MultiworldError as error:
            self._lose_by(error)

    def _sent(self, id_: int, num_bytes: int) -> None:
        """On whichever thread a large tensor was sent, or given up."""
        self._sending.pop(id_, None)
        self.stream.room.release(num_bytes)

    def _give_up(self, id_: int) -> None:
        """The node has no room for a large tensor: do not wait until it takes it."""
        sending = self._sending.get(id_)
        if sending is not None:
            cancelled = RequestCancelledError(self.bulk.name, self.bulk.generation, "send")
            run_in_thread(partial(sending.cancel, cancelled), "multiworld-decline")  # it may take a while

    # ---- values from the node

    def fetch(self, id_: int, spec: Spec, operation: str = "fetch") -> Tensor:
        """Wait for the values of a tensor. Raises RemoteOperationError, NodeDeadError."""
        line = here()
        with self._sync_points.wait(operation, line) as wait:
            request, position = self._request(lambda request: records.fetch(id_, request), operation)
            reply = self._reply(request, position, operation, line)
            if isinstance(reply, memoryview):
                values = elements_in(reply, spec)
            else:
                values = self._receive_bulk(request, spec, operation, line)
            wait.num_bytes = values.nbytes
        self.statistics.fetched_bytes += values.nbytes
        return tensor_of(values, arrived_spec(spec))

    async def fetch_async(self, id_: int, spec: Spec) -> Tensor:
        """As ``fetch``, without blocking the event loop."""
        line = here()
        with self._sync_points.wait("fetched", line) as wait:
            request, position = self._request(lambda request: records.fetch(id_, request), "fetched")
            try:
                received = await self.world.recv_tensors(lanes.NODE, lanes.FIRST_REPLY + request)
                reply = self._read(bytes_of(received), position)
                if isinstance(reply, memoryview):
                    values = elements_in(reply, spec)
                else:
                    values = torch.empty(spec.num_elements, dtype=spec.dtype)
                    await self.bulk.recv(values, lanes.NODE, lanes.FIRST_REPLY + request)
            except (WorldBrokenError, MultiworldError) as error:
                raise self._error_of(error, "fetched", line) from None
            wait.num_bytes = values.nbytes
        self.statistics.fetched_bytes += values.nbytes
        return tensor_of(values, arrived_spec(spec))

    def ask(
        self, template: bytes, ids: tuple[int, ...], floats: tuple[float, ...], num_ids: int, operation: str
    ) -> tuple[Outcome, tuple[int, ...]]:
        """Have an operator called whose outcome can't be foreseen; return it, and the ids of the tensors in it."""
        outputs = tuple(next_id() for _ in range(num_ids))

        def question(request: int) -> bytes:
            return records.ask(records.Ask(request=request, template=template, ids=ids, floats=floats, outputs=outputs))

        outcome = self.request(question, operation)
        assert isinstance(outcome, Outcome)
        return outcome, outputs

    def request(self, record: Callable[[int], bytes], operation: str) -> memoryview | ToMaster:
        """Queue a record that is answered, and wait for its answer. Raises RemoteOperationError, NodeDeadError."""
        line = here()
        with self._sync_points.wait(operation, line):
            request, position = self._request(record, operation)
            return self._reply(request, position, operation, line)

    def synchronize(self) -> None:
        """Wait until all that was issued is executed."""
        self.request(records.sync, "synchronize")

    def settle(self) -> None:
        """Wait until all that was issued is executed, at the end: this is no sync point of the program's."""
        request, position = self._request(records.sync, "close", is_users=False)
        self._reply(request, position, "close", "the end")

    @plainly
    def say_end(self) -> None:
        """Tell the node that its master is done: an empty batch."""
        with suppress(MultiworldError):  # it was lost in this moment
            self.world.start_send_tensors(torch.empty(0, dtype=torch.uint8), lanes.NODE, lanes.FIRST_STREAM, None)

    def ask_statistics(self) -> NodeStatistics:
        request = next(self._requests)
        self._tell(AskStatistics(request=request), lanes.CONTROL)
        statistics = self._reply(request, None, "statistics", here())
        assert isinstance(statistics, NodeStatistics)
        return statistics

    def tell(self, message: ToNode) -> None:
        self._tell(message, lanes.CONTROL)

    @plainly
    def _tell(self, message: ToNode, tag: int) -> None:
        encoded = torch.frombuffer(bytearray(TO_NODE.encode(message)), dtype=torch.uint8)
        try:
            self.world.start_send_tensors(encoded, lanes.NODE, tag, None)
        except MultiworldError as error:
            self._lose_by(error)

    def _request(self, record: Callable[[int], bytes], operation: str, *, is_users: bool = True) -> tuple[int, int]:
        """Queue a record that is answered, and send it; return the request, and the position of its record."""
        request = next(self._requests)
        if self.is_over:
            return request, self.stream.queue.position
        place = origin(sys._getframe(2)) if is_users else None
        return request, self.stream.request((record(request), operation, place))

    @plainly
    def _reply(self, request: int, position: int | None, operation: str, line: str) -> memoryview | ToMaster:
        self._check_alive(operation, line)
        try:
            received = start_and_wait(
                lambda: self.world.start_recv_bytes(lanes.NODE, lanes.FIRST_REPLY + request, None),
                lambda receive: self.world.wait_thread(receive, lanes.NODE, None),
            )
        except (WorldBrokenError, MultiworldError) as error:
            raise self._error_of(error, operation, line) from None
        return self._read(bytes_of(received), position)

    def _read(self, reply: memoryview, position: int | None) -> memoryview | ToMaster:
        """Return what a reply says; raise the failure that it tells. ``position``: of the record that it answers."""
        said = read(reply)
        error = self.stream.failures.seen(said) if isinstance(said, Failed) else None  # before its line is forgotten
        if position is not None:
            self.stream.confirm(position + 1)
        if error is not None:
            raise type(error)(*error.args)
        return said

    @plainly
    def _receive_bulk(self, request: int, spec: Spec, operation: str, line: str) -> Tensor:
        values = torch.empty(spec.num_elements, dtype=spec.dtype)
        try:
            self.bulk.blocking.recv(values, lanes.NODE, lanes.FIRST_REPLY + request)
        except (WorldBrokenError, MultiworldError) as error:
            raise self._error_of(error, operation, line) from None
        return values

    # ---- the end

    def check_usable(self, operation: str) -> None:
        """Raises NodeDeadError or ConnectionEndedError: nothing can be made on such a node."""
        self._check_alive(operation, here())

    def _check_alive(self, operation: str, line: str) -> None:
        if self.ended is not None:
            raise ConnectionEndedError(self.ended)
        if self.dead is not None:
            raise self.death(operation, line)

    def death(self, operation: str, line: str) -> NodeDeadError:
        """Return the error for an operation that needs the node, which is lost."""
        self._death_was_seen = True
        return NodeDeadError(self.number, operation, line, self.dead or "", self.first_unconfirmed())

    def unseen_errors(self) -> list[RemoteError]:
        """Return what nobody got: failures, and the loss of the node if commands were lost with it."""
        unseen: list[RemoteError] = list(self.stream.failures.unseen.values())
        if self.dead is not None and not self._death_was_seen and self.first_unconfirmed():
            unseen.append(self.death("the end of the program", "the end"))
        return unseen

    async def wait_lost(self) -> None:
        """Wait until the node is lost, or the connection ended here."""
        with suppress(MultiworldError):  # it ended here
            await self.world.wait_broken()
        if not self.is_over:
            self._lost()

    def abandon(self, reason: str) -> None:
        """Take the node for lost."""
        self._lose(reason)

    def end(self, reason: str) -> None:
        """The connection ends here; its tensors can't be used any more."""
        self.ended = self.ended or reason
        self.free = ignore
        self.stream.room.look_again()

    def _error_of(self, error: BaseException, operation: str, line: str) -> Exception:
        if self.ended is not None:
            return ConnectionEndedError(self.ended)
        self._lose_by(error)
        return self.death(operation, line)

    def _lose_by(self, error: BaseException) -> None:
        self._lose(reason_of(error))

    def _lost(self) -> None:
        error = self.world.error
        self._lose("the connection was closed" if error is None else reason_of(error))

    def _bulk_lost(self) -> None:
        error = self.bulk.error
        self._lose("the connection for large tensors was closed" if error is None else reason_of(error))

    def _lose(self, reason: str) -> None:
        """On any thread, which may hold locks of the world that broke: it only notes the loss."""
        is_first = not self.is_over
        if is_first:
            self.dead = reason
            self.free = ignore
        self.stream.room.look_again()
        if is_first:
            self.world.later(0.0, self._clear)

    def _clear(self) -> None:
        """Give up what waits for a lost node, and the world of the two that may still stand."""
        self.stream.discard()
        self.stream.failures.clear()
        self.world.abort()
        self.bulk.abort()


def reason_of(error: BaseException) -> str:
    """Return what happened to the node, without the advice that is for those who use worlds."""
    if not isinstance(error, WorldBrokenError):
        return str(error)
    return f"{_WHAT_HAPPENED.get(type(error), 'the connection broke')}: {error.cause}"


_WHAT_HAPPENED: Final[dict[type[WorldBrokenError], str]] = {
    PeerDiedError: "it died",
    PeerStoppedError: "it is stopped",
    PeerSilentError: "it is silent",
    PeerUnreachableError: "it cannot be reached",
    PeerLeftError: "it left",
}
