"""Who may stand at a door of this process without having proved anything yet: one rule for every listening socket."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from .descriptors import is_reserved
from .seldom import Seldom

__all__ = ["ACCEPTS_AT_ONCE", "MAX_UNPROVEN", "PAUSE_S", "UNPROVEN_S", "Admission"]

logger = logging.getLogger(__name__)

MAX_UNPROVEN: Final = 256  # at one door
MAX_IN_RESERVE: Final = 8  # while the process has no other descriptors left than its reserve
UNPROVEN_S: Final = 5.0  # for a connection to prove itself, or to say what it wants
ACCEPTS_AT_ONCE: Final = 64  # then those that were accepted are heard: nobody who speaks is taken for silent
PAUSE_S: Final = 0.1  # until the next try, where no connection can be accepted

S = TypeVar("S", bound=Hashable)


class Admission(Generic[S]):
    """The unproven connections of one door, oldest first. One thread at a time.

    The oldest goes for a newcomer: a connection of ours proves itself at once, so those that stand here for long are
    silent, or strangers. Thus nobody without a token keeps others out, nor takes the last descriptors of the process.
    """

    def __init__(
        self,
        where: str,
        drop: Callable[[S], None],
        look: Callable[[S], None] | None = None,
        *,
        most: int = MAX_UNPROVEN,
    ) -> None:
        """``drop`` closes a connection. ``look`` reads what it may have said by now, before it would be dropped."""
        self._where, self._drop, self._look, self._most = where, drop, look, most
        self._unproven: dict[S, str] = {}
        self._say_dropped, self._say_paused = Seldom(logger.warning), Seldom(logger.error)

    def __len__(self) -> int:
        return len(self._unproven)

    def came(self, who: S, name: str, descriptor: int) -> None:
        """``who`` was accepted, as that descriptor; ``name`` is for people. Others may be dropped for it."""
        most = min(MAX_IN_RESERVE, self._most) if is_reserved(descriptor) else self._most
        while len(self._unproven) >= most:
            self._make_room()
        self._unproven[who] = name

    def left(self, who: S) -> None:
        """It has proved itself, or is gone. Idempotent."""
        self._unproven.pop(who, None)

    def close(self) -> None:
        """Drop all."""
        while self._unproven:
            who, _ = self._unproven.popitem()
            self._drop(who)

    def cannot_accept(self, error: OSError) -> float:
        """No connection can be accepted for now: return the seconds until the next try.

        The backlog keeps those that come; trying on without a pause would only burn the processor.
        """
        self._say_paused(
            "cannot accept connections to %s now, trying again every %.1f s: %s", self._where, PAUSE_S, error
        )
        return PAUSE_S

    def _make_room(self) -> None:
        oldest = next(iter(self._unproven))
        if self._look is not None:
            self._look(oldest)
        name = self._unproven.pop(oldest, None)
        if name is not None:  # it has said nothing meanwhile
            self._say_dropped(
                "connection from %s to %s dropped: too many have not proved themselves yet", name, self._where
            )
            self._drop(oldest)
