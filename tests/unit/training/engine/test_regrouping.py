"""Which generation a member begins after failures, and what it does on the way."""

from __future__ import annotations

import pytest

from multiworld.errors import PeerDiedError, WorldBrokenError
from multiworld.training.engine.regrouping import Regrouping
from multiworld.training.errors import TooFewReplicasError
from multiworld.training.recovery.membership import ExcludedError
from multiworld.training.recovery.records import Announcement, Generation
from multiworld.training.recovery.transfer import DamagedStateError

from .fake_team import FakeTeam


class Taken:
    """Takes up generations; raises ``errors`` first, one for each."""

    def __init__(self, team: FakeTeam, *errors: Exception) -> None:
        self.team, self.errors = team, list(errors)
        self.begun: list[int] = []
        self.phases: list[str] = []
        self.num_lost_states = 0

    def begin(self, generation: Generation) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.begun.append(generation.number)

    def lose_state(self) -> None:
        self.num_lost_states += 1

    def regroup(self) -> tuple[Generation, bool]:
        regrouping = Regrouping(
            self.team.as_team(), announce=self.announce, begin=self.begin, lose_state=self.lose_state
        )
        return regrouping.regroup(lambda name, took_s: self.phases.append(name))

    def announce(self) -> Announcement:
        return Announcement(member=self.team.membership.member)


def generations(team: FakeTeam, *numbers: int) -> list[Generation]:
    return [Generation(number=number, members=team.generation.members) for number in numbers]


def test_the_next_generation_is_begun() -> None:
    team = FakeTeam("a", "b")
    team.coming = [*generations(team, 2)]
    taken = Taken(team)
    generation, was_excluded = taken.regroup()
    assert (generation.number, was_excluded, taken.begun, taken.phases) == (2, False, [2], ["agree"])


def test_a_member_that_was_excluded_comes_back_as_a_newcomer_without_its_state() -> None:
    team = FakeTeam("a", "b")
    team.coming = [ExcludedError(7), *generations(team, 3)]
    taken = Taken(team)
    generation, was_excluded = taken.regroup()
    assert (generation.number, was_excluded) == (3, True)
    assert (team.num_returns, taken.num_lost_states) == (1, 1)


def test_a_loss_while_the_generation_begins_is_noted_and_another_one_is_formed() -> None:
    team = FakeTeam("a", "b")
    team.coming = [*generations(team, 2, 3)]
    broken: WorldBrokenError = PeerDiedError("t.2", 2, 1, "its socket closed")
    taken = Taken(team, broken)
    generation, was_excluded = taken.regroup()
    assert (generation.number, was_excluded, team.noted) == (3, False, [broken])


def test_a_state_that_came_damaged_is_asked_for_again() -> None:
    team = FakeTeam("a", "b")
    team.coming = [*generations(team, 2, 3)]
    taken = Taken(team, DamagedStateError(1, 2))
    assert taken.regroup()[0].number == 3
    assert team.world.was_aborted  # so that the others form another generation, too


def test_too_few_replicas_end_it() -> None:
    team = FakeTeam("a")
    team.coming = [TooFewReplicasError(1, 2, 600.0)]
    with pytest.raises(TooFewReplicasError):
        Taken(team).regroup()
