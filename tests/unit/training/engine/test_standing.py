"""When a training is over for a member, and which step its own state is of."""

from __future__ import annotations

from multiworld.training.engine.standing import Standing
from multiworld.training.state import TrainingState

from .fake_team import FakeTeam


def standing_at(step: int, *, limit: int | None) -> tuple[Standing, TrainingState]:
    team, state = FakeTeam("a"), TrainingState()
    state.step, team.membership.limit = step, limit
    return Standing(team.as_team(), state), state


def test_it_is_over_for_those_who_have_the_state_of_the_last_step() -> None:
    standing, state = standing_at(4, limit=5)
    standing.has_state = True
    assert not standing.is_over
    state.step = 5
    assert standing.is_over
    standing.lose_state()
    assert standing.is_last
    assert not standing.is_over


def test_it_is_never_over_without_a_limit() -> None:
    standing, _ = standing_at(10**9, limit=None)
    standing.has_state = True
    assert not standing.is_over


def test_the_step_of_a_lost_state_is_that_of_the_first_loss() -> None:
    standing, state = standing_at(3, limit=None)
    standing.has_state = True
    standing.lose_state()
    state.step = 8  # of the others; this one has not got their state
    standing.lose_state()
    assert standing.held_step == 3
