"""Requests that are lost, wrong or answered twice are counted, whatever the service does with them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.serving.load import Load


class Full(Exception):
    """It takes no more."""


class Service:
    """Answers ``x`` with ``x + 1``, but for the numbers that it is told to treat otherwise."""

    refusals = (Full,)

    def __init__(self, otherwise: Callable[[int], Any] | None = None) -> None:
        self.ids: list[str | None] = []
        self._otherwise = otherwise

    async def infer(self, payload: int, *, request_id: str | None, timeout_s: float) -> int:
        self.ids.append(request_id)
        await asyncio.sleep(0)
        answer = self._otherwise(payload) if self._otherwise else None
        if isinstance(answer, Exception):
            raise answer
        return payload + 1 if answer is None else int(answer)

    def sample(self, number: int) -> tuple[int, int]:
        return number, number + 1

    def is_equal(self, answer: int, expected: int) -> bool:
        return answer == expected

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def asking(service: Service, **options: Any) -> Load:
    return Load(service, **options)


async def ask(load: Load, number: int) -> None:
    for _ in range(number):
        load.issue(time.perf_counter())
    await load.finish()


async def test_all_right_answers_are_counted_once() -> None:
    load = asking(Service())
    await ask(load, 20)
    assert load.outcomes() == {"requests": 20, "lost": 0, "duplicated": 0, "wrong": 0}
    assert load.num_open == 0


async def test_errors_are_lost_requests_but_refusals_are_not() -> None:
    load = asking(Service(lambda number: {1: ValueError("gone"), 2: Full()}.get(number)))
    await ask(load, 5)
    assert load.outcomes() == {"requests": 5, "lost": 1, "duplicated": 0, "wrong": 0}
    assert load.errors == {"ValueError: gone": 1}


async def test_the_answer_of_another_request_is_wrong() -> None:
    load = asking(Service(lambda number: 17 if number == 3 else None))
    await ask(load, 5)
    assert load.outcomes()["wrong"] == 1
    assert len(load.between(0, time.perf_counter())) == 4


async def test_each_request_has_an_id_of_its_own_if_wanted() -> None:
    service = Service()
    await ask(asking(service, has_ids=True), 3)
    assert len(set(service.ids)) == 3
    await ask(asking(service), 1)
    assert service.ids[-1] is None


async def test_a_closed_loop_asks_one_after_the_other() -> None:
    load = asking(Service())
    rate = await load.closed(2, seconds=0.0, at_least=10)
    assert rate > 0
    assert load.num_issued >= 10


async def test_an_open_loop_does_not_wait_for_answers_and_counts_latency_from_when_each_was_due() -> None:
    release, issued = asyncio.Event(), asyncio.Event()

    class Slow(Service):
        async def infer(self, payload: int, *, request_id: str | None, timeout_s: float) -> int:
            if payload == 5:
                issued.set()
            await release.wait()
            return payload + 1

    load, stop = asking(Slow()), asyncio.Event()
    task = asyncio.ensure_future(load.open(1000.0, stop))
    await asyncio.wait_for(issued.wait(), 10)
    assert load.num_open >= 5
    stop.set()
    release.set()
    await task
    assert load.num_open == 0
    dues = [each.began_at for each in sorted(load.answers, key=lambda each: each.number)]
    gaps = [after - before for before, after in itertools.pairwise(dues)]
    assert gaps == pytest.approx([0.001] * len(gaps))
