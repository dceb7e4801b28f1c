"""Asks a service again and again, in a closed or an open loop, and keeps what became of each request.

It knows neither torch nor ``multiworld``: the peer's interpreter runs it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from dataclasses import dataclass

from .figures import quantile
from .system import System

__all__ = ["Answer", "Load"]

TIMEOUT_S = 60.0
RIGHT, WRONG, REFUSED = "right", "wrong", "refused"


@dataclass(frozen=True)
class Answer:
    """What became of one request. ``began_at`` is when it was due, whether or not it could be sent then."""

    number: int
    began_at: float
    ended_at: float
    outcome: str

    @property
    def took_s(self) -> float:
        return self.ended_at - self.began_at


class Load:
    """``has_ids``: each request carries an id of its own, by which the service answers it once."""

    def __init__(self, system: System, *, has_ids: bool = False, timeout_s: float = TIMEOUT_S) -> None:
        self.answers: list[Answer] = []
        self.num_issued = 0
        self.times_answered: Counter[int] = Counter()
        self.errors: Counter[str] = Counter()
        self._system, self._has_ids, self._timeout_s = system, has_ids, timeout_s
        self._open: set[asyncio.Task[None]] = set()

    @property
    def num_open(self) -> int:
        return self.num_issued - len(self.answers)

    async def closed(self, clients: int, *, seconds: float, at_least: int = 1) -> float:
        """Have so many clients ask one after the other; return answers per second."""
        began = time.perf_counter()
        before = len(self.answers)

        async def client() -> None:
            while time.perf_counter() < began + seconds or len(self.answers) - before < at_least:
                await self._ask(self._next(), time.perf_counter())

        await asyncio.gather(*(client() for _ in range(clients)))
        return (len(self.answers) - before) / (time.perf_counter() - began)

    async def open(self, rate: float, until: asyncio.Event, *, seed: int | None = None) -> None:
        """Ask ``rate`` times a second until told to stop, evenly or, with a seed, at random moments (Poisson)."""
        chance = None if seed is None else random.Random(seed)
        due = time.perf_counter()
        while not until.is_set():
            due += 1 / rate if chance is None else chance.expovariate(rate)
            wait_s = due - time.perf_counter()
            if wait_s > 0:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(until.wait(), wait_s)
            if not until.is_set():
                self.issue(due)
        await self.finish()

    def issue(self, due: float) -> None:
        task = asyncio.ensure_future(self._ask(self._next(), due))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def finish(self) -> None:
        """Wait for what was asked and is not answered."""
        while self._open:
            await asyncio.wait(set(self._open))

    # ---- what was seen

    def between(self, began: float, ended: float) -> list[float]:
        """Return how long the right answers took whose requests began in that time."""
        return [each.took_s for each in self.answers if began <= each.began_at < ended and each.outcome == RIGHT]

    def p99_s(self, began: float, ended: float) -> float:
        return quantile(self.between(began, ended), 0.99)

    def throughput(self, began: float, ended: float) -> float:
        """Return how many right answers came per second of that time."""
        return sum(began <= each.ended_at < ended and each.outcome == RIGHT for each in self.answers) / (ended - began)

    def outcomes(self) -> dict[str, float]:
        """Return how many were lost (an error, or no answer), answered twice, and answered wrongly."""
        lost = self.num_issued - sum(each.outcome in (RIGHT, WRONG, REFUSED) for each in self.answers)
        return {
            "requests": self.num_issued,
            "lost": lost,
            "duplicated": sum(times - 1 for times in self.times_answered.values() if times > 1),
            "wrong": sum(each.outcome == WRONG for each in self.answers),
        }

    # ---- one request

    def _next(self) -> int:
        self.num_issued += 1
        return self.num_issued

    async def _ask(self, number: int, due: float) -> None:
        payload, expected = self._system.sample(number)
        name = f"request-{number}" if self._has_ids else None
        try:
            answer = await self._system.infer(payload, request_id=name, timeout_s=self._timeout_s)
        except self._system.refusals:
            outcome = REFUSED
        except Exception as error:
            outcome = type(error).__name__
            self.errors[f"{outcome}: {str(error)[:200]}"] += 1
        else:
            outcome = RIGHT
        ended = time.perf_counter()  # before it is compared, which takes milliseconds for megabytes
        if outcome == RIGHT:
            self.times_answered[number] += 1
            outcome = RIGHT if self._system.is_equal(answer, expected) else WRONG
        self.answers.append(Answer(number, due, ended, outcome))
