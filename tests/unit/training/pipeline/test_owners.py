"""The worlds of the sets of owners that a process is in: a loss in one of them ends what waits in all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from multiworld.errors import PeerDiedError, PeerLeftError, WorldBrokenError
from multiworld.training.pipeline.owners import OwnersWorlds
from multiworld.wire.progress.operation import Operation
from multiworld.world.state import WorldState
from multiworld.world.world import World


class FakeWorld:
    """Of rank 0 of ``world_size``. An aborted world has no error, as a real one has none."""

    rank, generation = 0, 1

    def __init__(self, name: str, world_size: int) -> None:
        self.name, self.world_size = name, world_size
        self.state = WorldState.ACTIVE
        self.error: WorldBrokenError | None = None
        self.beside: list[FakeWorld] = []
        self._calls: list[Callable[[], None]] = []

    def start_beside(self, name: str, rank: int, size: int, timeout_s: float) -> Operation[FakeWorld]:
        self.beside.append(FakeWorld(name, size))
        return Operation.succeeded(self.beside[-1])

    def on_broken(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def break_with(self, error: WorldBrokenError) -> bool:
        if self.state is not WorldState.ACTIVE:
            return False
        self.error = error
        self._end(WorldState.BROKEN)
        return True

    def loses(self, rank: int, error: type[WorldBrokenError] = PeerDiedError) -> None:
        self.break_with(error(self.name, 1, rank, "gone"))

    def abort(self) -> None:
        if self.state is not WorldState.CLOSED:
            self._end(WorldState.CLOSED)

    def _end(self, state: WorldState) -> None:
        self.state = state
        calls, self._calls = self._calls, []
        for call in calls:
            call()


@pytest.fixture
def team() -> FakeWorld:
    """With three sets of owners that rank 0 is in."""
    team = FakeWorld("t.1", 4)
    OwnersWorlds().form(cast(World, team), [(0, 1), (0, 2), (0, 3)])
    assert [each.name for each in team.beside] == ["t.1.owners-0-1", "t.1.owners-0-2", "t.1.owners-0-3"]
    return team


def test_a_loss_among_some_owners_ends_what_waits_for_others(team: FakeWorld) -> None:
    first, second, third = team.beside
    second.loses(1)
    assert [each.state for each in (first, third)] == [WorldState.CLOSED] * 2


def test_the_team_knows_whom_some_owners_have_lost(team: FakeWorld) -> None:
    """Not that one lost somebody, which would not prove that it cannot go on alone."""
    team.beside[1].loses(1)
    assert team.state is WorldState.BROKEN
    assert isinstance(team.error, PeerDiedError)
    assert team.error.rank == 2


def test_a_loss_in_the_team_ends_what_waits_for_owners(team: FakeWorld) -> None:
    team.loses(3)
    assert [each.state for each in team.beside] == [WorldState.CLOSED] * 3


def test_one_who_leaves_is_waited_for_in_each_world(team: FakeWorld) -> None:
    team.loses(1, PeerLeftError)
    team.beside[0].loses(1, PeerLeftError)
    assert [each.state for each in team.beside[1:]] == [WorldState.ACTIVE] * 2
