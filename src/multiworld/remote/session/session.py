"""The master's end of one node: commands go out in batches, values come back when somebody asks.

It lasts for one generation of the node, or for several, if what the node held is made anew each time.
"""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import torch

from ...errors import MultiworldError
from ...wire.progress.operation import Operation
from ...world.world import World
from ..errors import ConnectionEndedError, NodeDeadError, RemoteError, reason_of
from ..lane import listen, send
from ..peer_memory import PeerMemory
from ..protocol import lanes, records
from ..protocol.calls import DeclaredCall
from ..protocol.messages import (
    TO_MASTER,
    TO_NODE,
    AskStatistics,
    Declined,
    Ending,
    Executed,
    Failed,
    HasRoom,
    NodeHello,
    NodeStatistics,
    NotCompiled,
    OpenStream,
    Outcome,
    Parted,
    ToMaster,
    ToNode,
)
from ..protocol.reply import read, with_elements
from .answers import Answers
from .command_queue import ignore
from .command_stream import CommandStream, SessionStatistics
from .discarding import discard_reply
from .fetcher import Fetcher
from .lifetime import Lifetime, Link
from .loader import Loader
from .not_compiled import CompileProblems
from .origins import here
from .plainly import plainly
from .recovering import Recovery
from .requests import Requests, Waited
from .streams import Streams
from .sync_points import SyncPoints

logger = logging.getLogger(__name__)


ids_to_come: Final = itertools.count(1)
next_id = ids_to_come.__next__
"""Ids are never used twice in a process: a late command can't reach another tensor."""


SHARES_HOST: Final = ("auto", "shm")
"""Backends for large tensors that use memory where both ends run on one host."""

by_uid: Final[weakref.WeakValueDictionary[int, Session]] = weakref.WeakValueDictionary()
"""All sessions of this process: a node names another one by this number."""
_uids = itertools.count(1)


