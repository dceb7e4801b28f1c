"""The manager of all worlds that one process belongs to: it joins, watches, breaks and closes them."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.distributed.device_mesh import DeviceMesh

from ..channel.registry import find_channel
from ..errors import (
    PeerDiedError,
    PeerLeftError,
    PeerSilentError,
    PeerStoppedError,
    PeerUnreachableError,
    StaleGenerationError,
    StoreError,
    WorldBrokenError,
)
from ..events import Event, PeerLost, PeerSuspected, WorldBroken, WorldFormed, WorldLeft
from ..store.tcp import TCPStore
from ..wire.endpoints.addresses import is_address
from ..wire.endpoints.dialer import DialError
from ..wire.endpoints.token import check_token, warn_of_weakness
from ..wire.progress.compute_thread import ComputeThread
from ..wire.progress.operation import Operation, StepsCancelled, drive, settler
from ..wire.progress.thread import ProgressThread
from ..wire.progress.waiting import pause, run_in_thread, wait_async, wait_blocking, wait_to_the_end
from .blocking_manager import BlockingManager
from .detector import Detector
from .joining.join_request import JoinRequest, check_request
from .joining.joining import Joining
from .joining.membership import Entry, Membership
from .joining.stores import Stores
from .launcher.launched import MAX_JOB_NAME, launched, token_of_environment
from .launcher.news import Left, News, news_of
from .launcher.process_link import open_link, release_link
from .links.link import Link
from .links.messages import Goodbye, MemberLeft, MemberReady, WorldNews, WorldRevoked, unpack_news
from .links.peer_connections import PeerConnections
from .liveness import DEFAULT_LEASE_S, Cause, LivenessPolicy, Lost
from .operations.arguments import check_seconds
from .operations.several import together
from .processes.lifetime import unwatch_process, watch_process
from .state import WorldChange, WorldState
from .subscription import Broadcaster, Subscription
from .world import LEAVE_S, GroupOfWorld, World

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

EXIT_LEAVE_S = 2.0
EXIT_MARGIN_S = 2.0
DATA_LOSS_GRACE_S = 0.25  # the link usually tells the cause of a lost data connection within a millisecond
ERRORS: dict[str, type[WorldBrokenError]] = {
    error.__name__: error
    for error in (
        WorldBrokenError,
        PeerDiedError,
        PeerStoppedError,
        PeerSilentError,
        PeerUnreachableError,
        PeerLeftError,
    )
}
BY_CAUSE: dict[Cause, type[WorldBrokenError]] = {
    Cause.DIED: PeerDiedError,
    Cause.STOPPED: PeerStoppedError,
    Cause.SILENT: PeerSilentError,
    Cause.UNREACHABLE: PeerUnreachableError,
    Cause.LEFT: PeerLeftError,
}


class WorldManager:
    """All worlds of this process. Use it as ``async with`` or ``with``, or call ``aclose`` or ``close``.

    ``job`` separates jobs that share a store; default: the launcher's, else ``"default"``. ``token`` (default:
    ``MULTIWORLD_TOKEN``) is a secret, long and random, that every process of the job must prove. ``lease_s`` (0.3 to
    60): a peer that shows no sign of life for this long is lost. ``host``: the numeric address to listen on; default:
    the one that leads to the store, so loopback stays loopback.
    """

    def __init__(
        self,
        *,
        job: str | None = None,
        token: str | None = None,
        lease_s: float = DEFAULT_LEASE_S,
        host: str | None = None,
    ) -> None:
        launch = launched()
        if job is None:
            job = "default" if launch is None else launch.job
        if not isinstance(job, str) or not job or "/" in job or len(job) > MAX_JOB_NAME:
            raise ValueError(f"job={job!r}: expected a name of 1 to {MAX_JOB_NAME} characters without '/'")
        if host is not None and not is_address(host):
            raise ValueError(f"host={host!r}: expected the numeric address of one of this machine's interfaces")
        policy = LivenessPolicy(lease_s=lease_s)
        self.job, self.lease_s = job, lease_s
        secret = self._secret = _secret(token, is_launched=launch is not None)
        self._host = host
        self._id = os.urandom(16).hex()
        self._worlds: dict[str, World] = {}
        self._parting: dict[World, Entry] = {}  # broken by a leave, while what was sent goes on
        self._lock = threading.Lock()
        self._closed: Operation[None] | None = None
        self._forked = False
        self._closing: Operation[None] | None = None
        self._finishing = threading.Lock()
        self._dialing: dict[Operation[TCPStore], str] = {}  # with the URL; guarded by ``_lock``
        self._events: Broadcaster[Event] = Broadcaster()
        self._loop = ProgressThread(f"multiworld-{self._id[:6]}")
        self._compute_thread = ComputeThread(f"multiworld-compute-{self._id[:6]}")
        self._membership = Membership()
        self._detector = Detector(
            self._loop, policy, secret, self._id, on_lost=self._peer_lost, on_suspected=self._peer_suspected
        )
        self._connections = PeerConnections(
            self._loop, self, policy, secret, job, self._id, on_link=self._detector.watch
        )
        self._connections.is_launched = launch is not None
        self._stores = Stores(self._loop, secret, host)
        self._launcher = None if launch is None else open_link(launch)
        self._joins = Joining(
            self,
            self._worlds,
            loop=self._loop,
            compute_thread=self._compute_thread,
            connections=self._connections,
            membership=self._membership,
            stores=self._stores,
            host=host,
            job=job,
            launcher=self._launcher,
            report_lost=self._data_lost,
        )
        self.blocking = BlockingManager(self)
        watch_process(self)

    def __repr__(self) -> str:
        return f"<WorldManager job={self.job!r} worlds={list(self._worlds)}{' closed' if self._closed else ''}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def worlds(self) -> dict[str, World]:
        """The worlds of this process by name; a broken one stays until it is left or joined again."""
        return dict(self._worlds)

    def events(self) -> Subscription[Event]:
        """Return an async iterator over all events from now on; it ends when the manager closes."""
        return self._events.subscribe()

    def serve_store(self, url: str) -> str:
        """Host an embedded store here until the manager closes, and return its URL; port 0 picks a free one.

        Raises StoreError if the port is taken, ValueError for a bad URL. Serving the same URL again is no error.
        """
        self._check_open()
        return self._stores.serve(url)

    def start_store_client(self, url: str, timeout_s: float) -> Operation[TCPStore]:
        """Connect to a store by a connection of its own: what is leased there ends with it. The caller closes it.

        Fails with StoreError after ``timeout_s`` seconds, and when the manager is closed before.
        """
        self._check_open()
        check_seconds(timeout_s, "timeout_s")
        last = [f"it did not answer within {timeout_s:g} s"]

        def unreachable(error: DialError) -> None:
            last[0] = str(error)

        async def connect() -> TCPStore:
            stores = Stores(self._loop, self._secret, self._host)
            dialing = drive(stores.client(url, url, timeout_s, unreachable))
            timer = self._loop.call_later(timeout_s, partial(_cancel, dialing, url, last))
            try:
                return await dialing
            finally:
                timer.cancel()

        connecting = drive(connect())
        with self._lock:
            self._dialing[connecting] = url
            is_closed = self._closed is not None
        connecting.add_callback(self._dialed)
        if is_closed:
            self._end_dials()
        return connecting

    def _dialed(self, connecting: Operation[TCPStore]) -> None:
        with self._lock:
            self._dialing.pop(connecting, None)

    def _end_dials(self) -> None:
        """Their timers end with the progress thread: who waits for one would wait for ever."""
        with self._lock:
            dialing = list(self._dialing.items())
        for connecting, url in dialing:
            connecting.cancel(StoreError(url, "this WorldManager was closed"))

    def serves_store(self, url: str) -> bool:
        return self._stores.serves(url)

    def stop_store(self, url: str) -> None:
        self._stores.stop(url)

    async def join(
        self,
        name: str,
        rank: int | None = None,
        world_size: int | None = None,
        store: str | None = None,
        backend: str = "auto",
        timeout_s: float = 30.0,
        device: torch.device | str | None = None,
        serve_store: bool = False,
    ) -> World:
        """Form a world with the processes that join the same name at the same store; returns once all are connected.

        Under the launcher ``rank``, ``world_size`` and ``store`` may be left out, each by itself: they are the job's
        then, also when those change while this waits. All members leave rank and size to the launcher, or none does.

        ``store``: ``tcp://host:port``; with ``serve_store=True`` this process hosts it. ``backend``: ``auto``, ``tcp``,
        ``gloo``, ``mpi``, ``nccl`` or an installed one. Fails with JoinTimeoutError, JoinMismatchError or
        JoinRefusedError within ``timeout_s``, and leaves nothing behind.
        """
        request = check_request(name, rank, world_size, store, backend, timeout_s, device, serve_store)
        return await self._joined(self.start_join(request))

    async def rejoin(self, name: str, timeout_s: float = 30.0) -> World:
        """Form the next generation of a world with the same rank, size and store; the present one is closed.

        What the launcher gave, it gives anew: rank and size are those that this process has in the job now.
        """
        return await self._joined(self.start_rejoin(name, timeout_s))

    async def aclose(self, timeout_s: float = LEAVE_S) -> None:
        """Leave all worlds gracefully, then release every thread, socket and child. Idempotent.

        Cancelled, it does both at once: what has not been sent is lost.
        """
        try:
            await wait_async(self._close(timeout_s))
        except asyncio.CancelledError:
            self._hurry()
            raise
        finally:
            finishing = run_in_thread(self._finish_close, "multiworld-close")  # it waits for threads
            await wait_to_the_end(finishing)

    def close(self, timeout_s: float = LEAVE_S) -> None:
        """The blocking twin of ``aclose``."""
        try:
            wait_blocking(self._close(timeout_s))
        except BaseException:  # KeyboardInterrupt
            self._hurry()
            raise
        finally:
            self._finish_close()

    # ---- joining

    async def _joined(self, joining: Operation[World]) -> World:
        try:
            return await wait_async(joining)
        except asyncio.CancelledError:
            if joining.error is None:  # it was formed in that very moment, and nobody will use it
                self.world_aborted(joining.result())
            raise

    def _check_open(self) -> None:
        if self._forked:
            raise RuntimeError(
                "this process was forked, and this WorldManager remains its parent's; make a new one here"
            )
        if self._closed is not None:
            raise RuntimeError("this WorldManager is closed; make a new one")

    def start_join(self, request: JoinRequest) -> Operation[World]:
        self._check_open()
        if self._launcher is None:
            request.check_complete()
        return self._joins.start(request, find_channel(request.backend, request.device))

    def start_beside(self, world: World, name: str, rank: int, world_size: int, timeout_s: float) -> Operation[World]:
        self._check_open()
        return self._joins.start_beside(world, name, rank, world_size, timeout_s)

    def start_rejoin(self, name: str, timeout_s: float) -> Operation[World]:
        self._check_open()
        return self._joins.start_again(name, timeout_s)

    def world_formed(self, world: World, took_s: float) -> None:
        logger.info(
            "world %s generation %d formed: rank %d of %d", world.name, world.generation, world.rank, world.world_size
        )
        self._publish(
            WorldFormed(
                world=world.name,
                generation=world.generation,
                rank=world.rank,
                world_size=world.world_size,
                backend=world.backend,
                took_s=took_s,
            )
        )
        if world.state is WorldState.BROKEN:  # between its last step and here
            assert world.error is not None
            self._publish_broken(world, world.error)

    def _publish(self, event: Event) -> None:
        self._events.publish(event)
        self._tell_launcher(news_of(event, self.job))

    def _tell_launcher(self, news: News | None) -> None:
        if news is not None and self._launcher is not None:
            self._launcher.tell(news)

    # ---- worlds

    def world_breaks(self, world: World, error: WorldBrokenError) -> None:
        """Tell the other members, and fence the one that is lost, before they see that our connections close."""
        entry = self._membership.close(world)
        if entry is None:
            return
        if isinstance(error, PeerLeftError):
            self._say_left(entry, error.rank)
            self._parting[world] = entry
            world.parted.add_callback(partial(self._parted_from, world))
        else:
            self._revoke(entry, error)
        self._loop.call_soon(lambda: self._connections.forget_world(entry.uid, error))

    def world_broke(self, world: World, error: WorldBrokenError) -> None:
        level = logging.INFO if world.is_inner or isinstance(error, PeerLeftError) else logging.WARNING
        what = error.summary()  # the error itself advises the program to rejoin; who reads a log cannot
        logger.log(
            level, "world %r (generation %d) %s. Other worlds are unaffected.", error.world, error.generation, what
        )
        self._publish_broken(world, error)

    def _revoke(self, entry: Entry, error: WorldBrokenError) -> None:
        cause = type(error).__name__ if type(error).__name__ in ERRORS else WorldBrokenError.__name__
        rank = entry.world.rank if isinstance(error, StaleGenerationError) else error.rank
        news = WorldRevoked(world=entry.uid, rank=rank, cause=cause, detail=error.cause, by=entry.world.rank)
        for peer in entry.peers():
            self._connections.tell(peer, news)

    def _say_left(self, entry: Entry, rank: int) -> None:
        """Tell the others that we have left, as that rank has; they may still be in collectives that are over here."""
        left = MemberLeft(world=entry.uid, rank=rank, collectives=entry.world.rounds.num_started)
        for peer in entry.peers():
            self._connections.tell(peer, left)

    def _parted_from(self, world: World, _: Operation[None]) -> None:
        self._parting.pop(world, None)

    def _publish_broken(self, world: World, error: WorldBrokenError) -> None:
        if error.rank != world.rank:
            self._publish(
                PeerLost(
                    world=world.name,
                    generation=world.generation,
                    rank=error.rank,
                    cause=type(error).__name__,
                    detail=error.cause,
                )
            )
        self._publish(WorldBroken(world=world.name, generation=world.generation, error=error))

    def world_aborted(self, world: World) -> None:
        """The user gives a world up at once: it breaks for the peers."""

        self.world_breaks(world, WorldBrokenError(world.name, world.generation, world.rank, "the rank aborted it"))
        self._end(world)

    def form_process_group(self, world: World, timeout_s: float) -> GroupOfWorld:
        from .process_group.group import form_process_group  # takes 20 ms to import, which few programs need

        return form_process_group(world, timeout_s)

    def mesh_of_group(
        self, group: GroupOfWorld, dim_name: str | Sequence[str] | None, shape: Sequence[int] | None, until: float
    ) -> DeviceMesh:
        from .process_group.mesh import mesh_of_world

        return mesh_of_world(group, dim_name, shape, until)

    async def leave_worlds(self, worlds: Sequence[World], timeout_s: float | None) -> None:
        await wait_async(self._leave_all(worlds, timeout_s))

    def leave_worlds_blocking(self, worlds: Sequence[World], timeout_s: float | None) -> None:
        wait_blocking(self._leave_all(worlds, timeout_s))

    def _leave_all(self, worlds: Sequence[World], timeout_s: float | None) -> Operation[None]:
        limit_s = LEAVE_S if timeout_s is None else timeout_s
        leaving = [self.start_leave(world, limit_s) for world in worlds]
        return leaving[0] if len(leaving) == 1 else together(leaving)

    def start_leave(self, world: World, timeout_s: float) -> Operation[None]:
        return drive(self._leave_steps(world, timeout_s))

    async def _leave_steps(self, world: World, timeout_s: float) -> None:
        was_active = world.state is WorldState.ACTIVE
        gone: Operation[None] = Operation()
        if not world.change(WorldChange.LEFT):
            try:
                if world.state is WorldState.LEFT:  # somebody else is just leaving it, and may take longer than we may
                    world.on_broken(settler(gone))
                    timer = self._loop.call_later(timeout_s, settler(gone))
                    gone.add_callback(lambda _: timer.cancel())
                    await gone
                if world.state is WorldState.BROKEN:
                    await self._parted(world, timeout_s)
            finally:
                self._end(world)
            return

        def close() -> None:
            entry = self._membership.close(world)
            if entry is not None:
                self._say_left(entry, world.rank)
                left = WorldBrokenError(world.name, world.generation, world.rank, "this rank left")
                self._loop.call_soon(partial(self._connections.forget_world, entry.uid, left))
            try:
                self.discard(world)
                self._publish(WorldLeft(world=world.name, generation=world.generation))
            finally:
                gone.succeed(None)

        try:
            if was_active and world.channel is not None:
                await world.channel.flush(timeout_s)
        finally:  # cancelled, it is left all the same, without what has not been sent
            self._loop.call_soon(close)
            await gone

    def _parted(self, world: World, timeout_s: float) -> Operation[None]:
        """Return what is done when others have what they may still need of a broken world, or the time is over."""
        parted: Operation[None] = Operation()
        world.parted.add_callback(settler(parted))
        timer = self._loop.call_later(timeout_s, settler(parted))
        parted.add_callback(lambda _: timer.cancel())
        return parted

    def discard(self, world: World) -> None:
        """Close what is left of a world here."""
        world.change(WorldChange.CLOSED)
        self._forget(world)

    def _end(self, world: World) -> None:
        """As ``discard``, of a world that is not formed again by itself: the launcher hears of it."""
        if self._worlds.get(world.name) is world:
            self._tell_launcher(Left(job=self.job, name=world.name, generation=world.generation))
        self.discard(world)

    def _forget(self, world: World) -> None:
        if self._worlds.get(world.name) is world:
            del self._worlds[world.name]

    # ---- news (progress thread)

    def link_heard(self, link: Link) -> None:
        self._detector.heard(link)

    def link_lost(self, link: Link, reason: str, *, unreachable: bool) -> None:
        self._detector.gone(link, reason, unreachable=unreachable, left=link.said_goodbye)

    def link_said(self, link: Link, kind: int, body: bytes) -> None:
        link.defer(partial(self._take_news, link, unpack_news(kind, body)))

    def _take_news(self, link: Link, news: WorldNews) -> None:
        entry = self._membership.find(news.world)
        if isinstance(news, MemberReady):
            self._membership.ready(news.world, news.rank)
        elif isinstance(news, WorldRevoked):
            if entry is None:
                self._membership.revoked_early(news.world)
            else:
                self._revoked(entry.world, news)
        elif entry is not None:
            self._peer_left(entry, entry.rank_of(link.peer.id), news.rank, news.collectives)

    def _revoked(self, world: World, news: WorldRevoked) -> None:
        if news.rank == world.rank:
            world.break_with(StaleGenerationError(world.name, world.generation, news.by, news.detail))
        else:
            error = ERRORS.get(news.cause, WorldBrokenError)
            world.break_with(error(world.name, world.generation, news.rank, news.detail))

    def _peer_left(self, entry: Entry, peer: int, rank: int, num_collectives: int) -> None:
        """A peer left, because ``rank`` did, which may be itself.

        What both sent before is delivered first, and the collectives that the peer took part in may end.
        """
        if peer in entry.leaving:
            return
        entry.leaving.add(peer)
        world = entry.world
        if rank == world.rank or not 0 <= rank < world.world_size:  # which an honest peer does not say
            rank = peer
        error = PeerLeftError(world.name, world.generation, rank, "it called leave()")
        if world.channel is None:
            world.break_with(error)
            return
        last = [world.channel.drained(each) for each in {peer, rank}] + [world.rounds.over(num_collectives)]
        timer = self._loop.call_later(LEAVE_S, partial(_break, world, error))
        world.on_broken(timer.cancel)

        def finish(_: Operation[None]) -> None:
            if all(operation.done for operation in last):
                self._loop.call_soon(partial(_break, world, error))

        for operation in last:
            operation.add_callback(finish)

    def _peer_lost(self, link: Link, lost: Lost[str]) -> None:
        for entry in self._membership.shared_with(link.peer.id):
            world, rank = entry.world, entry.rank_of(link.peer.id)
            if lost.cause is Cause.LEFT:
                self._peer_left(entry, rank, rank, 0)
            elif (
                rank not in entry.leaving
            ):  # else what it took part in may still end well, for as long as a leave lasts
                error = BY_CAUSE[lost.cause]
                world.break_with(error(world.name, world.generation, rank, lost.detail))
        for world in list(self._worlds.values()):  # those that are broken, too
            if link.peer.id in world.peer_ids:
                rank = world.peer_ids.index(link.peer.id)
                world.note_loss(BY_CAUSE[lost.cause](world.name, world.generation, rank, lost.detail))
        for world, entry in list(self._parting.items()):
            if lost.cause is not Cause.LEFT and entry.rank_of(link.peer.id) >= 0:
                world.parted.succeed(None)  # it takes nothing any more
        self._connections.drop_link(link)
        link.finish()

    def _peer_suspected(self, link: Link, silent_s: float) -> None:
        for entry in self._membership.shared_with(link.peer.id):
            world = entry.world
            rank = entry.rank_of(link.peer.id)
            self._publish(PeerSuspected(world=world.name, generation=world.generation, rank=rank, silent_s=silent_s))

    def _data_lost(self, world: World, rank: int, reason: str) -> None:
        """A data connection ended. The link knows the cause; if that stays well, the data path alone is broken.

        With this rank's own number: something happened here that the channel cannot survive.
        """
        if rank == world.rank:
            world.break_with(WorldBrokenError(world.name, world.generation, rank, reason))
            return

        def judge() -> None:
            entry = self._membership.entry_of(world)
            if entry is not None and rank in entry.leaving:
                return  # what it took part in may still end well
            detail = f"its data connection was lost ({reason}) while its process lives"
            world.break_with(PeerUnreachableError(world.name, world.generation, rank, detail))

        self._loop.call_later(DATA_LOSS_GRACE_S, judge)

    # ---- the end

    def _close(self, timeout_s: float) -> Operation[None]:
        with self._lock:
            if self._closed is None:
                self._closed = Operation()
                first = True
            else:
                first = False
            closed = self._closed
        if first:
            self._closing = drive(self._close_steps(timeout_s))
            self._closing.add_callback(settler(closed))
        waiting: Operation[None] = Operation()  # of this caller alone, who may be cancelled
        closed.add_callback(settler(waiting))
        return waiting

    async def _close_steps(self, timeout_s: float) -> None:
        self._joins.cancel_all()
        self._end_dials()
        # The latest first: the worlds of a mesh are being left already when theirs ends, and are not cut short then.
        leaving = [self.start_leave(world, timeout_s) for world in reversed(list(self._worlds.values()))]
        try:
            for operation in leaving:
                await operation
        except StepsCancelled:
            for operation in leaving:
                operation.cancel(StepsCancelled())
        gone: Operation[None] = Operation()

        def release() -> None:
            for link in list(self._connections.links.values()):
                link.tell(Goodbye())
                self._detector.forget(link)
                link.finish()
            self._loop.call_soon(settler(gone))

        self._loop.call_soon(release)
        await gone
        await pause(self._loop, 0.0)

    def _hurry(self) -> None:
        if self._closing is not None:
            self._closing.cancel(StepsCancelled())

    def _finish_close(self) -> None:
        """Stop the threads; what the progress thread still holds is closed there first."""

        def release() -> None:
            self._detector.close()
            self._stores.close()
            self._connections.close()

        with self._finishing:
            if not self._loop.running:
                return
            self._loop.close_readers()
            self._loop.call_soon(release)
            self._compute_thread.stop()
            self._loop.stop()
            self._events.close()
            unwatch_process(self)
            if self._launcher is not None:
                release_link(self._launcher)
            if self._closed is not None:
                self._closed.succeed(None)  # for others who wait, if this caller was cancelled

    def on_exit(self) -> None:
        if self._closed is not None:
            return
        gone = threading.Event()
        self._close(EXIT_LEAVE_S).add_callback(lambda _: gone.set())
        if gone.wait(EXIT_LEAVE_S + EXIT_MARGIN_S):
            self._finish_close()
        else:  # a defect; who waits for this process to end must not wait for ever
            logger.error("could not leave all worlds at exit; to the others it is as if this process had died")

    def on_fork(self) -> None:
        self._forked = True
        self._closed = Operation()
        self._closed.succeed(None)
        for world in self._worlds.values():
            world.abandon_after_fork()
        self._loop.abandon_after_fork()


def _cancel(dialing: Operation[TCPStore], url: str, last: list[str]) -> None:
    dialing.cancel(StoreError(url, last[0]))


def _break(world: World, error: WorldBrokenError) -> None:
    world.break_with(error)


def _secret(token: str | None, *, is_launched: bool) -> bytes:
    """Return what all processes of the job prove; empty if there is none."""
    if token is not None:
        check_token(token, "token=")
        warn_of_weakness(token, "WorldManager(token=)")
        return token.encode()
    token = token_of_environment()
    if not is_launched:  # else the agent has
        warn_of_weakness(token)
    return token.encode()
