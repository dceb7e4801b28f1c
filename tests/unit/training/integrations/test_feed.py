"""Turn the steps of a job inside out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from multiworld.training.engine.step import Step, StepChange, StepPhase
from multiworld.training.errors import StepError
from multiworld.training.integrations.feed import StepFeed


class Lost(Exception):
    pass


class Engine:
    """Runs steps with the batches of a plan. The first try of a step in ``breaks`` loses its member."""

    def __init__(self, plan: Mapping[int, list[str]], breaks: tuple[int, ...] = ()) -> None:
        self.plan, self.breaks = plan, list(breaks)
        self.ended: list[int] = []
        self.values: list[float] = []
        self.is_closed = False

    def steps(self) -> Iterator[Step]:
        try:
            for index in self.plan:
                while True:
                    step = Step(self, index, 0, 0)
                    yield step
                    if step.phase is StepPhase.OVER:
                        break
                    assert step.phase is StepPhase.REPEATED
        finally:
            self.is_closed = True

    def micro_batches(self, step: Step) -> Iterator[str]:
        yield from self.plan[step.index]
        if step.index in self.breaks:
            self.breaks.remove(step.index)
            raise Lost
        step.change(StepChange.COUNTED)

    def recorded(self, values: Mapping[str, float]) -> None:
        self.values.append(values["loss"])

    def step_ended(self, step: Step) -> None:
        self.ended.append(step.index)

    def step_failed(self, step: Step, error: BaseException) -> bool:
        if isinstance(error, Lost):
            step.change(StepChange.BROKE)
        return isinstance(error, Lost)


def run(batch: str) -> dict[str, Any]:
    return {"loss": float(batch)}


def test_a_loop_takes_one_step_after_the_other_and_the_last_one_ends_the_job() -> None:
    engine = Engine({0: ["1", "2"], 1: []})
    feed = StepFeed(engine.steps(), 2)
    taken = []
    while (step := feed.next_step()) is not None:
        assert feed.compute(run) is step
        taken.append(step.index)
        feed.end()
    assert taken == engine.ended == [0, 1]
    assert engine.values == [1.0, 2.0]
    assert engine.is_closed
    assert feed.is_over


def test_a_step_that_its_loop_did_not_end_is_ended_before_the_next() -> None:
    engine = Engine({0: ["1"], 1: ["2"]})
    feed = StepFeed(engine.steps(), 9)
    feed.next_step()
    feed.compute(run)
    coming = feed.peek()
    assert engine.ended == [0]
    assert coming is not None
    assert coming.phase is StepPhase.NEW
    assert feed.next_step() is coming


def test_a_step_that_broke_comes_again_within_compute() -> None:
    engine = Engine({4: ["1"], 5: ["2"]}, breaks=(4,))
    feed = StepFeed(engine.steps(), 6)
    feed.next_step()
    assert feed.compute(run).index == 4
    assert engine.values == [1.0, 1.0]


def test_what_the_program_raises_ends_the_loop() -> None:
    feed = StepFeed(Engine({0: ["no number"]}).steps(), 1)
    feed.next_step()
    with pytest.raises(ValueError, match="no number"):
        feed.compute(run)


def test_a_replica_that_dropped_out_of_the_last_step_says_so() -> None:
    engine = Engine({0: ["1"]}, breaks=(0,))

    def steps() -> Iterator[Step]:
        yield next(engine.steps())

    feed = StepFeed(steps(), 1)
    feed.next_step()
    with pytest.raises(StepError, match="the others ended the training"):
        feed.compute(run)