class Session:
    """``number``: the node's. ``dead``: why the node is lost, once it is. ``hello``: what the node said of itself.

    ``recovery``: of a node that is made anew when it is lost. ``away``: why it is lost while it is made anew; commands
    are kept meanwhile, and waits wait. ``uid``: of this session alone in this process. ``on_parted`` is called when a
    world of several nodes ends. ``after``: the generation of the node before.
    """

    def __init__(
        self,
        number: int,
        world: World,
        bulk: World,
        sync_points: SyncPoints,
        on_hello: Callable[[NodeHello], None] = lambda hello: None,
        *,
        after: int = -1,
    ) -> None:
        self.number = number
        self.uid = next(_uids)
        by_uid[self.uid] = self
        self.on_parted: Callable[[Parted], None] = lambda parted: None
        self.hello: NodeHello | None = None
        self.statistics = SessionStatistics()
        self.before_call: Callable[[DeclaredCall, str], object] = lambda call, line: None
        """Called with each function that the node is to call, and the line, before the call is queued. May raise."""
        self.lock = threading.RLock()  # one batch is taken and sent at a time
        self.streams = Streams(lambda number, freed: self._new_stream(number, world, freed), self.lock)
        self.stream, self.has_streams = self.streams.first, False  # one look-up each for every operation
        self.free = self.stream.queue.free
        self._life = Lifetime(self._look_again, self._note_loss, after)
        self._sync_points = sync_points
        self._death_was_seen = False
        self.requests = Requests(number, self._life, self.streams, self._check_alive, self._seen)
        self._fetcher = Fetcher(self._life, self.requests, sync_points, self.statistics, self._tell_on)
        self.fetch, self.fetch_async = self._fetcher.fetch, self._fetcher.fetch_async
        """Get the values of a tensor: see there."""
        self.loader = Loader(self._life, self.streams, self.lock, self.statistics, self._tell_on)
        """Sends tensors to the node."""
        self._compile_problems = CompileProblems(number)
        self.connect(world, bulk, on_hello)

    def connect(self, world: World, bulk: World, on_hello: Callable[[NodeHello], None] = lambda hello: None) -> None:
        """Use these worlds from now on. A node that is made anew gets no commands before ``came_back``."""
        with self.lock:
            self._on_hello = on_hello
            self.stream.use(world)

            def discard(request: int, reply: memoryview) -> None:
                discard_reply(link, request, reply, self._fetcher.was_read)

            answers = Answers(self.requests.is_open, discard)
            link = self._life.use(world, bulk, answers)
        listen(world, lanes.REPLIES, lanes.NODE, answers.came, answers.ended)
        listen(world, lanes.NEWS, lanes.NODE, lambda message: self._heard(message, link))

    @property
    def link(self) -> Link:
        return self._life.present_link

    @property
    def world(self) -> World:
        return self.link.world

    @property
    def generation(self) -> int:
        return self._life.generation

    @property
    def dead(self) -> str | None:
        return self._life.dead

    @property
    def ended(self) -> str | None:
        return self._life.ended

    @property
    def away(self) -> str | None:
        return self._life.away

    @property
    def recovery(self) -> Recovery | None:
        return self._life.recovery

    @recovery.setter
    def recovery(self, recovery: Recovery | None) -> None:
        if recovery is not None and self.has_streams:
            raise RuntimeError(f"node {self.number} has streams: a node that is recoverable executes in one order")
        self._life.recovery = recovery

    @property
    def is_over(self) -> bool:
        """Whether the node is lost for good, or the connection ended here."""
        return self._life.is_over

    def __repr__(self) -> str:
        state = self.dead or self.ended or self.away or "alive"
        return f"<Session node={self.number} generation={self.generation} {state}>"

    # ---- commands

    def emit(self, record: bytes, operation: str, depth: int = 1) -> None:
        """Queue one record. A lost node takes nothing any more: who waits for the outcome learns it."""
        self.streams.present.emit(record, operation, depth + 1)

    def flush(self) -> None:
        """Send what is queued. Waits while the node is too far behind."""
        for stream in self.streams.all():
            stream.flush()

    def open_stream(self) -> CommandStream:
        """Have the node execute one more stream beside the others, and wait until it knows of that.

        It would not wait for a tensor that is made on a stream that it does not know of. Raises NodeDeadError;
        RuntimeError if the node is recoverable.
        """
        if self.recovery is not None:
            raise RuntimeError(
                f"node {self.number} is recoverable: what is executed again for it has one order, so it has one stream"
            )
        stream = self.streams.add()
        waited = Waited(self.requests.next(), None, "stream", here())

        def opened(link: Link) -> memoryview | ToMaster:
            self._tell(OpenStream(number=stream.number, request=waited.request), lanes.CONTROL)
            return self.requests.reply_on(link, waited)

        self.requests.wait_for(waited, opened)
        self.has_streams = True
        return stream

    def first_unconfirmed(self) -> str:
        """Return an operation that may be lost, the oldest of its stream, with its line; empty if there is none."""
        return next(filter(None, (stream.queue.first_unconfirmed() for stream in self.streams.all())), "")

    def _new_stream(self, number: int, world: World, freed: list[int]) -> CommandStream:
        return CommandStream(
            number, self.number, world, self.statistics, self.lock, lambda: self.is_over, self._lose_by, freed
        )

    # ---- news

    def _heard(self, message: memoryview, link: Link) -> None:
        said = TO_MASTER.decode(message)
        if isinstance(said, Executed):
            stream = self.streams.numbered(said.stream)
            if stream is not None:
                stream.executed(said)
            if said.request is not None:
                link.answers.came(memoryview(with_elements(said.request, b"")))
        elif isinstance(said, Declined):
            self.loader.give_up(said.id)
        elif isinstance(said, HasRoom):
            self.loader.write(said)
        elif isinstance(said, Parted):
            self.on_parted(said)
        elif isinstance(said, Ending):
            self._life.lose(self._why_it_ends(said.failed), link)
        elif isinstance(said, NotCompiled):
            self._compile_problems.heard(said)
        elif isinstance(said, NodeHello):
            self.hello = said
            if link.bulk.backend in SHARES_HOST:
                link.memory = PeerMemory.of(said.pid, said.host, said.mark, said.mark_at)
            self._on_hello(said)

    def _why_it_ends(self, failed: Failed) -> str:
        operation, line = (self.streams.numbered(failed.stream) or self.stream).failures.find(failed)
        return (
            f"it ended, as a GPU of it can't be used any more: {failed.text}\n  noticed in {operation} at {line}. "
            "An earlier operation may be the cause: CUDA_LAUNCH_BLOCKING=1 in the environment of the node finds it"
        )

    # ---- answers of the node

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
            waited = self.requests.ask_for(record, operation, line)
            return self.requests.wait_for(waited, lambda link: self.requests.reply_on(link, waited))

    def synchronize(self, stream: CommandStream | None = None) -> None:
        """Wait until all that was issued is executed. ``stream``: only what was issued on this one."""
        line = here()
        with self._sync_points.wait("synchronize", line):
            self._wait_executed(self.streams.all() if stream is None else [stream], "synchronize", line)

    def settle(self) -> None:
        """Wait until all that was issued is executed, at the end: this is no sync point of the program's."""
        self._wait_executed(self.streams.all(), "close", "the end", is_users=False)

    def wait_confirmed(self, stream: CommandStream, position: int, operation: str) -> None:
        """Wait until the node says that a record is executed. Raises NodeDeadError."""
        line = here()
        with self._sync_points.wait(operation, line):
            self.streams.flush_others(stream)
            stream.flush(may_wait=False)
            stream.wait_confirmed(position)
            if not stream.is_confirmed(position):
                self._check_alive(operation, line)

    @plainly
    def say_end(self) -> None:
        """Tell the node that its master is done: an empty batch, on stream 0 last."""
        with suppress(MultiworldError):  # it was lost in this moment
            for stream in reversed(self.streams.all()):
                if not stream.is_closed:
                    tag = lanes.FIRST_STREAM + stream.number
                    self.world.start_send_tensors(torch.empty(0, dtype=torch.uint8), lanes.NODE, tag, None)

    def ask_statistics(self) -> NodeStatistics:
        waited = Waited(self.requests.next(), None, "statistics", here())

        def receive(link: Link) -> memoryview | ToMaster:
            self._tell(AskStatistics(request=waited.request), lanes.CONTROL)
            return self.requests.reply_on(link, waited)

        statistics = self.requests.wait_for(waited, receive)
        assert isinstance(statistics, NodeStatistics)
        return statistics

    def start_statistics(self, take: Callable[[NodeStatistics], object]) -> None:
        """Have ``take`` called with what the node says of itself, on whichever thread that comes; a lost node says no
        more."""
        request = self.requests.next()

        def came(coming: Operation[memoryview]) -> None:
            self.requests.close(request)
            if coming.error is None:
                said = read(coming.result())
                if isinstance(said, NodeStatistics):
                    take(said)

        self.link.answers.of(request).add_callback(came)
        self._tell(AskStatistics(request=request), lanes.CONTROL)

    def tell(self, message: ToNode) -> None:
        self._tell(message, lanes.CONTROL)

    def _tell(self, message: ToNode, tag: int) -> None:
        self._tell_on(self.link, message, tag)

    @plainly
    def _tell_on(self, link: Link, message: ToNode, tag: int) -> None:
        try:
            send(link.world, bytearray(TO_NODE.encode(message)), lanes.NODE, tag)
        except MultiworldError as error:
            self._life.lose(reason_of(error), link)

    # ---- waits

    def _wait_executed(
        self, streams: Sequence[CommandStream], operation: str, line: str, *, is_users: bool = True
    ) -> None:
        unsettled = _to_ask(streams)
        self.streams.flush_others(*unsettled)
        asked = [
            self.requests.ask_for(records.sync, operation, line, is_users=is_users, stream=stream, flush_others=False)
            for stream in unsettled
        ]
        try:
            for waited in asked:
                self.requests.wait_for(waited, partial(self.requests.reply_on, waited=waited))
        finally:
            for waited in asked:
                self.requests.close(waited.request)
        for stream in streams:
            if stream.last_position is not None:
                stream.wait_confirmed(stream.last_position)
                self._check_alive(operation, line)

    def _seen(self, failed: Failed) -> RemoteError:
        """Return the error that somebody gets now: it may be that of another node, whose tensor was to come here."""
        lost = by_uid.get(failed.peer)
        if lost is not None:
            lost._death_was_seen = True
        where = by_uid.get(failed.session, self)
        stream = where.streams.numbered(failed.stream)
        return (stream or where.stream).failures.seen(failed)

    # ---- the end

    def check_usable(self, operation: str) -> None:
        """Raises NodeDeadError or ConnectionEndedError: nothing can be made on such a node."""
        self._check_alive(operation, here())

    def _check_alive(self, operation: str, line: str) -> None:
        life = self._life
        if life.ended is not None:
            raise ConnectionEndedError(life.ended)
        if life.dead is not None:
            raise self.death(operation, line)

    def death(self, operation: str, line: str) -> NodeDeadError:
        """Return the error for an operation that needs the node, which is lost."""
        self._death_was_seen = True
        return NodeDeadError(self.number, operation, line, self.dead or self.away or "", self.first_unconfirmed())

    def unseen_errors(self) -> list[RemoteError]:
        """Return what nobody got: failures, and the loss of the node if commands were lost with it."""
        unseen = [error for stream in self.streams.all() for error in stream.failures.unseen_errors()]
        if self.dead is not None and not self._death_was_seen and self.first_unconfirmed():
            unseen.append(self.death("the end of the program", "the end"))
        return unseen

    async def wait_lost(self) -> None:
        """Wait until the node is lost, or the connection ended here."""
        link = self.link
        with suppress(MultiworldError):  # it ended here
            await link.world.wait_broken()
        error = link.world.error
        self._life.lose("the connection was closed" if error is None else reason_of(error), link)

    def abandon(self, reason: str) -> None:
        """Take the node for lost."""
        self._life.lose(reason, self.link)

    def give_up(self, reason: str) -> None:
        """Take the node for lost, and do not make it anew."""
        self._life.give_up(reason)

    def end(self, reason: str) -> None:
        """The connection ends here; its tensors can't be used any more."""
        self.free = ignore
        self._fetcher.clear()
        self._life.end(reason)
        self._refuse_commands(reason)
        self.loader.end(self.link)

    def forked(self, reason: str) -> None:
        """The connection remains the parent's: this is its forked child, where no lock is safe to take."""
        self._life.ended = reason
        self._refuse_commands(reason)

    def _refuse_commands(self, reason: str) -> None:
        for stream in self.streams.all():
            stream.queue.refuse(lambda: ConnectionEndedError(reason))

    def _lose_by(self, error: BaseException) -> None:
        self._life.lose(reason_of(error), self.link)

    def came_back(self, link: Link) -> bool:
        """The node was made anew, and has all that was issued: call it with ``lock``. False: it is lost again."""
        self.stream.is_held = not self._life.came_back(link)
        return not self.stream.is_held

    def _look_again(self) -> None:
        """Who waits for news of the node learns that there is other news."""
        for stream in self.streams.all():
            stream.room.look_again()

    def _note_loss(self, may_return: bool) -> None:
        link = self.link
        link.world.later(0.0, lambda: self.loader.lost(link))
        if may_return:
            self.stream.is_held = True
        else:
            self.free = ignore
            self.world.later(0.0, self._clear)

    def _clear(self) -> None:
        """Give up what waits for a lost node, and the worlds that may still stand."""
        self._fetcher.clear()
        for stream in self.streams.all():
            stream.discard()
            stream.failures.clear()
        self.link.abort()


def _to_ask(streams: Sequence[CommandStream]) -> list[CommandStream]:
    """Return those that may have something left to execute; else one of them: a wait shows that the node is there."""
    usable = [stream for stream in streams if not stream.is_closed]
    return [stream for stream in usable if not stream.is_settled] or usable[:1]
