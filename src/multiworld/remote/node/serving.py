"""A node's life: it joins its master, executes what that sends, and ends when the master is done."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from ...errors import (
    JoinError,
    JoinTimeoutError,
    MultiworldError,
    PeerLeftError,
    ProtocolError,
    WorldBrokenError,
    WorldClosedError,
)
from ...process.facts import resident_bytes
from ...wire.progress.operation import Operation
from ...world.manager import WorldManager
from ...world.world import World
from ..errors import reason_of
from ..joining import join_beside, join_shared
from ..lane import Lane, listen
from ..peer_memory import Mark
from ..protocol import lanes, messages
from ..protocol.calls import DeclaredCall, declared
from ..protocol.lanes import names_of
from ..protocol.messages import (
    TO_NODE,
    Arrives,
    AskStatistics,
    Drop,
    Meet,
    NodeHello,
    NodeStatistics,
    OpenStream,
    Outcome,
    Part,
    Read,
    Refused,
    Welcome,
    Written,
)
from ..version import own_version
from .devices import devices
from .executor import Executor
from .functions import Functions
from .operators import ALLOWED
from .peers import Join, join_with, refuse_to_join
from .replies import Replies
from .shared import Shared
from .unusable import DeviceUnusableError

logger = logging.getLogger(__name__)

JOIN_S = 60.0
LEAVE_S = 1.0


class RefusedByMasterError(MultiworldError):
    """The master did not take this node (``reason``)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the master refused this node: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """``number``: of the node. ``store``: where its worlds form; None: the launcher's. ``backend``: of large tensors.

    ``allowed``: namespaces of operators. ``calls``: functions that masters may have called.
    ``once``: end with the first master that is lost. ``forever``: serve the next master also when one is done.
    """

    number: int
    store: str | None = None
    backend: str = "auto"
    allowed: frozenset[str] = ALLOWED
    calls: tuple[DeclaredCall, ...] = ()
    once: bool = True
    forever: bool = False


def serve_node(
    options: NodeOptions,
    manager: WorldManager,
    bulk_manager: WorldManager,
    on_session: Callable[[Session | None], object] = lambda session: None,
) -> None:
    """Serve master after master, until one says that it is done.

    ``on_session`` is called with the session of each master, and with None when it has ended.
    Without ``once`` it waits for each as long as that takes: the launcher ends nodes whose master has ended well.
    Raises JoinError, RefusedByMasterError, ProtocolError; with ``forever`` the next master is served after these.
    Raises DeviceUnusableError in any case: this process can't use its GPU any more.
    """
    torch.set_grad_enabled(False)
    while True:
        try:
            was_ended = _serve_one(options, manager, bulk_manager, on_session)
        except (JoinError, RefusedByMasterError, ProtocolError) as error:
            if isinstance(error, JoinTimeoutError) and not options.once:  # no master came yet
                continue
            if not options.forever:
                raise
            logger.warning("a master could not be served: %s", error)
            continue
        if options.once or (was_ended and not options.forever):
            return


def _serve_one(
    options: NodeOptions,
    manager: WorldManager,
    bulk_manager: WorldManager,
    on_session: Callable[[Session | None], object],
) -> bool:
    """Serve one master. Return whether it said that it is done: else it was lost."""
    command_name, bulk_name = names_of(options.number)
    world = asyncio.run(_join(manager, command_name, options, "auto"))
    worlds = [world]
    try:
        try:
            bulk = asyncio.run(join_beside(world, _join(bulk_manager, bulk_name, options, options.backend)))
        except (WorldBrokenError, WorldClosedError) as error:
            logger.warning("node %d lost its master while it came: %s", options.number, reason_of(error))
            return False
        worlds.append(bulk)
        session = Session(options, world, bulk, join_with(bulk_manager))
        on_session(session)
        try:
            session.run()
        except (WorldBrokenError, WorldClosedError) as error:  # closed here: the other world of the two broke first
            _log_loss(options.number, next((each.error for each in worlds if each.error is not None), error))
        finally:
            session.close()
    finally:
        on_session(None)
        for each in worlds:
            each.blocking.leave(LEAVE_S)
    session.join_streams()
    return session.was_ended


def _log_loss(number: int, error: MultiworldError) -> None:
    """A master that leaves before it is done was interrupted, or its program raised an error, which it shows itself."""
    if isinstance(error, PeerLeftError):
        logger.info("the master of node %d left", number)
    else:
        logger.warning("node %d lost its master: %s", number, reason_of(error))


