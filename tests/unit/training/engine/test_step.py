"""A step can be used in one way only; each other way says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch

from multiworld.training import StepError
from multiworld.training.engine.step import Step, StepChange, StepPhase


class Runner:
    """Yields two micro-batches, counts the step, and swallows ``OSError`` as if a peer was lost."""

    def __init__(self) -> None:
        self.values: list[Mapping[str, float]] = []
        self.ended = False
        self.failed: list[BaseException] = []
        self.misses_optimizer = False

    def micro_batches(self, step: Step) -> Iterator[Any]:
        yield "first"
        yield "second"
        step.change(StepChange.COUNTED)

    def recorded(self, values: Mapping[str, float]) -> None:
        self.values.append(values)

    def step_ended(self, step: Step) -> None:
        if self.misses_optimizer:
            raise StepError("no optimizer.step()")
        self.ended = True

    def step_failed(self, step: Step, error: BaseException) -> bool:
        self.failed.append(error)
        if isinstance(error, OSError):
            step.change(StepChange.BROKE)
            return True
        return False


def new_step() -> tuple[Runner, Step]:
    runner = Runner()
    return runner, Step(runner, 3, 0, 0)


def run(step: Step, work: Callable[[], object]) -> None:
    with step:
        for _ in step:
            work()


def test_a_step_that_runs_to_its_end_is_committed() -> None:
    runner, step = new_step()
    with step:
        assert not step.committed
        for _ in step:
            step.record(loss=torch.tensor(0.5, requires_grad=True), count=2)
        assert step.committed
        assert not runner.ended
    assert step.phase is StepPhase.OVER
    assert runner.ended
    assert runner.values == [{"loss": 0.5, "count": 2.0}] * 2


def test_a_lost_peer_ends_the_block_and_no_more() -> None:
    runner, step = new_step()
    with step:
        for _ in step:
            raise OSError
    assert step.phase is StepPhase.REPEATED
    assert not step.committed
    assert not runner.ended


def test_an_error_of_the_program_leaves_the_block() -> None:
    _, step = new_step()
    with pytest.raises(ZeroDivisionError):
        run(step, lambda: 1 / 0)


def test_a_loop_that_is_left_early_is_an_error() -> None:
    runner, step = new_step()
    with pytest.raises(StepError, match="left before its micro-batches were over") as caught, step:
        next(iter(step))
    assert runner.failed == [caught.value], "the others must hear of it, and not take this replica for lost"


def test_a_step_without_its_optimizer_is_told_to_the_others() -> None:
    runner, step = new_step()
    runner.misses_optimizer = True
    with pytest.raises(StepError, match="no optimizer") as caught:
        run(step, lambda: None)
    assert runner.failed == [caught.value]
    assert step.phase is not StepPhase.OVER


def test_a_block_without_the_loop_is_an_error() -> None:
    _, step = new_step()
    with pytest.raises(StepError, match="left before its micro-batches were over"), step:
        pass


def test_a_loop_outside_of_the_block_is_an_error() -> None:
    _, step = new_step()
    with pytest.raises(StepError, match="inside of its block"):
        iter(step)


def test_a_second_loop_is_an_error() -> None:
    _, step = new_step()
    with step:
        for _ in step:
            pass
        with pytest.raises(StepError, match="iterate over a step once"):
            iter(step)


def test_a_step_is_begun_once() -> None:
    _, step = new_step()
    with step:
        for _ in step:
            pass
    with pytest.raises(StepError, match="begun before"), step:
        pass


def test_values_are_recorded_in_the_loop_only() -> None:
    _, step = new_step()
    with pytest.raises(StepError, match=r"belongs into the loop"):
        step.record(loss=1.0)
