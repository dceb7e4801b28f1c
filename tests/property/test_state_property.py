"""Whatever happens to a world, in whatever order, its state only moves forward and can always be closed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiworld.wire.transitions import InvalidTransitionError
from multiworld.world.state import WorldChange, WorldState, advance, allows

CHANGES = st.lists(st.sampled_from(WorldChange), max_size=12)


@given(CHANGES)
def test_every_change_is_allowed_or_raises_and_no_state_returns(changes: list[WorldChange]) -> None:
    state, visited = WorldState.FORMING, [WorldState.FORMING]
    for change in changes:
        if not allows(state, change):
            with pytest.raises(InvalidTransitionError):
                advance(state, change)
            continue
        state = advance(state, change)
        visited.append(state)
    assert len(visited) == len(set(visited))


@given(CHANGES)
def test_every_world_can_be_closed_and_stays_so(changes: list[WorldChange]) -> None:
    state = WorldState.FORMING
    for change in changes:
        if allows(state, change):
            state = advance(state, change)
    if state is not WorldState.CLOSED:
        state = advance(state, WorldChange.CLOSED)
    assert not any(allows(state, change) for change in WorldChange)


@given(CHANGES)
def test_only_a_world_that_formed_is_ever_active_or_left(changes: list[WorldChange]) -> None:
    state, formed = WorldState.FORMING, False
    for change in changes:
        if allows(state, change):
            state, formed = advance(state, change), formed or change is WorldChange.FORMED
        assert formed or state not in (WorldState.ACTIVE, WorldState.LEFT)
