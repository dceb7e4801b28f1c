"""State machines: an enum, what may happen to it, and one table. A transition that is not in the table raises. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum)
C = TypeVar("C", bound=Enum)


class InvalidTransitionError(RuntimeError):
    """A change that the table does not hold: a fault in this package, never of its user."""

    def __init__(self, subject: str, state: Enum, change: Enum) -> None:
        super().__init__(subject, state, change)
        self.subject, self.state, self.change = subject, state, change

    def __str__(self) -> str:
        return f"{self.subject} that is {self.state.value} cannot change by {self.change.value!r}"


class TransitionTable(Generic[S, C]):
    """Which state follows when something happens. ``subject``: what has these states, such as "a world"."""

    def __init__(self, subject: str, table: Mapping[tuple[S, C], S]) -> None:
        self._subject, self._table = subject, dict(table)

    def advance(self, state: S, change: C) -> S:
        """Return the state after the change, or raise ``InvalidTransitionError``."""
        after = self._table.get((state, change))
        if after is None:
            raise InvalidTransitionError(self._subject, state, change)
        return after

    def allows(self, state: S, change: C) -> bool:
        """Whether the change is possible."""
        return (state, change) in self._table
