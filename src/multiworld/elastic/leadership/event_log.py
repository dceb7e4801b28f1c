"""The events of a job: the coordinator records them, and those that may succeed it keep copies."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from math import inf

from ...wire.messages import Json
from ..job.history import CatchingUp, Event, History, Segment, first_number, is_covered
from .election import heirs
from .messages import EventsTold, EventsWanted


class _Exchange:
    """With one other agent: it is told what we have, and asked for what we lack."""

    def __init__(
        self, history: History, send: Callable[[EventsTold | EventsWanted], None], *, below: float = inf
    ) -> None:
        self._history, self._send, self._below = history, send, below
        self._catching_up = CatchingUp(history, ())
        self._has_news = False

    def offer(self) -> None:
        """Say what we have; the other asks for what it wants of that."""
        self._send(EventsTold(events=(), segments=tuple(self._history.segments())))

    def ask(self, offered: Iterable[Segment]) -> None:
        """It has these."""
        self._catching_up = CatchingUp(self._history, offered, below=self._below)
        self._ask_on()

    def answer(self, wanted: EventsWanted) -> None:
        events = self._history.between(wanted.first, wanted.last)
        self._send(EventsTold(events=tuple(events), answers=wanted.first))

    def take(self, told: EventsTold) -> bool:
        """Returns whether we have caught up with it just now, and learned something thereby."""
        for event in told.events:
            self._has_news |= event.number < self._below and self._history.add(event)
        if not self._catching_up.answered(told.answers):
            return False
        return not self._ask_on() and self._has_news

    def _ask_on(self) -> bool:
        wanted = self._catching_up.next()
        if wanted is None:
            return False
        first, last = wanted
        self._send(EventsWanted(first=first, last=last))
        return True


class EventCopy:
    """A follower's: what its coordinators have told it. ``tell`` reaches the present one."""

    def __init__(self, tell: Callable[[EventsTold | EventsWanted], None]) -> None:
        self.history = History()
        self._exchange = _Exchange(self.history, tell)

    def heard(self, said: EventsTold | EventsWanted) -> None:
        """The coordinator tells of events, or wants to know of some."""
        if isinstance(said, EventsWanted):
            self._exchange.answer(said)
            return
        self._exchange.take(said)
        if said.segments is not None:
            self.history.agree(said.segments)
            self._exchange.ask(said.segments)


class EventLog:
    """The coordinator's. Every event goes to a few agents, and so do those of before, a few at a time, if they ask.

    ``history``: what this agent knows already; ``told``: what its followers say that they know. ``num_recorded``: how
    many events there were when the coordinator before last said so.
    """

    def __init__(
        self,
        history: History,
        *,
        term: int,
        agent_id: str,
        send: Callable[[str, EventsTold | EventsWanted], None],
        told: Sequence[Segment] = (),
        num_recorded: int = 0,
    ) -> None:
        self.history, self._term, self._agent_id, self._send = history, term, agent_id, send
        self._first = self._next = first_number(history, told, num_recorded)
        self.is_complete = is_covered(history, told, self._first)
        """Whether all that happened before is known, or can be asked for."""
        self._heirs: list[str] = []
        self._exchanges: dict[str, _Exchange] = {}
        self.watchers: list[Callable[[Event], None]] = []
        """Told of every further event. Must be quick."""

    @property
    def num_recorded(self) -> int:
        """The number of the last event."""
        return self._next - 1

    def record(self, *, kind: str, text: str, generation: int, fields: Mapping[str, Json]) -> None:
        event = Event(
            number=self._next,
            at=time.time(),
            kind=kind,
            text=text,
            generation=generation,
            term=self._term,
            fields=fields,
        )
        self._next += 1
        self.history.add(event)
        for heir in self._heirs:  # first: whoever succeeds us knows of it before anybody who watches
            self._send(heir, EventsTold(events=(event,)))
        for watcher in list(self.watchers):
            watcher(event)

    def attached(self, agents: Collection[str]) -> None:
        """These are attached now, in the order in which they may succeed us."""
        for agent in [each for each in self._exchanges if each not in agents]:
            del self._exchanges[agent]
        before, self._heirs = self._heirs, heirs(agents, self._agent_id)
        for heir in self._heirs:
            if heir not in before:
                self._exchange(heir).offer()

    def introduced(self, agent: str, told: Sequence[Segment]) -> None:
        """An agent that has these comes, or comes again. ``attached`` follows unless it was attached all the time."""
        if told and agent != self._agent_id:
            self._exchange(agent).ask(told)
        if agent in self._heirs:  # what it was told while it was away is lost
            self._exchange(agent).offer()

    def heard(self, agent: str, said: EventsTold | EventsWanted) -> None:
        """An agent tells of events of before, or wants to know of some."""
        exchange = self._exchange(agent)
        if isinstance(said, EventsWanted):
            exchange.answer(said)
        elif exchange.take(said):
            for other in self._heirs:
                if other != agent:
                    self._exchange(other).offer()

    def _exchange(self, agent: str) -> _Exchange:
        if agent not in self._exchanges:
            self._exchanges[agent] = _Exchange(self.history, partial(self._send, agent), below=self._first)
        return self._exchanges[agent]
