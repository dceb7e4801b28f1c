"""What the coordinator knows of the job's trainings; those that may succeed it keep copies."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf

from ...world.launcher.news import Trained
from ..job.actions import Record, TrainingTold
from ..job.trainings import KnownTraining, Trainings
from .election import heirs
from .messages import TrainingsKnown

COPY_S = 5.0  # a copy has some 30 kB; a curve that lacks so much goes on as a straight line


class TrainingLog:
    """The coordinator's. ``send`` reaches agents; ``known``: what the coordinator before knew. No decision needs this.

    Progress thread only.
    """

    def __init__(
        self,
        *,
        agent_id: str,
        send: Callable[[Sequence[str], TrainingsKnown], None],
        is_recorded: Callable[[str, str], bool],
        known: Iterable[KnownTraining] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trainings = Trainings(is_recorded, known=known)
        self._agent_id, self._send, self._clock = agent_id, send, clock
        self._heirs: list[str] = []
        self._copied_at = -inf

    def take(self, told: TrainingTold) -> list[Record]:
        """Take in what an agent tells; return what is to be recorded of it."""
        records = self.trainings.take(told.news, at=time.time(), is_repeated=told.is_repeated)
        is_last = isinstance(told.news, Trained) and told.news.ended
        if is_last or self._clock() >= self._copied_at + COPY_S:
            self._copied_at = self._clock()
            self._copy(self._heirs)
        return records

    def attached(self, agents: Collection[str]) -> None:
        """These are attached now, in the order in which they may succeed us."""
        before, self._heirs = self._heirs, heirs(agents, self._agent_id)
        self._copy([each for each in self._heirs if each not in before])

    def introduced(self, agent: str) -> None:
        """An agent that was attached all the time comes again: what it was told while it was away is lost."""
        self._copy([agent] if agent in self._heirs else [])

    def _copy(self, readers: Sequence[str]) -> None:
        if readers and (known := self.trainings.known):
            self._send(readers, TrainingsKnown(trainings=known))
