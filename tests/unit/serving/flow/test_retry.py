"""How often a request is tried again."""

from __future__ import annotations

import pytest

from multiworld.serving.flow.retry import ReplayBudget
from multiworld.serving.generation import Alone, Generator


def num_taken(budget: ReplayBudget) -> int:
    taken = 0
    while budget.take():
        taken += 1
    return taken


def test_a_sender_that_has_sent_nothing_may_replay_a_few() -> None:
    assert num_taken(ReplayBudget()) == 16


def test_a_fifth_of_what_is_sent_may_be_replayed_besides() -> None:
    budget = ReplayBudget()
    for _ in range(100):
        budget.sent()
    assert num_taken(budget) == 36
    for _ in range(5):
        budget.sent()
    assert num_taken(budget) == 1


def test_the_past_counts_for_less_and_less() -> None:
    budget = ReplayBudget()
    for _ in range(1_000_000):
        budget.sent()
    assert num_taken(budget) <= 0.2 * 4096 + 16


def test_a_generation_that_could_be_started_over_less_than_never_is_refused() -> None:
    with pytest.raises(ValueError, match="max_replays must be at least 0, got -1"):
        Generator(Alone([]), max_replays=-1)
