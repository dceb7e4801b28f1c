"""The joins of one manager: each within its time, one at a time for each name, and a failure leaves nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from ...channel.base import DataChannel
from ...channel.registry import find_channel
from ...errors import JoinRefusedError, StoreError, WorldBrokenError, WorldClosedError, again
from ...wire.endpoints.dialer import DialError
from ...wire.progress.compute_thread import ComputeThread
from ...wire.progress.operation import Operation, StepsCancelled, drive
from ...wire.progress.thread import ProgressThread
from ..launcher.link import LaunchLink
from ..links.peer_connections import PeerConnections
from ..operations.arguments import check_seconds
from ..state import WorldState
from ..world import World, WorldOwner
from .elastic_join import ElasticJoin
from .formation import Formation
from .join_request import JoinRequest, after, target_of
from .membership import Membership
from .stores import Stores

MAX_MARGIN_S, MARGIN_SHARE = 0.5, 0.2  # of a join's time, kept to find out who did not come
CLOSED = "the manager was closed meanwhile"
NUM_REMEMBERED = 1024  # worlds that were left, and may be formed again by their name alone


class JoinOwner(WorldOwner, Protocol):
    """What joins tell their manager, besides what worlds do."""

    def world_formed(self, world: World, took_s: float) -> None:
        """It is among the worlds now; it may have broken already."""

    def discard(self, world: World) -> None:
        """Close what is left of a world here."""


class Joining:
    """``worlds`` is the manager's: what is formed is put there."""

    def __init__(
        self,
        owner: JoinOwner,
        worlds: dict[str, World],
        *,
        loop: ProgressThread,
        compute_thread: ComputeThread,
        connections: PeerConnections,
        membership: Membership,
        stores: Stores,
        host: str | None,
        job: str,
        launcher: LaunchLink | None,
        report_lost: Callable[[World, int, str], None],
    ) -> None:
        self._owner, self._worlds = owner, worlds
        self._loop, self._compute_thread = loop, compute_thread
        self._connections, self._membership = connections, membership
        self._stores, self._host, self._job, self._report_lost = stores, host, job, report_lost
        self._launcher = launcher
        self._lock = threading.Lock()
        self._closed = False
        self._joining: dict[str, Operation[World]] = {}
        self._requests: dict[str, JoinRequest] = {}  # for the next generation; the world formed last stands last

    def start(self, request: JoinRequest, channel_class: type[DataChannel]) -> Operation[World]:
        """Form a world. Raises JoinRefusedError if this process is in one of that name, or is joining it."""
        name = request.name
        with self._lock:
            if self._closed:
                raise JoinRefusedError(name, CLOSED)
            old = self._worlds.get(name)
            if name in self._joining or (old is not None and old.state is WorldState.ACTIVE):
                raise JoinRefusedError(name, "this process is in a world of that name already; leave it first")
            outer: Operation[World] = Operation()
            self._joining[name] = outer
        try:
            self._supervise(*self._formation(request, channel_class, old), outer)
        except BaseException as error:  # an interrupt, say: the name is free again, and nothing goes on under it
            outer.cancel(JoinRefusedError(name, f"it was interrupted by {type(error).__name__}"))
            with self._lock:
                if self._joining.get(name) is outer:
                    del self._joining[name]
            raise
        return outer

    def _formation(
        self, request: JoinRequest, channel_class: type[DataChannel], old: World | None
    ) -> tuple[JoinRequest, Formation]:
        if old is not None:
            request = after(request, old)
        elif request.follows_launcher and request.name in self._requests:  # on another store, perhaps, since it left
            left = self._requests[request.name]
            request = replace(request, min_generation=max(request.min_generation, left.min_generation))
        formation = Formation(
            request,
            channel_class,
            loop=self._loop,
            compute_thread=self._compute_thread,
            connections=self._connections,
            membership=self._membership,
            owner=self._owner,
            report_lost=self._report_lost,
        )
        return request, formation

    def start_again(self, name: str, timeout_s: float) -> Operation[World]:
        """Form the next generation of a world; the present one breaks, if it stands."""
        request = self._requests.get(name)
        if request is None:
            raise ValueError(
                f"cannot rejoin {name!r}: this process never was in a world of that name, or has left "
                f"{NUM_REMEMBERED:,} others since; use join()"
            )
        check_seconds(timeout_s, "timeout_s")
        world = self._worlds.get(name)
        if world is not None and world.state is WorldState.ACTIVE:
            world.break_with(WorldBrokenError(name, world.generation, world.rank, "this rank rejoins"))
        request = replace(request, timeout_s=timeout_s, serve_store=False)
        return self.start(request, find_channel(request.backend, request.device))

    def start_beside(self, world: World, name: str, rank: int, world_size: int, timeout_s: float) -> Operation[World]:
        """Form a world of some members of another, as that one was formed."""
        request = self._requests.get(world.name)
        if request is None or self._worlds.get(world.name) is not world:
            raise again(world.error) if world.error is not None else WorldClosedError(world.name, world.generation)
        check_seconds(timeout_s, "timeout_s")
        request = replace(
            request,
            name=name,
            rank=rank,
            world_size=world_size,
            timeout_s=timeout_s,
            serve_store=False,
            min_generation=1,
        )
        return self.start(request, find_channel(request.backend, request.device))

    def cancel_all(self) -> None:
        """The manager closes."""
        with self._lock:
            self._closed = True
            joining = list(self._joining.items())
        for name, each in joining:
            each.cancel(JoinRefusedError(name, CLOSED))

    def _supervise(self, request: JoinRequest, formation: Formation, outer: Operation[World]) -> None:
        """Run the formation within its time: it is asked to stop shortly before, and given up at the end."""
        steps = drive(self._run(request, formation, time.monotonic()))
        outer.on_cancel = partial(_cancel, steps)
        if outer.done:  # the manager was closed meanwhile
            _cancel(steps)
        margin = min(MAX_MARGIN_S, MARGIN_SHARE * request.timeout_s)
        soft = self._loop.call_later(request.timeout_s - margin, partial(_ask_to_stop, steps))
        hard = self._loop.call_later(request.timeout_s, lambda: self._give_up(outer, formation))

        def settle(_: Operation[World]) -> None:
            soft.cancel()
            hard.cancel()
            with self._lock:
                if self._joining.get(request.name) is outer:
                    del self._joining[request.name]

        def finish(_: Operation[World]) -> None:
            if steps.error is not None:
                outer.fail(steps.error)
            elif not outer.succeed(steps.result()):  # given up or cancelled in the very last moment
                self._owner.world_aborted(steps.result())

        outer.add_callback(settle)
        steps.add_callback(finish)

    async def _run(self, request: JoinRequest, formation: Formation, started: float) -> World:
        try:
            await self._prepare(request)
            if request.follows_launcher:
                assert self._launcher is not None
                elastic = ElasticJoin(request, formation, self._launcher, self._loop)
                world = await elastic.form(partial(self._try, formation, request))
            else:
                formation.aim(target_of(request, None))
                world = await self._try(formation, request)
        except StepsCancelled:
            missing = await formation.missing()
            raise formation.timeout_error(missing) from None
        self._worlds[request.name] = world
        self._remember(after(request, world))
        self._owner.world_formed(world, time.monotonic() - started)
        return world

    async def _try(self, formation: Formation, request: JoinRequest) -> World:
        """Form it by the present target; a process that replaces a dead host of the store serves the store again."""
        target = formation.target
        assert target is not None

        def unreachable(error: DialError) -> None:
            formation.store_failure = str(error)

        while True:
            store = await self._stores.client(target.store_url, request.name, request.timeout_s, unreachable)
            try:
                return await formation.form(store, self._host or store.local_host, self._job)
            except StoreError as error:
                formation.last_failure = str(error)
                formation.aim(target)

    def _remember(self, request: JoinRequest) -> None:
        """Keep what a rejoin needs to know: of all worlds that are here, and of the last ones that were left."""
        with self._lock:
            self._requests.pop(request.name, None)
            self._requests[request.name] = request
            if len(self._requests) > NUM_REMEMBERED + len(self._worlds):
                del self._requests[next(name for name in self._requests if name not in self._worlds)]

    async def _prepare(self, request: JoinRequest) -> None:
        """Serve the store if asked to; then close the broken world of that name, if there is one."""
        if request.serve_store:
            assert request.store_url is not None
            try:
                await self._stores.serving(request.store_url)
            except StoreError as error:
                raise JoinRefusedError(request.name, str(error)) from error
        old = self._worlds.get(request.name)
        if old is not None:
            # A peer that answers late gets what it still needs, and keeps nobody from the next generation.
            old.parted.add_callback(lambda _: self._owner.discard(old))

    def _give_up(self, outer: Operation[World], formation: Formation) -> None:
        if outer.fail(formation.timeout_error(None)) and formation.target is not None:
            self._stores.drop(formation.target.store_url)


def _cancel(steps: Operation[World]) -> None:
    steps.cancel(StepsCancelled())


def _ask_to_stop(steps: Operation[World]) -> None:
    """Cancel what the steps wait for now; they clean up and say why the time was not enough."""
    if steps.on_cancel is not None:
        steps.on_cancel()
