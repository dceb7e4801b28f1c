"""Which steps a program gets, and who comes and goes between them. The synchronization does as a test says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from multiworld.errors import WorldBrokenError
from multiworld.training.engine.decision import Outcome
from multiworld.training.engine.engine_parts import EngineParts
from multiworld.training.engine.progress import StepProgress
from multiworld.training.engine.step import Step, StepChange
from multiworld.training.engine.synchronization import Advance, RepeatStep
from multiworld.training.engine.trainer import Trainer
from multiworld.training.errors import StepError
from multiworld.training.recovery.records import Announcement, Generation
from multiworld.training.recovery.transfer import Receiving
from multiworld.training.state import TrainingState

from .fake_member import BROKEN, FakeMember, Silent


class Scripted:
    """Meets after each step. ``outcomes``: of steps, by index. ``missed``: the steps that a newcomer has to apply.

    ``repeats``: steps that this member cannot end, once each.
    """

    savable_since = None

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts
        self.outcomes: dict[int, Outcome] = {}
        self.missed: list[int] = []
        self.repeats: list[int] = []
        self.without_state: list[Outcome] = []
        """Of steps in which a newcomer takes part before it has the state."""
        self.ends: list[WorldBrokenError] = []
        """What ``end`` raises."""
        self.total: int | None = -1
        self.has_met = False
        self.progress = StepProgress()

    def attach(self, advance: Advance) -> None:
        self.advance = advance

    def begin_training(self, total: int | None) -> None:
        self.total = total

    def micro_batches(self, step: Step) -> Iterator[Any]:
        if step.index in self.repeats:
            self.repeats.remove(step.index)
            raise RepeatStep
        yield from ()
        self.parts.state.step = step.index + 1
        self.parts.standing.outcome = self.outcomes.get(step.index, Outcome())
        self.has_met = self.parts.standing.has_state
        step.change(StepChange.COUNTED)

    def step_ended(self, step: Step) -> None: ...

    def give_up(self) -> None:
        self.progress.done.clear()

    def close(self) -> None: ...

    def between_steps(self) -> bool:
        has_met, self.has_met = self.has_met, False
        return has_met

    def catch_up(self) -> Iterator[int]:
        if self.without_state:
            self.parts.standing.outcome, self.has_met = self.without_state.pop(0), True
            self.parts.state.step = min(self.parts.state.step + 1, self.total or 0)
            return
        yield from self.missed
        self.parts.standing.receiving = None
        self.parts.standing.has_state = True

    def end(self) -> None:
        if self.ends:
            raise self.ends.pop(0)

    def announced(self, common: Announcement) -> Announcement:
        return common

    def begin_generation(self, generation: Generation) -> None:
        is_newcomer = "a" in generation.stateless
        self.parts.standing.has_state = not is_newcomer
        self.parts.state.step = generation.step
        self.parts.standing.receiving = cast(Receiving, object()) if is_newcomer else None

    def first_step_of(self, generation: Generation) -> int:
        return generation.step


class Training:
    """``generations``: how many the member finds after the first one."""

    def __init__(self, *generations: Generation) -> None:
        self.member, self.observer, state = FakeMember(), Silent(), TrainingState()
        self.team = self.member.team
        self.team.coming = [self.team.generation, *generations]
        self.parts = self.member.parts(state, self.observer)
        self.sync = Scripted(self.parts)
        self.trainer = Trainer(self.parts, self.sync)

    def run(self, total: int, *, has_optimizer: bool = True) -> list[int]:
        indices = []
        for step in self.trainer.steps(total):
            with step:
                indices.append(step.index)
                for _ in step:
                    pass
                self.trainer.check_optimizer()
                if has_optimizer:
                    self.trainer.optimizer_stepped()
        return indices


def generation(training: Training, number: int, step: int = 0, stateless: tuple[str, ...] = ()) -> Generation:
    return Generation(number=number, members=training.team.generation.members, step=step, stateless=stateless)


def test_all_steps_are_done_and_the_end_is_told() -> None:
    training = Training()
    assert training.run(3) == [0, 1, 2]
    assert training.observer.applied == [0, 1, 2]
    assert (training.sync.total, training.team.membership.limit, training.team.membership.over) == (3, 3, 3)


def test_newcomers_are_admitted_after_all_have_met() -> None:
    training = Training()
    training.sync.outcomes = {1: Outcome(newcomers=("c",))}
    training.team.coming.append(generation(training, 2, step=2))
    assert training.run(3) == [0, 1, 2]
    assert training.team.num_meetings == 1
    assert training.observer.generations == [(1, 0), (2, 2)]


def test_the_others_go_on_when_one_leaves() -> None:
    training = Training()
    training.sync.outcomes = {0: Outcome(leaving=frozenset({1}))}
    training.team.coming.append(generation(training, 2, step=1))
    assert training.run(2) == [0, 1]
    assert training.team.left == [1]


def test_a_member_that_was_asked_to_leave_goes_after_all_have_met() -> None:
    training = Training()
    training.sync.outcomes = {1: Outcome(leaving=frozenset({0}))}
    assert training.run(5) == [0, 1]
    assert (training.trainer.standing.has_left, training.team.num_meetings) == (True, 1)
    assert training.team.membership.over is None


def test_nobody_comes_or_goes_after_the_last_step() -> None:
    training = Training()
    training.sync.outcomes = {1: Outcome(leaving=frozenset({0}), newcomers=("c",))}
    assert training.run(2) == [0, 1]
    assert (training.team.num_meetings, training.team.membership.over) == (0, 2)


def test_members_that_begin_anew_at_the_end_do_all_steps_again() -> None:
    """The only one that held some layers is lost while the others wait for it to end."""
    training = Training(Generation(number=2, members=FakeMember().team.generation.members, is_restart=True))
    training.sync.ends = [BROKEN]
    assert training.run(2) == [0, 1, 0, 1]


def test_a_newcomer_meets_no_others_after_the_last_step() -> None:
    training = Training()
    training.team.coming = [generation(training, 1, step=2, stateless=("a",))]
    training.sync.without_state = [Outcome(newcomers=("c",))]
    assert training.run(2) == []
    assert (training.team.num_meetings, training.team.membership.over) == (0, 2)


def test_a_newcomer_comes_along_when_members_change_before_it_has_the_state() -> None:
    training = Training()
    first, second = generation(training, 1, step=0, stateless=("a",)), generation(training, 2, step=1, stateless=("a",))
    training.team.coming = [first, second]
    training.sync.without_state = [Outcome(newcomers=("c",))]
    assert training.run(2) == [1]
    assert training.team.num_meetings == 1


def test_a_loss_while_all_meet_is_recovered_from() -> None:
    training = Training()
    training.sync.outcomes = {0: Outcome(newcomers=("c",))}
    training.team.coming.append(generation(training, 2, step=1))
    training.team.error = BROKEN
    assert training.run(2) == [0, 1]
    assert training.team.noted == [BROKEN]


def test_a_newcomer_applies_what_it_missed_and_goes_on() -> None:
    training = Training()
    training.team.coming = [generation(training, 1, step=3, stateless=("a",))]
    training.sync.missed = [3, 4]
    training.sync.outcomes = {4: Outcome(newcomers=("c",))}  # it was heard without this member
    assert training.run(7) == [3, 4, 5, 6]
    assert training.team.num_meetings == 0


def test_a_step_that_cannot_be_ended_comes_again() -> None:
    training = Training()
    training.sync.repeats = [1]
    assert training.run(3) == [0, 1, 1, 2]


def test_a_step_that_was_not_begun_is_refused() -> None:
    training = Training()
    with pytest.raises(StepError, match="was not begun"):
        for _ in training.trainer.steps(2):
            pass


def test_a_step_without_an_optimizer_is_refused_and_the_others_hear_of_it() -> None:
    training = Training()
    with pytest.raises(StepError, match=r"without optimizer.step\(\)"):
        training.run(2, has_optimizer=False)
    assert training.team.world.was_aborted
    assert len(training.team.membership.raised) == 1


def test_a_world_of_the_program_that_breaks_has_the_step_done_again() -> None:
    training = Training()
    training.team.coming.append(generation(training, 2, step=0))
    indices = []
    for step in training.trainer.steps(1):
        with step:
            indices.append((step.index, step.attempt))
            if not step.attempt:
                raise BROKEN
            for _ in step:
                pass
            training.trainer.optimizer_stepped()
    assert indices == [(0, 0), (0, 1)]
    assert training.team.world.was_aborted
