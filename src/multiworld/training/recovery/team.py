"""The world of the present generation, and how the next one comes: agree, then form."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ...errors import (
    JoinError,
    PeerDiedError,
    PeerLeftError,
    PeerSilentError,
    PeerStoppedError,
    PeerUnreachableError,
    StoreError,
    WorldBrokenError,
)
from ...wire.progress.operation import Operation
from ...world.joining.join_request import check_request
from ...world.manager import WorldManager
from ...world.state import WorldState
from ...world.world import World
from ..engine.facts import Facts
from ..errors import ReplicaBrokenError
from ..replica.replica import Replica
from .membership import Membership, new_member
from .records import Announcement, Generation, LostMember, Member

logger = logging.getLogger(__name__)

FORM_S = 5.0  # a member that takes longer is looked at again
WATCH_S = 0.02
LEAVE_S = 1.0
LOSSES = (PeerDiedError, PeerLeftError, PeerStoppedError, PeerSilentError, PeerUnreachableError)
PROVEN = (PeerDiedError, PeerLeftError, PeerStoppedError)

Phase = Callable[[str, float], None]
"""Hears the name of a phase of a recovery that ended, and how long it took, in seconds."""


class Team:
    """Which members this one works with. Belongs to one thread."""

    def __init__(
        self,
        manager: WorldManager,
        membership: Membership,
        replica: Replica,
        *,
        name: str,
        backend: str,
        store: str | None,
    ) -> None:
        self.membership, self.replica = membership, replica
        self._manager, self._name, self._backend, self._store = manager, name, backend, store
        self._world: World | None = None
        self._shard_world: World | None = None
        self._generation: Generation | None = None
        self._formed: Generation | None = None
        """That of ``_world``: the present one may not be formed yet."""
        self.lost: tuple[LostMember, ...] = ()
        """Whom this member has lost of the present generation."""
        self.broke_at: float | None = None
        """When the last world broke, on the monotonic clock: a member computes on for a while before it notices."""

    @property
    def world(self) -> World:
        assert self._world is not None, "the team has no world yet"
        return self._world

    @property
    def shard_world(self) -> World:
        """The members that hold the same shard of the model as this one, and reduce its gradients together."""
        assert self._shard_world is not None, "the team has no world yet"
        return self._shard_world

    @property
    def error(self) -> WorldBrokenError | None:
        """What broke a world of this generation, if anything did."""
        return self.world.error or self.shard_world.error

    @property
    def generation(self) -> Generation:
        assert self._generation is not None, "the team has no generation yet"
        return self._generation

    @property
    def place(self) -> int:
        """This member's rank in the world."""
        return self.generation.place_of(self.membership.member.id)

    @property
    def stands(self) -> bool:
        return self._world is not None and self._world.state is WorldState.ACTIVE

    def note(self, error: WorldBrokenError) -> None:
        """A world broke: remember the lost rank, if one was lost. A rank that gave the world up announces itself.

        Another world, inside of a replica, has ranks of its own.
        """
        place = self.place_of(error)
        if isinstance(error, LOSSES) and place >= 0:
            self.lost = with_loss(self.lost, self.generation.members[place], error)

    def all_lost(self) -> tuple[LostMember, ...]:
        """Return whom this member has lost by now. A world breaks with the first one, and its links are still watched.

        So those whose host was cut off at the same time are lost in one agreement, and not in one after the other.
        """
        if self._world is not None and self._formed is self._generation and not self.stands:
            for error in self._world.losses:
                self.note(error)
        return self.lost

    def place_of(self, error: WorldBrokenError) -> int:
        """Return the place of the member that broke the world, or the world of this shard; -1 if none did."""
        if self._world is not None and error.world == self._world.name:
            place = error.rank
        elif self._shard_world is not None and error.world == self._shard_world.name and error.rank >= 0:
            place = error.rank * self.replica.size + self.replica.rank
        else:
            return -1
        return place if 0 <= place < len(self.generation.members) else -1

    def meet(self) -> None:
        """Wait until all members have called this; processes of a replica act as one. Raises the world's error."""

        def barrier() -> list[Facts]:
            self.world.blocking.barrier()
            return []

        self.replica.as_one(barrier)

    def leaves(self, places: Sequence[int], why: str = "it was asked to go") -> None:
        """These members go by what was agreed."""
        members = [self.generation.members[place] for place in places]
        self.lost += tuple(LostMember(id=each.id, cause="PeerLeftError", detail=why) for each in members)

    def advance(self, announce: Callable[[], Announcement], phase: Phase) -> Generation:
        """Agree on the next generation and form its world. The old world is over afterwards.

        Raises ExcludedError if the others went on without this member, and what ``Membership.agree`` raises.
        """
        while True:
            began = time.monotonic()
            generation = self.membership.agree(announce, self.all_lost)
            phase("agree", time.monotonic() - began)
            began = time.monotonic()
            self._generation, self.lost = generation, ()
            worlds = self._try_to_form(generation)
            if worlds is None:
                continue
            phase("form", time.monotonic() - began)
            self._end_worlds(gracefully=True)
            self._world, self._shard_world = worlds
            self._formed = generation
            self.membership.settled()
            self.world.on_broken(self.membership.beat)
            self.broke_at = None
            self.world.on_broken(partial(self._note_time, self.world))
            return generation

    def _note_time(self, world: World) -> None:
        if world is self._world:  # not one that was replaced, and closed
            self.broke_at = time.monotonic()

    def _try_to_form(self, generation: Generation) -> tuple[World, World] | None:
        """Form the worlds of a generation; None: some process of this replica could not."""
        worlds = None
        try:
            worlds = self._form_worlds(generation)
        except (JoinError, WorldBrokenError, StoreError) as error:
            logger.info("generation %d of training %r was not formed: %s", generation.number, self._name, error)
        if self.replica.has_settled(generation.number, is_well=worlds is not None):
            return worlds
        for world in worlds or ():
            world.abort()
        return None

    def _form_worlds(self, generation: Generation) -> tuple[World, World]:
        name, size = f"{self._name}.{generation.number}", self.replica.size
        place, num_members = generation.place_of(self.membership.member.id), len(generation.members)
        world = self._form(generation, name, place, num_members)
        if size == 1:
            return world, world
        try:
            shard_world = self._form(generation, f"{name}.shard-{place % size}", place // size, num_members // size)
        except BaseException:
            world.abort()
            raise
        _end_with(world, shard_world)
        _end_with(shard_world, world)
        return world, shard_world

    def _form(self, generation: Generation, name: str, rank: int, size: int) -> World:
        request = check_request(
            name,
            rank,
            size,
            self._store,
            self._backend,
            FORM_S,
            None,
            False,
        )
        began = time.monotonic()
        joining = self._manager.start_join(replace(request, is_inner=True))
        settled = threading.Event()
        joining.add_callback(lambda _: settled.set())
        try:
            while not settled.wait(WATCH_S):
                self._watch(generation, joining, began)
            return joining.result()
        except BaseException:
            joining.cancel(JoinError(self._name, "it was given up"))
            raise

    def _watch(self, generation: Generation, joining: Operation[World], began: float) -> None:
        """Give the join up as soon as somebody else has: it cannot succeed any more."""
        if self.membership.is_given_up(generation, began) and not joining.done:
            joining.cancel(JoinError(self._name, "another member has ended, is silent, or gave it up"))

    def _end_worlds(self, *, gracefully: bool) -> None:
        old = dict.fromkeys(each for each in (self._shard_world, self._world) if each is not None)
        self._world = self._shard_world = None
        for world in old:
            if gracefully and world.state is WorldState.ACTIVE:
                world.blocking.leave(LEAVE_S)
            else:
                world.abort()

    def become_newcomer(self) -> None:
        """The others went on without this member: it comes back as another one.

        Raises ReplicaBrokenError if it is a process of several: they come back together, with models of their own.
        """
        if self.replica.size > 1:
            self.replica.check()
            raise ReplicaBrokenError(self.replica.index, self.replica.rank, "the other replicas went on without it.")
        old = self.membership.member
        self.membership.become(new_member(old.rank, old.host))
        self._end_worlds(gracefully=False)
        self._generation, self.lost = None, ()

    def close(self, *, gracefully: bool) -> None:
        self._end_worlds(gracefully=gracefully)


def with_loss(lost: tuple[LostMember, ...], member: Member, error: WorldBrokenError) -> tuple[LostMember, ...]:
    """Return these with one more. What was heard first counts, unless only the later one is proven."""
    is_proven = isinstance(error, PROVEN)
    known = next((each for each in lost if each.id == member.id), None)
    if known is not None and known.is_proven >= is_proven:
        return lost
    loss = LostMember(id=member.id, cause=type(error).__name__, detail=error.cause, is_proven=is_proven)
    return (*(each for each in lost if each is not known), loss)


def _end_with(world: World, other: World) -> None:
    """Have a loss in one world end what waits in the other one. Who leaves one leaves the other one, too."""

    def ended() -> None:
        if world.error is not None and not isinstance(world.error, PeerLeftError):
            other.abort()

    world.on_broken(ended)
