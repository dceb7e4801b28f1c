"""An agent passes on each fault, and of the steps that a thousand workers may tell only the newest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from multiworld.elastic.agent.training_news import PERIOD_S, TrainingNews
from multiworld.elastic.job.actions import TrainingTold
from multiworld.wire.progress.thread import ProgressThread
from multiworld.world.launcher.news import Trained
from tests.unit.elastic.job.test_trainings import fault, pipelines, trained


class Loop:
    """Runs what is due when the test says so."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Any:
        assert delay_s == PERIOD_S
        self.due.append(call)

    def turn(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()


def relay() -> tuple[Loop, TrainingNews, list[TrainingTold]]:
    loop, told = Loop(), list[TrainingTold]()
    return loop, TrainingNews(cast("ProgressThread", loop), told.append), told


def test_a_thousand_workers_are_one_report_each_half_second() -> None:
    loop, news, told = relay()
    for step in range(10):
        for _ in range(1000):
            news.take(trained(step))
        loop.turn()

    steps = [each.news.step for each in told]
    assert steps == [0, 0, *range(1, 10)]
    loop.turn()
    loop.turn()
    assert len(told) == 11
    assert loop.due == []


def test_the_first_news_and_the_last_are_told() -> None:
    loop, news, told = relay()
    news.take(trained(1))
    assert [each.news.step for each in told] == [1]
    news.take(trained(2))
    news.take(trained(3))
    loop.turn()
    assert [each.news.step for each in told] == [1, 3]


def test_each_fault_is_told_at_once_and_once() -> None:
    _, news, told = relay()
    for each in (fault(), fault(), fault(took_s=0.2), fault(), fault(key="3:9")):
        news.take(each)

    assert [each.news for each in told] == [fault(), fault(took_s=0.2), fault(key="3:9")]


def test_another_coordinator_is_told_again() -> None:
    _, news, told = relay()
    news.take(fault(took_s=0.2))
    news.take(trained(7))
    told.clear()
    news.repeat()

    assert [each.news for each in told] == [fault(took_s=0.2), trained(7)]
    assert all(each.is_repeated for each in told)


def test_the_number_of_trainings_is_bounded() -> None:
    loop, news, told = relay()
    for number in range(100):
        news.take(trained(1, name=f"t{number}"))
    told.clear()
    news.repeat()

    assert len([each for each in told if isinstance(each.news, Trained)]) <= 16
    loop.turn()


def test_pipelines_are_told_at_once_and_the_last_ones_again() -> None:
    _, news, told = relay()
    news.take(pipelines(generation=1))
    news.take(pipelines(generation=2))
    assert [each.news.generation for each in told] == [1, 2]
    told.clear()
    news.repeat()
    assert [each.news for each in told] == [pipelines(generation=2)]
