"""Decide which states one world may go through in one process: one enum and one transition table. Pure."""

from __future__ import annotations

from enum import Enum

__all__ = ["InvalidTransitionError", "WorldChange", "WorldState", "advance", "allows"]


class WorldState(Enum):
    """Where a world of one generation stands, as this process sees it. It only ever moves forward."""

    FORMING = "forming"
    """Members are meeting; no operation may start."""
    ACTIVE = "active"
    """All members are connected."""
    BROKEN = "broken"
    """A member was lost: every operation raises the error that broke the world."""
    LEFT = "left"
    """This process left gracefully; what it sent is still being delivered."""
    CLOSED = "closed"
    """Everything that the world held here is released."""


class WorldChange(Enum):
    """What happens to a world."""

    FORMED = "formed"
    BROKE = "broke"
    LEFT = "left"
    CLOSED = "closed"


_TABLE: dict[tuple[WorldState, WorldChange], WorldState] = {
    (WorldState.FORMING, WorldChange.FORMED): WorldState.ACTIVE,
    (WorldState.FORMING, WorldChange.BROKE): WorldState.BROKEN,
    (WorldState.FORMING, WorldChange.CLOSED): WorldState.CLOSED,
    (WorldState.ACTIVE, WorldChange.BROKE): WorldState.BROKEN,
    (WorldState.ACTIVE, WorldChange.LEFT): WorldState.LEFT,
    (WorldState.ACTIVE, WorldChange.CLOSED): WorldState.CLOSED,
    (WorldState.BROKEN, WorldChange.CLOSED): WorldState.CLOSED,
    (WorldState.LEFT, WorldChange.CLOSED): WorldState.CLOSED,
}


class InvalidTransitionError(RuntimeError):
    """A change that the table does not hold: a fault in this package, never of its user."""

    def __init__(self, state: WorldState, change: WorldChange) -> None:
        super().__init__(state, change)
        self.state, self.change = state, change

    def __str__(self) -> str:
        return f"a world that is {self.state.value} cannot change by {self.change.value!r}"


def advance(state: WorldState, change: WorldChange) -> WorldState:
    """Return the state after the change, or raise ``InvalidTransitionError``."""
    after = _TABLE.get((state, change))
    if after is None:
        raise InvalidTransitionError(state, change)
    return after


def allows(state: WorldState, change: WorldChange) -> bool:
    """Return whether the change is possible: for losses that arrive when a world is broken, left or closed already."""
    return (state, change) in _TABLE
