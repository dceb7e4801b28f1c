"""A gateway's patience: a queue that passes is waited for, one that stands is refused."""

from __future__ import annotations

import math
from collections import deque

import pytest

from multiworld.serving.ingress.patience import CALM_S, LONG_S, LONGEST, Patience

TARGET_S = 0.5
STEP_S = 0.001


class Counter:
    """A queue before workers: so many come per second, so many are served. What is refused is counted."""

    def __init__(self) -> None:
        self.patience = Patience(TARGET_S)
        self.now = 0.0
        self.waiting: deque[float] = deque()
        self.refused: list[float] = []
        self.longest_s = 0.0
        self._come = self._served = 0.0

    def run(self, seconds: float, *, come: float, served: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += STEP_S
            self._served = min(self._served + served * STEP_S, 1.0 if not self.waiting else math.inf)
            while self.waiting and self._served >= 1.0:
                self._served -= 1.0
                self.longest_s = max(self.longest_s, self.now - self.waiting.popleft())
            self._come += come * STEP_S
            while self._come >= 1.0:
                self._come -= 1.0
                waited_s = self.now - self.waiting[0] if self.waiting else 0.0
                if self.patience.allows(waited_s, ahead=len(self.waiting), per_s=served, now=self.now):
                    self.waiting.append(self.now)
                else:
                    self.refused.append(self.now)


def test_while_one_of_two_replicas_is_silent_all_may_wait() -> None:
    counter = Counter()
    counter.run(5, come=140, served=200)
    counter.run(2.5, come=140, served=100)
    counter.run(10, come=140, served=200)
    assert not counter.refused
    assert TARGET_S < counter.longest_s < 2.0


def test_that_may_happen_again_and_again() -> None:
    counter = Counter()
    for _ in range(5):
        counter.run(17.5, come=140, served=200)
        counter.run(2.5, come=140, served=100)
    assert not counter.refused


def test_an_overload_is_refused_after_a_while_and_from_then_on_nobody_waits_long() -> None:
    counter = Counter()
    counter.run(8, come=400, served=200)
    assert counter.refused
    assert counter.refused[0] < LONG_S + 2
    assert counter.longest_s < LONGEST * TARGET_S + 0.1
    counter.longest_s = 0.0
    counter.run(60, come=400, served=200)
    assert counter.longest_s < TARGET_S + 0.6
    assert len(counter.waiting) < 200 * (TARGET_S + 0.6)
    before = len(counter.refused)
    counter.run(2, come=140, served=200)
    assert not counter.waiting
    counter.run(CALM_S, come=140, served=200)
    assert len(counter.refused) <= before + 140


def test_far_too_much_at_once_is_refused_at_once() -> None:
    counter = Counter()
    counter.run(3, come=4000, served=100)
    assert counter.refused[0] < TARGET_S + 0.1


def test_patience_comes_back() -> None:
    counter = Counter()
    counter.run(20, come=400, served=200)
    counter.run(CALM_S + 3, come=100, served=200)
    before = len(counter.refused)
    counter.run(2.5, come=140, served=100)
    counter.run(5, come=140, served=200)
    assert len(counter.refused) == before


@pytest.mark.parametrize("per_s", [None, 0.1])
def test_who_has_no_answers_has_no_patience(per_s: float | None) -> None:
    patience = Patience(TARGET_S)
    assert patience.allows(TARGET_S, ahead=5, per_s=per_s, now=0.0)
    assert not patience.allows(TARGET_S + 0.01, ahead=5, per_s=per_s, now=0.1)
