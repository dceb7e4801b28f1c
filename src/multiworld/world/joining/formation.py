"""Form one world: meet the members, connect to them, and try the next generation when one is lost on the way."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

from ...channel.base import ChannelContext, DataChannel
from ...errors import JoinRefusedError, JoinTimeoutError, ProtocolError, StoreError, WorldBrokenError
from ...store.base import Store
from ...wire.endpoints.dialer import DialError
from ...wire.progress.compute_thread import ComputeThread
from ...wire.progress.operation import Operation, StepsCancelled, drive, settler
from ...wire.progress.thread import ProgressThread
from ...wire.progress.waiting import on_progress_thread, pause
from ..links.messages import MemberReady
from ..links.peer_connections import LinkError, PeerConnections, WorldConnector
from ..links.peers import PeerInfo
from ..world import World, WorldOwner
from .join_request import JoinRequest, JoinTarget
from .membership import Membership
from .rendezvous import Invitation, Meeting, Rendezvous

logger = logging.getLogger(__name__)

T = TypeVar("T")
RETRY_S = 0.05
WATCH_S = 0.2
LINK_S = 5.0  # a member that was just there and does not answer for this long costs its generation, not the whole join


class Formation:
    """The steps of one ``join``: ``aim``, then run ``form`` with ``drive``, and again if it fails or is cancelled.

    Members that fail on the way cost a generation, not the join.
    """

    def __init__(
        self,
        request: JoinRequest,
        channel_class: type[DataChannel],
        *,
        loop: ProgressThread,
        compute_thread: ComputeThread,
        connections: PeerConnections,
        membership: Membership,
        owner: WorldOwner,
        report_lost: Callable[[World, int, str], None],
    ) -> None:
        self._request, self._channel_class = request, channel_class
        self._loop, self._compute_thread = loop, compute_thread
        self._connections, self._membership = connections, membership
        self._owner, self._report_lost = owner, report_lost
        self._deadline = time.monotonic() + request.timeout_s
        self.target: JoinTarget | None = None
        self.waits_for = ""  # while there is no target
        self.rendezvous: Rendezvous | None = None
        self.is_connecting = False  # all have met, and a store is not needed any more
        self.last_failure = ""  # of an attempt, for the error that says so if none succeeds in time
        self.store_failure = ""  # likewise, of the last try to reach the store

    def aim(self, target: JoinTarget | None, waits_for: str = "") -> None:
        """The next try goes by that; what it is that has to come first, if there is none yet."""
        self.target, self.waits_for = target, waits_for
        self.rendezvous = None

    async def form(self, store: Store, host: str, job: str) -> World:
        """Return the active world. Fails with JoinError, or as the awaited operation is cancelled."""
        await on_progress_thread(self._loop)
        request, target = self._request, self.target
        assert target is not None
        if self._channel_class.authenticates and not self._connections.has_token:
            reason = f"backend {self._channel_class.name!r} needs a secret to authenticate with: set MULTIWORLD_TOKEN"
            raise JoinRefusedError(request.name, reason)
        invitation = Invitation(
            job=job,
            name=request.name,
            rank=target.rank,
            world_size=target.world_size,
            backend=self._channel_class.name,
            me=self._listen(host),
            membership=target.membership,
        )
        self.rendezvous = Rendezvous(self._loop, store, invitation, min_generation=request.min_generation)
        world: World | None = None
        try:
            while world is None:
                meeting = await self.rendezvous.meet()
                world = await self._try(meeting, store, invitation)
                if world is None:
                    self.rendezvous.withdraw()
                    await pause(self._loop, RETRY_S)
            return world
        finally:
            self.rendezvous.withdraw()

    def _listen(self, host: str) -> PeerInfo:
        try:
            return self._connections.listen(host)
        except OSError as error:
            reason = f"cannot listen on {host}: {error.strerror or error}"
            raise JoinRefusedError(self._request.name, reason) from error

    async def _try(self, meeting: Meeting, store: Store, invitation: Invitation) -> World | None:
        """Connect to the members that met.

        None: one of them failed meanwhile, so the next generation has to be tried.
        """
        elsewhere = [rank for rank, peer in enumerate(meeting.members) if peer.host_id != invitation.me.host_id]
        refusal = self._channel_class.refusal(elsewhere)
        if refusal:
            raise JoinRefusedError(self._request.name, refusal)
        world = self._new_world(meeting, invitation)
        watch = drive(self._watch(world, meeting))
        self.is_connecting = True
        try:
            await self._connect(world, meeting, store, invitation, watch)
            return world
        except (WorldBrokenError, DialError, ProtocolError, LinkError, StoreError, OSError) as error:
            self.last_failure = str(error)
            logger.info("world %s generation %d was not formed: %s", world.name, world.generation, error)
            return None
        finally:
            self.is_connecting = False
            watch.cancel(StepsCancelled())
            if world.state.value == "forming":
                world.break_with(WorldBrokenError(world.name, world.generation, world.rank, "it could not be formed"))

    def _new_world(self, meeting: Meeting, invitation: Invitation) -> World:
        return World(
            self._owner,
            self._loop,
            name=invitation.name,
            rank=invitation.rank,
            world_size=invitation.world_size,
            generation=meeting.generation,
            backend=self._channel_class.name,
            device=self._request.device,
            is_inner=self._request.is_inner,
        )

    async def _watch(self, world: World, meeting: Meeting) -> None:
        """Give this generation up when a member withdraws before it can have formed it.

        One that withdrew before it knew who is in it could not tell the others.
        """
        assert self.rendezvous is not None
        while True:
            await pause(self._loop, WATCH_S)
            try:
                absent = await self.rendezvous.absent(meeting)
            except StoreError:
                return  # whoever has met needs no store any more
            if absent:
                world.break_with(WorldBrokenError(world.name, world.generation, absent[0], "it gave up its join"))
                return

    async def _connect(
        self, world: World, meeting: Meeting, store: Store, invitation: Invitation, watch: Operation[None]
    ) -> None:
        await on_progress_thread(self._loop)
        me, members = invitation.me, meeting.members
        world.peer_ids = tuple(member.id for member in members)
        ready = self._membership.open(world, meeting.uid, members)
        if ready.done:
            await ready  # a member gave this generation up before we knew of it
        peers = [peer for rank, peer in enumerate(members) if rank != world.rank]
        links = [self._connections.ensure_link(peer, me, min(LINK_S, self._remaining())) for peer in peers]
        for link in links:
            await self._unless_broken(world, link)
        channel = self._channel_class(self._context(world, meeting, store, invitation))
        world.use_channel(channel)
        await self._unless_broken(world, channel.connect(self._remaining()))
        watch.cancel(StepsCancelled())  # from now on the others may form it, and withdraw their records
        await on_progress_thread(self._loop)
        for peer in peers:
            self._connections.tell(peer, MemberReady(world=meeting.uid, rank=world.rank))
        await self._unless_broken(world, ready)
        if not world.activate():
            assert world.error is not None
            raise world.error

    def _context(self, world: World, meeting: Meeting, store: Store, invitation: Invitation) -> ChannelContext:
        formed = weakref.ref(world)  # whose channel has the context

        def report_lost(rank: int, reason: str) -> None:
            world = formed()
            if world is not None:
                self._report_lost(world, rank, reason)

        connector = WorldConnector(
            self._connections,
            meeting.uid,
            world.rank,
            invitation.me,
            meeting.members,
            authenticated=self._channel_class.authenticates,
        )
        return ChannelContext(
            world=world.name,
            generation=world.generation,
            rank=world.rank,
            world_size=world.world_size,
            device=world.device,
            hosts=[member.host for member in meeting.members],
            loop=self._loop,
            connector=connector,
            store=store,
            store_prefix=f"{invitation.job}/{world.name}/channel/{meeting.uid}/",
            compute=self._compute_thread.run,
            report_lost=report_lost,
        )

    async def _unless_broken(self, world: World, operation: Operation[T]) -> T:
        """Await, but raise the world's error as soon as a member is lost."""
        given_up = WorldBrokenError(world.name, world.generation, world.rank, "its join was given up")

        def cancel() -> None:
            operation.cancel(given_up)

        first: Operation[None] = Operation(cancel)
        operation.add_callback(settler(first))
        world.on_broken(settler(first))
        await first
        if not operation.done:
            assert world.error is not None
            operation.cancel(world.error)
            raise world.error
        return operation.result()

    def _remaining(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    async def missing(self) -> list[int] | None:
        """Return the ranks that are not there, or None if the store cannot be asked any more."""
        if self.rendezvous is None:
            return None
        try:
            return await self.rendezvous.missing()
        except StoreError:
            return None

    def timeout_error(self, missing: list[int] | None) -> JoinTimeoutError:
        """Say what was waited for when the time was over."""
        request, target, mend = self._request, self.target, "raise timeout_s"
        if target is None:
            reason = self.waits_for
        elif missing is None:
            reason, mend = f"the store at {target.store_url} did not answer", "start what serves it, or raise timeout_s"
            if self.store_failure:
                reason += f" ({self.store_failure})"
        elif missing:
            ranks = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
            reason = f"{ranks} of {target.world_size} did not come"
            mend = f"start {'them' if len(missing) > 1 else 'it'}, or raise timeout_s"
            if target.membership is not None:
                reason += f" in generation {target.membership} of the job"
        else:
            reason = "all ranks came, but could not connect to each other"
        if self.last_failure:
            reason += f" (the last attempt failed: {self.last_failure})"
        return JoinTimeoutError(request.name, f"{reason} within {request.timeout_s:g} s; {mend}")
