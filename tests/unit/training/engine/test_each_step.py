"""What becomes of a step when members reduce gradients in each: with a loss in it, and without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from multiworld.errors import WorldBrokenError, WorldClosedError
from multiworld.training.engine.each_step import EachStep
from multiworld.training.engine.facts import Facts
from multiworld.training.engine.health import NoHealth
from multiworld.training.engine.shares import Shares
from multiworld.training.engine.step import Step, StepPhase
from multiworld.training.engine.synchronization import RepeatStep
from multiworld.training.recovery.records import Announcement, Generation, Member
from multiworld.training.recovery.transfer import Receiving
from multiworld.training.state import TrainingState

from .fake_member import BROKEN, FakeMember, Runner, Silent
from .test_transfers import Arriving, at_step


class Training:
    """Member a trains alone. ``next_generation``: what the member finds after a loss; None: it was given up."""

    def __init__(self, *, batch: str = "constant") -> None:
        self.member, self.observer, self.state = FakeMember(), Silent(), TrainingState()
        self.team = self.member.team
        self.parts = self.member.parts(self.state, self.observer)
        self.sync = EachStep(self.parts, self.member.computing, Shares(4, batch=batch))
        self.sync.attach(self.advance)
        self.next_generation: Callable[[], Generation | None] = lambda: None
        self.newcomers: list[bool] = []
        """Whether this member was to be one, for each generation."""
        self.parts.standing.has_state = True

    def advance(
        self, error: WorldBrokenError | WorldClosedError | None, *, as_newcomer: bool = False
    ) -> Generation | None:
        self.newcomers.append(as_newcomer)
        self.member.team.error = None
        generation = None if as_newcomer else self.next_generation()
        if generation is None:
            self.parts.standing.has_state = False
            return None
        self.team.generation = generation
        self.sync.begin_generation(generation)
        return generation

    def begin(self) -> Step:
        step = self.parts.standing.step = Step(Runner(self.sync), self.state.step, 0, 0)
        return step

    def do(self, *, lost_after: int | None = None) -> tuple[Step, list[float]]:
        """Do a step; the world breaks after so many micro-batches. Returns the batches that were computed."""
        step, batches = self.begin(), []
        with step:
            for batch in step:
                batches.append(batch.item())
                self.member.backward(batch)
                if lost_after == len(batches):
                    self.member.team.error = BROKEN
            self.gradient = self.member.weight.grad
        return step, batches

    def announced(self) -> Announcement:
        return self.sync.announced(Announcement(member=self.team.membership.member))


def others_generation(training: Training, step: int, facts: Sequence[Facts] = (), **more: Any) -> Generation:
    return Generation(number=2, members=training.team.generation.members, step=step, facts=tuple(facts), **more)


def test_a_step_ends_with_the_mean_gradient_and_all_have_met_then() -> None:
    training = Training()
    step, batches = training.do()
    assert batches == [1.0, 2.0, 3.0, 4.0]
    assert training.gradient is not None
    assert training.gradient.item() == 2.5
    assert (step.phase, step.num_samples, training.state.step) == (StepPhase.OVER, 4, 1)
    assert training.sync.savable_since == 0
    assert [training.sync.between_steps() for _ in range(2)] == [True, False]


def test_finished_micro_batches_are_not_computed_again_after_a_loss() -> None:
    training = Training()
    training.next_generation = lambda: others_generation(training, 0, done={"a": training.announced().done})
    _, batches = training.do(lost_after=2)
    assert batches == [1.0, 2.0, 3.0, 4.0]
    assert training.gradient is not None
    assert training.gradient.item() == 2.5
    assert training.newcomers == [False]


def test_what_was_dealt_to_a_lost_member_is_counted_and_computed() -> None:
    training = Training()
    alone = training.team.generation
    training.team.generation = replace(alone, members=(*alone.members, Member(id="b", rank=1, host="h")))
    training.next_generation = lambda: replace(alone, number=2, done={"a": training.announced().done})
    _, batches = training.do(lost_after=1)
    assert sorted(batches) == [1.0, 2.0, 3.0, 4.0]
    assert training.member.computing.progress.num_redone == 2


def test_a_step_that_counts_for_others_counts_here_too() -> None:
    training = Training()
    facts = [Facts(step=0, member="a", done=(0, 1, 2, 3), values={"loss": (1.0, 3.0)})]
    training.next_generation = lambda: others_generation(training, 1, facts)

    def lose_once(tensor: Any, op: Any, timeout_s: float | None) -> None:
        assert training.announced().is_complete  # all gradients are here, but not all facts
        del training.team.world.start_all_reduce
        raise BROKEN

    training.team.world.start_all_reduce = lose_once  # type: ignore[method-assign]
    step, _ = training.do()
    assert (step.values, training.state.step) == ({"loss": 2.0}, 1)
    assert training.gradient is not None
    assert training.gradient.item() == 2.5


def test_a_member_that_was_given_up_cannot_end_its_step() -> None:
    training = Training()
    with pytest.raises(RepeatStep):
        training.do(lost_after=1)


def test_a_member_whose_result_is_wrong_becomes_a_newcomer() -> None:
    class FindsWrong(NoHealth):
        def wrong(self, step: int, members: Sequence[Member], facts: Sequence[Facts]) -> frozenset[int]:
            return frozenset({0})

    training = Training()
    training.member.services.health = FindsWrong()
    with pytest.raises(RepeatStep):
        training.do()
    assert (training.newcomers, training.state.step) == ([True], 0)
    assert training.team.num_meetings == 1  # all have heard so, before one leaves the world


def test_a_bad_step_leaves_the_optimizers_without_gradients() -> None:
    class FindsBad(NoHealth):
        def skips(self, *args: Any) -> bool:
            return True

    training = Training()
    training.member.services.health = FindsBad()
    step, _ = training.do()
    assert (step.committed, training.gradient, training.state.step) == (True, None, 1)


def test_nothing_of_a_step_is_announced_between_two_steps() -> None:
    training = Training()
    training.do()
    announced = training.announced()
    assert (announced.step, announced.done, announced.is_complete) == (1, (), False)


def newcomer_at(step: int, *, sent_at: int, limit: int | None = None) -> tuple[Training, Arriving]:
    training, arriving = Training(), Arriving(at_step(sent_at))
    members = (*training.team.generation.members, Member(id="b", rank=1, host="h"))
    training.team.generation = replace(training.team.generation, members=members)
    training.parts.standing.has_state = False
    training.parts.standing.receiving = cast(Receiving, arriving)
    training.state.step, training.team.membership.limit = step, limit
    return training, arriving


def test_a_newcomer_applies_the_steps_in_which_it_took_part_without_the_state() -> None:
    training, arriving = newcomer_at(3, sent_at=3)
    for number in (3, 4):
        assert list(training.sync.catch_up()) == []
        assert training.state.step == number + 1
        assert training.sync.between_steps()  # as the others, which may have admitted somebody in this step
    arriving.wait()
    applied = []
    for index in training.sync.catch_up():
        assert not training.parts.standing.has_state
        step, batches = training.do()
        applied.append((index, step.index))
        assert (batches, step.phase) == ([], StepPhase.OVER)
        assert not training.sync.between_steps()
    assert applied == [(3, 3), (4, 4)]
    assert training.parts.standing.has_state


def test_a_newcomer_awaits_the_state_where_no_step_is_left() -> None:
    training, _ = newcomer_at(5, sent_at=5, limit=5)
    assert list(training.sync.catch_up()) == []
    assert (training.parts.standing.has_state, training.sync.between_steps()) == (True, False)


def test_a_newcomer_keeps_nothing_of_a_step_that_does_not_count() -> None:
    class FindsWrong(NoHealth):
        def wrong(self, step: int, members: Sequence[Member], facts: Sequence[Facts]) -> frozenset[int]:
            return frozenset({1})

    training, _ = newcomer_at(3, sent_at=3)
    training.member.services.health = FindsWrong()
    training.next_generation = lambda: others_generation(training, 3, stateless=())
    assert list(training.sync.catch_up()) == []
    assert (training.state.step, training.team.left, training.newcomers) == (3, [1], [False])
    assert training.team.num_meetings == 1
    assert not training.sync.between_steps()
