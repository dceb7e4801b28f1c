"""Who may stand at a door of this process without having proved anything yet: one rule for every listening socket."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from ..descriptors import is_reserved
from ..rate_limited_log import RateLimitedLog

logger = logging.getLogger(__name__)

MAX_UNPROVEN: Final = 256  # at one door
MAX_IN_RESERVE: Final = 8  # while the process has no other descriptors left than its reserve
UNPROVEN_S: Final = 5.0  # for a connection to prove itself, or to say what it wants
ACCEPTS_AT_ONCE: Final = 64  # then those that were accepted are heard: nobody who speaks is taken for silent
PAUSE_S: Final = 0.1  # until the next try, where no connection can be accepted

S = TypeVar("S", bound=Hashable)


class Admission(Generic[S]):
    """The unproven connections of one door. One thread at a time.

    One goes for a newcomer: the silent one that came first, as a connection of ours speaks at once. Those that have
    begun to speak go before it, the first of them, only where they have more than half of the room: strangers can
    speak, too, and what has just come has said nothing yet. Thus nobody without a token keeps others out, nor takes
    the last descriptors of the process.
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
        self._silent: dict[S, str] = {}  # both: the first that came stands first
        self._spoken: dict[S, str] = {}
        self._say_dropped, self._say_paused = RateLimitedLog(logger.warning), RateLimitedLog(logger.error)

    def __len__(self) -> int:
        return len(self._silent) + len(self._spoken)

    def came(self, who: S, name: str, descriptor: int) -> None:
        """``who`` was accepted, as that descriptor; ``name`` is for people. Others may be dropped for it."""
        most = min(MAX_IN_RESERVE, self._most) if is_reserved(descriptor) else self._most
        while len(self) >= most:
            self._make_room(self._spoken if len(self._spoken) > most // 2 else self._silent)
        self._silent[who] = name

    def spoke(self, who: S) -> None:
        """It has begun to prove itself, in the protocol of this door. Idempotent."""
        name = self._silent.pop(who, None)
        if name is not None:
            self._spoken[who] = name

    def left(self, who: S) -> None:
        """It has proved itself, or is gone. Idempotent."""
        self._silent.pop(who, None)
        self._spoken.pop(who, None)

    def close(self) -> None:
        """Drop all."""
        for those in (self._spoken, self._silent):
            while those:
                who, _ = those.popitem()
                self._drop(who)

    def cannot_accept(self, error: OSError) -> float:
        """No connection can be accepted for now: return the seconds until the next try.

        The backlog keeps those that come; trying on without a pause would only burn the processor.
        """
        self._say_paused(
            "cannot accept connections to %s now, trying again every %.1f s: %s", self._where, PAUSE_S, error
        )
        return PAUSE_S

    def _make_room(self, those: dict[S, str]) -> None:
        oldest = next(iter(those))
        if self._look is not None:
            self._look(oldest)
        name = those.pop(oldest, None)
        if name is not None:  # it has said nothing meanwhile
            self._say_dropped(
                "connection from %s to %s dropped: too many have not proved themselves yet", name, self._where
            )
            self._drop(oldest)
