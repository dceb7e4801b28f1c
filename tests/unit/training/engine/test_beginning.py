"""With which state a member begins where nobody has any."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from multiworld.errors import PeerDiedError
from multiworld.training.copies.plan import MemoryPlan
from multiworld.training.engine.beginning import Beginning
from multiworld.training.engine.memory import CopiesUnusableError, NoMemory
from multiworld.training.engine.services import Services
from multiworld.training.engine.standing import Standing
from multiworld.training.engine.transfers import Transfers
from multiworld.training.recovery.records import Generation
from multiworld.training.state import TrainingState
from multiworld.world.world import World

from .fake_team import FakeTeam

PLAN = MemoryPlan(step=6, label="l", servings=())


class HostMemory(NoMemory):
    """Notes what it is asked. ``error``: what ``fetch`` raises."""

    def __init__(self, *, is_well: bool = True, error: Exception | None = None) -> None:
        self.is_well, self.error = is_well, error
        self.asked: list[object] = []

    def fetch(self, world: World, generation: Generation, plan: MemoryPlan) -> bool:
        if self.error is not None:
            raise self.error
        return self.is_well

    def load(self) -> None:
        self.asked.append("load")

    def failed(self, plan: MemoryPlan, sources: Collection[str]) -> None:
        self.asked.append(("failed", tuple(sources)))

    def begins(self, plan: MemoryPlan | None) -> None:
        self.asked.append(("begins", plan))


class Member:
    """Alone in its generation."""

    def __init__(self, memory: HostMemory, plan: MemoryPlan | None = None) -> None:
        self.team, self.state, self.services = FakeTeam("a"), TrainingState(), Services(memory=memory)
        self.team.generation = replace(self.team.generation, is_restart=True, memory=plan)
        team = self.team.as_team()
        self.standing = Standing(team, self.state)
        self.restarts: list[int | None] = []
        self.services.restart = self.restarts.append
        self.beginning = Beginning(team, self.state, self.standing, Transfers(team, self.state), self.services)


def test_one_that_holds_the_newest_checkpoint_loads_it() -> None:
    memory = HostMemory()
    member = Member(memory)
    member.beginning.begin(0, [])
    assert (member.restarts, memory.asked) == ([None], [("begins", None)])
    assert (member.standing.has_state, member.beginning.num_restarts) == (True, 1)


def test_without_a_checkpoint_a_member_goes_on_with_the_state_that_it_held() -> None:
    member = Member(HostMemory())
    member.standing.has_state, member.state.step = True, 9
    member.standing.lose_state()
    member.state.step = 12  # where the others were, which are lost
    member.beginning.begin(0, [])
    assert member.state.step == 9


def test_shards_in_memory_are_taken_in_place_of_a_checkpoint() -> None:
    memory = HostMemory()
    member = Member(memory, PLAN)
    member.beginning.begin(0, [])
    assert (member.restarts, memory.asked) == ([], ["load", ("begins", PLAN)])


def test_nothing_is_loaded_if_a_shard_cannot_be_taken_from_memory() -> None:
    memory = HostMemory(is_well=False)
    member = Member(memory, PLAN)
    with pytest.raises(CopiesUnusableError):
        member.beginning.begin(0, [])
    assert memory.asked == [("failed", ("a",))]
    assert (member.standing.has_state, member.beginning.num_restarts) == (False, 0)


@pytest.mark.parametrize("when", ["fetched", "heard"])
def test_a_loss_while_shards_are_taken_from_memory_leaves_a_member_without_state(when: str) -> None:
    broken = PeerDiedError("t.1", 1, 1, "its socket closed")
    memory = HostMemory(error=broken if when == "fetched" else None)
    member = Member(memory, PLAN)
    member.team.world.error = broken if when == "heard" else None
    with pytest.raises(PeerDiedError):
        member.beginning.begin(0, [])
    assert (member.standing.has_state, memory.asked) == (False, [])
