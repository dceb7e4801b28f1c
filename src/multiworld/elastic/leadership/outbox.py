"""What the coordinator has to tell its agents: in the order of its decisions, a few messages in each turn of the loop.

A thousand orders in one turn would keep the coordinator from hearing anybody meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...wire.progress.thread import ProgressThread
from .messages import AgentMessage

SLICE_S = 0.002  # so long are messages sent before others have their turn


@dataclass(frozen=True)
class Outgoing:
    agents: Sequence[str]
    message: AgentMessage
    then: Callable[[], Outgoing | None] | None = None
    """Makes what is sent next, before all else that waits."""


class Outbox:
    """Progress thread only. ``send(agent, message)`` packs a message and sends it."""

    def __init__(
        self,
        loop: ProgressThread,
        send: Callable[[str, AgentMessage], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop, self._send, self._clock = loop, send, clock
        self._waiting: deque[tuple[str, AgentMessage] | Callable[[], Outgoing | None]] = deque()
        self._until: float | None = None  # in this turn of the loop; 0.0: no more is sent in it

    def post(self, agents: Iterable[str], message: AgentMessage) -> None:
        """Tell these, in this turn of the loop unless there is too much to tell. The message is packed once."""
        for agent in agents:
            self._waiting.append((agent, message))
        self._deliver()

    def post_later(self, make: Callable[[], Outgoing | None]) -> None:
        """As ``post``, of what is made only when all that was posted before is sent, and in a later turn of the loop.

        To make it takes a while in a large job, and so may the decision of this turn have.
        """
        self._waiting.append(make)
        self._deliver()

    def forget(self, agent: str) -> None:
        """What waits for an agent must not reach it when it comes again."""
        if self._waiting:
            self._waiting = deque(each for each in self._waiting if not isinstance(each, tuple) or each[0] != agent)

    def close(self) -> None:
        """Drop what waits."""
        self._waiting.clear()

    def _deliver(self, *, makes: bool = False) -> None:
        if self._until is None:
            self._until = self._clock() + SLICE_S
            self._loop.call_soon(self._next_turn)
        while self._waiting and self._until:
            if self._clock() >= self._until:
                self._until = 0.0
                break
            first = self._waiting[0]
            if not isinstance(first, tuple) and not makes:
                break
            self._waiting.popleft()
            if isinstance(first, tuple):
                self._send(*first)
                continue
            made = first()
            if made is not None:
                if made.then is not None:
                    self._waiting.appendleft(made.then)
                self._waiting.extendleft((agent, made.message) for agent in reversed(made.agents))

    def _next_turn(self) -> None:
        self._until = None
        if self._waiting:
            self._deliver(makes=True)
