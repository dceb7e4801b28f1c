"""The loop over a training's steps: who may come and go between them, and what follows when a member is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import MultiworldError, WorldBrokenError, WorldClosedError
from ..errors import LoaderWorkerError, SampleError, StepError
from ..health.timing import IDLE
from ..recovery.records import Announcement, Generation
from .ending import Ending
from .engine_parts import EngineParts
from .program_error import MAX_TRIES, tell_others
from .regrouping import Regrouping
from .step import Step, StepChange, StepPhase
from .synchronization import RepeatStep, Synchronization


class Trainer:
    """One member's engine. It is the ``StepRunner`` of its steps. Belongs to the training thread.

    What members exchange, and when, is its synchronization's: see ``EachStep`` and ``Rounds``.
    """

    def __init__(self, parts: EngineParts, sync: Synchronization, *, digest: str = "") -> None:
        """``digest``: of what all members must have in common."""
        self._team, self._state, self._loader = parts.team, parts.state, parts.loader
        self.services, self.standing = parts.services, parts.standing
        self._transfers, self._beginning = parts.transfers, parts.beginning
        self._observer, self._recoveries, self._digest = parts.observer, parts.recoveries, digest
        self._sync = sync
        sync.attach(self._advance)
        self._regrouping = Regrouping(
            self._team,
            announce=self._announcement,
            begin=sync.begin_generation,
            lose_state=self.standing.lose_state,
        )
        self.ending = Ending(self._team, self._transfers)
        self._attempt = 0
        self._num_optimizer_steps = 0
        self.failure = ""
        """The error with which the program left a step's block."""

    # ---- the steps

    def steps(self, total: int | None) -> Iterator[Step]:
        """Yield each step until ``total`` are committed, the data is over, or this member leaves."""
        self._join(total)
        while not self.standing.is_over or not self._end():
            if self.standing.receiving is not None:
                yield from self._catch_up()
            else:
                yield from self._own_step()
            if self._between_steps():
                return

    def _own_step(self) -> Iterator[Step]:
        step = self._new_step(self._state.step)
        yield step
        if step.phase is StepPhase.NEW:
            raise StepError(f"step {step.index} was not begun: write 'with step:' in the loop over job.steps()")
        self._attempt = self._attempt + 1 if step.phase is StepPhase.REPEATED else 0

    def _catch_up(self) -> Iterator[Step]:
        """Have the program apply what counted meanwhile, so that schedulers and averages go on with it."""
        self.standing.step = None
        for index in self._sync.catch_up():
            step = self._new_step(index)
            yield step
            if step.phase is not StepPhase.OVER:
                raise StepError(f"step {step.index} was not applied: write 'with step:' in the loop over job.steps()")

    def _new_step(self, index: int) -> Step:
        self.standing.step = Step(self, index, self._loader.epoch_of(index), self._attempt)
        return self.standing.step

    def _between_steps(self) -> bool:
        """If all have just met: admit newcomers, and let members go. True: this member is done."""
        if not self._sync.between_steps():
            return self.standing.has_left
        self._transfers.forget_sent()
        outcome = self.standing.outcome
        if self.standing.is_last or not (outcome.leaving or outcome.newcomers or outcome.is_prefetched):
            return False
        try:
            self._team.meet()  # all know that the step counts, before anybody goes
        except (WorldBrokenError, WorldClosedError) as error:
            self._advance(error)
            return False
        if self._team.place in outcome.leaving:
            self.standing.has_left = True
            return True
        if outcome.leaving:
            self._team.leaves(sorted(outcome.leaving))
        self._advance(None)
        return False

    def _end(self) -> bool:
        """After the last step: end together. False: this member has lost the state, or all begin anew.

        A replica that was lost shortly before comes back meanwhile: it gets the state of the end, and ends with it.
        """
        while self.standing.is_over:
            error: WorldBrokenError | WorldClosedError | None = None
            try:
                self._sync.end()
                if not self.ending.hear_of_missing(self._state.step):
                    self.ending.hand_over(self._state.step)
                    return True
            except (WorldBrokenError, WorldClosedError) as broken:
                error = broken
            self._advance(error)
        return False

    # ---- what a step asks (see ``StepRunner``)

    def micro_batches(self, step: Step) -> Iterator[Any]:
        self._num_optimizer_steps = 0
        return self._sync.micro_batches(step)

    def recorded(self, values: Mapping[str, float]) -> None:
        self._sync.progress.record(values)

    @property
    def savable_since(self) -> int | None:
        """After a step: how many had been committed at the last chance to save the state. None: now there is none."""
        return self._sync.savable_since

    @property
    def num_restarts(self) -> int:
        """How often this member began together with all others, as nobody had any state."""
        return self._beginning.num_restarts

    @property
    def took_s(self) -> float:
        """Since the present step was begun."""
        return time.monotonic() - self._sync.progress.began

    @property
    def num_redone(self) -> int:
        """How many micro-batches of the present step were dealt a second time."""
        return self._sync.progress.num_redone

    @property
    def seconds(self) -> Mapping[str, float]:
        return self._sync.progress.seconds

    def optimizer_stepped(self) -> None:
        self._num_optimizer_steps += 1

    def check_optimizer(self) -> None:
        """Raises StepError if an optimizer must not run now."""
        if self.standing.step is None or self.standing.step.phase is not StepPhase.COMMITTED:
            raise StepError(
                "optimizer.step() was called before the step counted: call it inside of 'with step:', after the loop "
                "over the step's micro-batches"
            )

    def step_ended(self, step: Step) -> None:
        self.services.timer.enter(IDLE)  # what follows is no work of this member alone
        self._sync.step_ended(step)
        if not self._num_optimizer_steps and not self.services.may_skip_optimizer:
            raise StepError(
                f"step {step.index} ended without optimizer.step(), so its gradients would be lost. Call it after the "
                "loop over the micro-batches"
            )
        self._observer.step_applied(step)

    def step_failed(self, step: Step, error: BaseException) -> bool:
        if isinstance(error, (WorldBrokenError, WorldClosedError)):
            self._team.replica.check(error)
        if isinstance(error, RepeatStep):
            step.change(StepChange.BROKE)
            return True
        may_repeat = step.phase in (StepPhase.OPEN, StepPhase.COMPUTING) and step.attempt < MAX_TRIES
        if isinstance(error, (WorldBrokenError, WorldClosedError)) and may_repeat:
            # Of a world of the program's own, inside of the replica perhaps: what was computed may be half done.
            self._sync.give_up()
            if self._team.stands:  # the others wait there for this member's gradients
                self._team.world.abort()
            self._advance(error)
            step.change(StepChange.BROKE)
            return True
        self.failure = f"{type(error).__name__}: {error}"
        is_own = isinstance(error, (StepError, SampleError, LoaderWorkerError, WorldBrokenError, WorldClosedError))
        if isinstance(error, Exception) and (is_own or not isinstance(error, MultiworldError)):
            tell_others(self._team, self._loader, step.index, error)
        return False

    # ---- a loss

    def _announcement(self) -> Announcement:
        has_state = self.standing.has_state
        return self._sync.announced(
            Announcement(
                member=self._team.membership.member,
                has_state=has_state,
                facts=tuple(self.standing.facts) if has_state else (),
                digest=self._digest,
                saved_step=-1 if has_state else self.services.saved_step(),
                is_over=self.standing.is_over,
            )
        )

    def _join(self, total: int | None) -> None:
        """Meet the others. Raises OverError if the training is over already."""
        limit = min((each for each in (total, self._loader.num_steps) if each is not None), default=None)
        self._sync.begin_training(limit)
        self._team.membership.limit = limit
        self._advance(None)

    def _advance(
        self, error: WorldBrokenError | WorldClosedError | None, *, as_newcomer: bool = False
    ) -> Generation | None:
        """Form the next generation. None: this member is a newcomer in it, though it had the state before."""
        before = None if self._team.membership.generation is None else self._team.generation
        observer, number = self._recoveries, self._state.step
        observer.recovery_began(number, error if isinstance(error, WorldBrokenError) else None)
        if isinstance(error, WorldBrokenError):
            self._team.note(error)
        self._transfers.clear()
        self.standing.receiving = None
        if as_newcomer:
            self.standing.has_state = False
            self._team.become_newcomer()
        generation, was_excluded = self._regrouping.regroup(
            lambda name, took_s: observer.recovery_phase(name, number, took_s)
        )
        first = self._state.step if generation.is_restart else self._sync.first_step_of(generation)
        observer.generation_began(before, generation, first)
        return None if was_excluded or as_newcomer else generation

    def close(self) -> None:
        self._sync.close()
