"""Whom a member has lost of its generation: the one that broke the world, and those that were lost after that."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from multiworld.errors import PeerDiedError, PeerLeftError, PeerUnreachableError, WorldBrokenError
from multiworld.training.recovery.membership import Membership
from multiworld.training.recovery.records import Announcement, Generation, LostMember, Member
from multiworld.training.recovery.team import Team, with_loss
from multiworld.training.replica.replica import Replica
from multiworld.wire.progress.operation import Operation
from multiworld.world.joining.join_request import JoinRequest
from multiworld.world.manager import WorldManager
from multiworld.world.state import WorldState

A, B, C, D = (Member(id=name, rank=rank, host=f"host{rank}") for rank, name in enumerate("abcd"))


class FakeWorld:
    def __init__(self, name: str) -> None:
        self.name, self.state = name, WorldState.ACTIVE
        self.losses: tuple[WorldBrokenError, ...] = ()

    def on_broken(self, call: Callable[[], None]) -> None:
        pass

    def abort(self) -> None:
        self.state = WorldState.CLOSED

    def loses(self, rank: int, error: type[WorldBrokenError] = PeerUnreachableError) -> WorldBrokenError:
        loss = error(self.name, 1, rank, "gone")
        self.state, self.losses = WorldState.BROKEN, (*self.losses, loss)
        return loss


class FakeManager:
    def __init__(self) -> None:
        self.worlds: list[FakeWorld] = []

    def start_join(self, request: JoinRequest) -> Operation[FakeWorld]:
        self.worlds.append(FakeWorld(request.name))
        return Operation.succeeded(self.worlds[-1])


class FakeReplica:
    size, rank = 1, 0

    def has_settled(self, number: int, *, is_well: bool) -> bool:
        return is_well


class FakeMembership:
    """``meanwhile`` is called while members agree; ``heard`` has whom this member had lost before and after that."""

    def __init__(self) -> None:
        self.member = A
        self.coming = [Generation(number=1, members=(A, B, C, D)), Generation(number=2, members=(A,))]
        self.heard: list[list[str]] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def agree(self, announce: Callable[[], Announcement], lost: Callable[[], tuple[LostMember, ...]]) -> Generation:
        self.heard.append([each.id for each in lost()])
        self.meanwhile()
        self.heard.append([each.id for each in lost()])
        return self.coming.pop(0)

    def beat(self) -> None:
        pass

    def settled(self) -> None:
        pass


class Formed:
    def __init__(self) -> None:
        self.manager, self.membership = FakeManager(), FakeMembership()
        self.team = Team(
            cast(WorldManager, self.manager),
            cast(Membership, self.membership),
            cast(Replica, FakeReplica()),
            name="t",
            backend="tcp",
            store="tcp://127.0.0.1:1",
        )
        self.advance()
        self.world = self.manager.worlds[0]

    def advance(self) -> None:
        self.membership.heard.clear()
        self.team.advance(lambda: Announcement(member=A), lambda name, took_s: None)


@pytest.fixture
def formed() -> Formed:
    return Formed()


def test_members_that_are_lost_while_the_others_agree_are_lost_in_the_same_agreement(formed: Formed) -> None:
    formed.team.note(formed.world.loses(2))
    formed.membership.meanwhile = lambda: formed.world.loses(3)
    formed.advance()
    assert formed.membership.heard == [["c"], ["c", "d"]]


def test_what_was_lost_of_the_generation_before_is_no_loss_of_the_next_one(formed: Formed) -> None:
    formed.team.note(formed.world.loses(2))
    formed.advance()
    assert formed.team.all_lost() == ()
    formed.world.loses(1)
    assert formed.team.all_lost() == ()


def test_a_world_that_stands_has_lost_nobody_yet(formed: Formed) -> None:
    """One that leaves is waited for until what it has sent is there."""
    formed.world.losses = (PeerLeftError(formed.world.name, 1, 2, "it left"),)
    assert formed.team.all_lost() == ()


def test_a_loss_that_is_proven_stays_proven() -> None:
    unreachable = PeerUnreachableError("t.1", 1, 2, "no answer")
    dead = PeerDiedError("t.1", 1, 2, "closed")
    assert [each.is_proven for each in with_loss((), C, unreachable)] == [False]
    assert [each.is_proven for each in with_loss(with_loss((), C, unreachable), C, dead)] == [True]
    assert [each.is_proven for each in with_loss(with_loss((), C, dead), C, unreachable)] == [True]
