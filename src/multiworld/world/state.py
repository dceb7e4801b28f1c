"""Decide which states one world may go through in one process: one enum and one transition table. Pure."""

from __future__ import annotations

from enum import Enum

from ..wire.transitions import TransitionTable


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


_TABLE = TransitionTable(
    "a world",
    {
        (WorldState.FORMING, WorldChange.FORMED): WorldState.ACTIVE,
        (WorldState.FORMING, WorldChange.BROKE): WorldState.BROKEN,
        (WorldState.FORMING, WorldChange.CLOSED): WorldState.CLOSED,
        (WorldState.ACTIVE, WorldChange.BROKE): WorldState.BROKEN,
        (WorldState.ACTIVE, WorldChange.LEFT): WorldState.LEFT,
        (WorldState.ACTIVE, WorldChange.CLOSED): WorldState.CLOSED,
        (WorldState.BROKEN, WorldChange.CLOSED): WorldState.CLOSED,
        (WorldState.LEFT, WorldChange.CLOSED): WorldState.CLOSED,
    },
)

advance = _TABLE.advance
allows = _TABLE.allows  # for losses that arrive when a world is broken, left or closed already