class Session:
    """What a node does for one master, in one generation."""

    def __init__(self, options: NodeOptions, world: World, bulk: World, join: Join = refuse_to_join) -> None:
        """``join`` forms the worlds with other nodes."""
        self._number = options.number
        self._world = world
        functions = Functions(declared(options.calls))
        self._shared = Shared(world, bulk, options.allowed, functions)
        self._replies = Replies(world, bulk, self._shared)
        self._shared.peers.use(join, self._replies.tell)
        self._executor = Executor(0, self._shared, self._replies)
        self._shared.streams.begin(0, self._executor)
        self._num_threads = 0
        self._stream_threads: list[threading.Thread] = []
        self._failure: Exception | None = None  # of a stream but the first
        self.was_ended = False
        self._welcome: Operation[Welcome] = Operation()
        bulk.on_broken(self._bulk_broke)
        world.on_broken(self._shared.peers.abort)
        world.on_broken(self._shared.accesses.end)
        listen(world, lanes.ARRIVALS, lanes.MASTER, self._arrives)
        listen(world, lanes.CONTROL, lanes.MASTER, self._controlled, self._welcome.fail)

    @property
    def num_tensors(self) -> int:
        """Live ids of its master."""
        return len(self._shared.table)

    def run(self) -> None:
        """Raises WorldBrokenError when the master is lost, RefusedByMasterError."""
        world = self._world
        self._replies.tell(hello_of_this_process(self._shared.functions.declared.values(), self._shared.accesses.mark))
        welcome = world.wait_thread(self._welcome, lanes.MASTER, None)
        self._num_threads, self._shared.master_reads = welcome.num_threads, bool(welcome.mark)
        try:
            self.was_ended = self._execute(0, self._executor)
        except WorldBrokenError:
            if self._failure is not None:
                raise self._failure from None
            raise
        finally:
            self._shared.end()

    def close(self) -> None:
        """Leave the worlds with other nodes."""
        self._shared.peers.close()

    def join_streams(self) -> None:
        """Wait for the threads of all other streams, which end with the worlds."""
        for thread in self._stream_threads:
            thread.join()

    def _execute(self, number: int, executor: Executor) -> bool:
        """Execute a stream on this thread. Return whether the master is done: else the stream was closed."""
        torch.set_grad_enabled(False)  # this and the next are settings of a thread
        if self._num_threads:
            torch.set_num_threads(self._num_threads)
        commands = Lane(self._world, lanes.FIRST_STREAM + number, lanes.MASTER)
        while not executor.is_ended:
            batch = commands.next()
            if not batch:
                return True
            executor.execute(batch)
        commands.close()
        return False

    def _open_stream(self, number: int) -> None:
        """On the thread on which the news came: from now on the stream counts."""
        executor = Executor(number, self._shared, self._replies)
        self._shared.streams.begin(number, executor)
        name = f"multiworld-stream-{number}"
        thread = threading.Thread(target=self._run_stream, args=(number, executor), name=name, daemon=True)
        self._stream_threads = [each for each in self._stream_threads if each.is_alive()]
        self._stream_threads.append(thread)
        thread.start()

    def _run_stream(self, number: int, executor: Executor) -> None:
        try:
            with self._shared.streams.beginning:
                pass  # another stream may need to be the only one
            self._execute(number, executor)
        except MultiworldError as error:
            if isinstance(error, ProtocolError):
                self._fail(error)
            elif isinstance(error, DeviceUnusableError):
                self._failure = error  # the master was told, and breaks the connection
        except Exception as error:
            self._fail(error)
        finally:
            self._shared.streams.end(number)

    def _fail(self, error: Exception) -> None:
        """A stream can't go on: the session ends with its error."""
        self._failure = error
        self._world.abort()

    def _bulk_broke(self) -> None:
        """A master that can't send large tensors any more needs a new session."""
        if not self.was_ended:
            self._world.abort()

    def _arrives(self, message: memoryview) -> None:
        arrives = TO_NODE.decode(message)
        answer = self._shared.expect(arrives) if isinstance(arrives, Arrives) else None
        if answer is not None:
            self._replies.tell(answer)

    def _controlled(self, message: memoryview) -> None:
        said = TO_NODE.decode(message)
        if isinstance(said, Welcome):
            if said.mark:
                self._shared.accesses.show(said.mark)
            self._welcome.succeed(said)
        elif isinstance(said, Written):
            self._shared.accesses.was_written(said.id)
        elif isinstance(said, Read):
            self._shared.accesses.was_read(said.request)
        elif isinstance(said, Meet | Part):
            self._shared.peers.heard(said)
        elif isinstance(said, Refused):
            self._welcome.fail(RefusedByMasterError(said.reason))
        elif isinstance(said, AskStatistics):
            statistics = NodeStatistics(
                num_tensors=len(self._shared.table),
                memory_bytes=resident_bytes(),
                num_executed=self._shared.streams.num_executed,
            )
            self._replies.say(said.request, statistics)
        elif isinstance(said, Drop):
            self._shared.is_dropping = True
            self._shared.end()
        elif isinstance(said, OpenStream):
            self._open_stream(said.number)
            self._replies.say(said.request, Outcome(shown=None))


async def _join(manager: WorldManager, name: str, options: NodeOptions, backend: str) -> World:
    return await join_shared(manager, name, lanes.NODE, options.store, backend, JOIN_S)


def hello_of_this_process(calls: Iterable[DeclaredCall] = (), mark: Mark | None = None) -> NodeHello:
    return NodeHello(
        version=messages.VERSION,
        multiworld=own_version(),
        torch=torch.__version__,
        pid=os.getpid(),
        host=socket.gethostname(),
        devices=devices(),
        calls={each.name: each.replayable for each in calls},
        mark="" if mark is None else mark.text,
        mark_at=0 if mark is None else mark.address,
    )
