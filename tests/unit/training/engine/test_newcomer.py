"""When a newcomer begins with the state of the others, and what it does if that state does not come."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from multiworld.errors import WorldBrokenError, WorldClosedError
from multiworld.training.engine.facts import Facts
from multiworld.training.engine.newcomer import Newcomer
from multiworld.training.engine.standing import Standing
from multiworld.training.engine.transfers import Transfers
from multiworld.training.recovery.records import Generation
from multiworld.training.recovery.transfer import DamagedStateError, Receiving
from multiworld.training.state import TrainingState

from .fake_member import BROKEN
from .fake_team import FakeTeam
from .test_transfers import Arriving, at_step


class Waiting:
    """Waits for the state of step 7. ``advanced``: the errors with which another generation was asked for."""

    def __init__(self) -> None:
        self.team, self.state = FakeTeam(), TrainingState()
        team = self.team.as_team()
        self.standing = Standing(team, self.state)
        self.standing.receiving = cast(Receiving, Arriving(at_step(7)))
        self.standing.facts = [Facts(step=1)]
        self.newcomer = Newcomer(team, self.standing, Transfers(team, self.state))
        self.advanced: list[Exception | None] = []

    def advance(
        self, error: WorldBrokenError | WorldClosedError | None, *, as_newcomer: bool = False
    ) -> Generation | None:
        self.advanced.append(error)
        return self.team.generation

    def get_state(self, is_here: Callable[[Receiving], bool]) -> bool:
        return self.newcomer.get_state(is_here, self.advance)


def raising(error: Exception) -> Callable[[Receiving], bool]:
    def is_here(receiving: Receiving) -> bool:
        raise error

    return is_here


def test_the_state_is_taken_once_it_is_here() -> None:
    waiting = Waiting()
    assert waiting.get_state(lambda receiving: True)
    assert (waiting.state.step, waiting.standing.receiving, waiting.standing.facts) == (7, None, [])
    assert not waiting.standing.has_state  # what counted meanwhile was not applied yet


def test_a_newcomer_goes_on_waiting_while_the_state_is_on_its_way() -> None:
    waiting = Waiting()
    assert not waiting.get_state(lambda receiving: False)
    assert waiting.standing.receiving is not None
    assert (waiting.state.step, waiting.advanced) == (0, [])


@pytest.mark.parametrize("error", [BROKEN, WorldClosedError("t.1", 1)])
def test_another_generation_is_formed_after_a_loss(error: Exception) -> None:
    waiting = Waiting()
    assert not waiting.get_state(raising(error))
    assert (waiting.state.step, waiting.advanced, waiting.team.world.was_aborted) == (0, [error], False)


def test_a_state_that_came_damaged_is_asked_for_again_in_another_generation() -> None:
    waiting = Waiting()
    assert not waiting.get_state(raising(DamagedStateError(1, 1)))
    assert (waiting.state.step, waiting.advanced, waiting.team.world.was_aborted) == (0, [None], True)
