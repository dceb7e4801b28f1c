"""The states of a world and the way between them."""

from __future__ import annotations

import pickle

import pytest

from multiworld.wire.transitions import InvalidTransitionError
from multiworld.world.state import WorldChange, WorldState, advance, allows


def walk(*changes: WorldChange) -> WorldState:
    state = WorldState.FORMING
    for change in changes:
        state = advance(state, change)
    return state


def test_a_world_forms_is_left_and_closes() -> None:
    assert walk(WorldChange.FORMED) is WorldState.ACTIVE
    assert walk(WorldChange.FORMED, WorldChange.LEFT) is WorldState.LEFT
    assert walk(WorldChange.FORMED, WorldChange.LEFT, WorldChange.CLOSED) is WorldState.CLOSED


def test_a_world_breaks_while_forming_or_active() -> None:
    assert walk(WorldChange.BROKE) is WorldState.BROKEN
    assert walk(WorldChange.FORMED, WorldChange.BROKE) is WorldState.BROKEN


def test_a_broken_world_is_closed_but_cannot_be_left() -> None:
    assert walk(WorldChange.BROKE, WorldChange.CLOSED) is WorldState.CLOSED
    assert not allows(WorldState.BROKEN, WorldChange.LEFT)


@pytest.mark.parametrize("change", list(WorldChange))
def test_nothing_changes_a_closed_world(change: WorldChange) -> None:
    assert not allows(WorldState.CLOSED, change)
    with pytest.raises(InvalidTransitionError):
        advance(WorldState.CLOSED, change)


def test_a_transition_that_is_not_in_the_table_names_both_sides_and_pickles() -> None:
    with pytest.raises(InvalidTransitionError, match="broken cannot change by 'formed'") as caught:
        walk(WorldChange.BROKE, WorldChange.FORMED)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.state, copy.change) == (WorldState.BROKEN, WorldChange.FORMED)
