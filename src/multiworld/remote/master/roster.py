"""Forms the worlds that the master shares with each node, and again when one is lost, on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...errors import ChannelUnavailableError, JoinMismatchError, JoinRefusedError, JoinTimeoutError, MultiworldError
from ...world.manager import WorldManager
from ...world.world import World
from ..errors import ConnectError
from ..joining import join_beside, join_shared
from ..protocol import lanes, messages
from ..protocol.lanes import names_of
from ..protocol.messages import NodeHello, Refused, Welcome
from ..session.session import Session
from ..session.sync_points import SyncPoints
from ..version import own_version

logger = logging.getLogger(__name__)

JOIN_S = 60.0
REJOIN_S = 15.0
"""An attempt to meet a lost node again ends earlier: it may wait on a connection to a host that was cut off or died.

Such a node may be given up after 60 s, so there is time for several attempts.
"""
HELLO_S = 30.0
RETRY_S = 0.5
STOP_S = 0.5
LEAVE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class NodePlace:
    """Where the worlds of a node form: ``store`` is None under the launcher.

    ``joins_as``: returns the number that the node has in their names now; None: ``number``.
    """

    number: int
    store: str | None
    joins_as: Callable[[], int] | None = None

    @property
    def names(self) -> tuple[str, str]:
        return names_of(self.number if self.joins_as is None else self.joins_as())


class Roster:
    """``on_session`` is called with each session that stands, ``on_lost`` with one that stands no more, ``on_refused``
    with the reason why a node can't be used.

    All on the roster's thread.
    """

    def __init__(
        self,
        manager: WorldManager,
        bulk_manager: WorldManager,
        *,
        backend: str,
        num_threads: int,
        sync_points: SyncPoints,
        on_session: Callable[[Session], None],
        on_lost: Callable[[Session], None],
        on_refused: Callable[[int, str], None],
        prepare: Callable[[int], None] = lambda number: None,
    ) -> None:
        """``prepare`` is called before each attempt to form the worlds of a node, and may block."""
        self._manager, self._bulk_manager = manager, bulk_manager
        self._backend, self._num_threads, self._sync_points = backend, num_threads, sync_points
        self._on_session, self._on_lost, self._on_refused = on_session, on_lost, on_refused
        self._prepare = prepare
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="multiworld-remote", daemon=True)
        self._thread.start()

    def add(self, place: NodePlace) -> None:
        """Keep a session with this node, from now on."""
        asyncio.run_coroutine_threadsafe(self._keep(place), self._loop)

    def close(self) -> None:
        """Form nothing more. Bounded: a step that is under way is not waited for."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)

    async def _keep(self, place: NodePlace) -> None:
        """Form the worlds of a node, and again whenever it is lost. Only a node that does not fit ends that."""
        was_there = False
        lost: Session | None = None
        while True:
            returning = lost if lost is not None and lost.away is not None and not lost.is_over else None
            try:
                await self._loop.run_in_executor(None, self._prepare, place.number)
                session = await self._form(place, returning, -1 if lost is None else lost.generation)
            except (ConnectError, JoinMismatchError, ChannelUnavailableError, ValueError) as error:
                if returning is not None:
                    returning.give_up(str(error))
                self._on_refused(place.number, str(error))
                return
            except JoinTimeoutError as error:
                logger.info("node %d does not come: %s", place.number, error)
            except (MultiworldError, OSError, asyncio.TimeoutError) as error:  # it was lost while it came
                if isinstance(error, JoinRefusedError) and not was_there:  # as of a wrong token
                    self._on_refused(place.number, str(error))
                    return
                logger.info("node %d could not be reached: %s", place.number, error)
                await asyncio.sleep(RETRY_S)
            else:
                was_there = True
                self._on_session(session)
                await session.wait_lost()
                reason = session.dead or session.away
                if reason is not None:
                    logger.warning("node %d is lost: %s. Other nodes go on.", session.number, reason)
                self._on_lost(session)
                lost = session

    async def _form(self, place: NodePlace, returning: Session | None, after: int) -> Session:
        """``returning``: the session of a node that is made anew. ``after``: the generation before, or -1."""
        command_name, bulk_name = place.names
        limit_s = JOIN_S if after < 0 else REJOIN_S
        world = await self._join(self._manager, command_name, place, "auto", limit_s)
        try:
            bulk = await join_beside(world, self._join(self._bulk_manager, bulk_name, place, self._backend, limit_s))
            session = await self._greet(place.number, world, bulk, returning, after)
            if returning is not None and (recovery := returning.recovery) is not None:
                await self._loop.run_in_executor(None, recovery.make_anew)
            return session
        except BaseException:
            world.abort()
            raise

    async def _join(self, manager: WorldManager, name: str, place: NodePlace, backend: str, limit_s: float) -> World:
        return await join_shared(manager, name, lanes.MASTER, place.store, backend, limit_s)

    async def _greet(self, number: int, world: World, bulk: World, returning: Session | None, after: int) -> Session:
        """Raises ConnectError for a node that does not fit."""
        came: asyncio.Future[NodeHello] = self._loop.create_future()

        def hello(said: NodeHello) -> None:
            self._loop.call_soon_threadsafe(_settle, came, said)

        if returning is None:
            session = Session(number, world, bulk, self._sync_points, on_hello=hello, after=after)
        else:
            session = returning
            session.connect(world, bulk, hello)
        lost = asyncio.ensure_future(session.wait_lost())
        try:
            await asyncio.wait((came, lost), timeout=HELLO_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
        if not came.done():
            session.abandon(f"it said nothing for {HELLO_S:g} s")
            raise session.death("the handshake", "the start")
        said = came.result()
        reason = mismatch(said)
        if reason:
            session.tell(Refused(reason=reason))
            await world.leave(LEAVE_S)  # it has to hear this
            raise ConnectError(f"node {number} on {said.host}: {reason}")
        memory = session.link.memory
        mark = "" if memory is None else memory.demand_mark()
        session.tell(Welcome(number=number, num_threads=self._num_threads, mark=mark))
        return session


def mismatch(hello: NodeHello) -> str:
    """Return why a node can't work for this master; empty if it can."""
    for what, theirs, ours in (
        ("protocol", str(hello.version), str(messages.VERSION)),
        ("multiworld", hello.multiworld, own_version()),
        ("torch", _release(hello.torch), _release(torch.__version__)),
    ):
        if theirs != ours:
            return f"it has {what} {theirs}, and the master has {ours}: install the same release on both"
    return ""


def _settle(came: asyncio.Future[NodeHello], said: NodeHello) -> None:
    if not came.done():
        came.set_result(said)


def _release(version: str) -> str:
    """Return a version without what says how it was built: a node may have CUDA where the master has none."""
    return version.partition("+")[0]
