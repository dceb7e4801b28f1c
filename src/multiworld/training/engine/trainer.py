"""Compute the steps of a training: micro-batches, reduction, commit, and what follows when a member is lost."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ...errors import MultiworldError, WorldBrokenError, WorldClosedError
from ..data.base import StepLoader
from ..errors import BadStepError, LoaderWorkerError, SampleError, StepError
from ..health.timing import IDLE, OPTIMIZER
from ..recovery.records import Announcement, Generation, Member
from ..recovery.team import Team
from ..recovery.transfer import DamagedStateError, Receiving, Sending
from ..replica.layout import places_of_shard
from ..state import TrainingState
from .beginning import Beginning
from .commit import exchange
from .computing import Computing
from .decision import Outcome, decide
from .ending import Ending
from .facts import Facts
from .missed_steps import MissedStep, MissedSteps
from .program_error import MAX_TRIES, tell_others
from .regrouping import Regrouping
from .services import Services
from .shares import Shares
from .standing import Standing
from .step import Step, StepChange, StepPhase
from .transfers import Transfers

logger = logging.getLogger(__name__)

WRONG = "its state or its gradients were not those of the others"


class RepeatStep(Exception):
    """The present step cannot be ended on this member, which has to get the state anew. Ends the step's block."""


class _WithoutError(Exception):
    """The step has to be done without the members at these places."""

    def __init__(self, places: frozenset[int]) -> None:
        super().__init__(places)
        self.places = places


class RecoveryObserver(Protocol):
    """Hears of members that are lost and come; see ``events``. Called on the training thread; must be quick."""

    def recovery_began(self, step: int, error: WorldBrokenError | None) -> None: ...

    def recovery_phase(self, name: str, step: int, took_s: float) -> None: ...

    def generation_began(self, before: Generation | None, now: Generation, step: int) -> None: ...

    def state_received(self, step: int, size_bytes: int, sources: int, took_s: float) -> None: ...


class StepObserver(Protocol):
    """Hears of steps. Called on the training thread; must be quick."""

    def step_committed(self, step: Step, generation: Generation, facts: Sequence[Facts], outcome: Outcome) -> None:
        """All members have complete gradients; the optimizers have not run yet."""

    def step_applied(self, step: Step) -> None:
        """The step's block has ended: the state is that of the next step."""


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """``batch``: what becomes of a lost member's micro-batches.

    ``full_size``: how many replicas there are when all are there.
    """

    batch: str = "constant"
    digest: str = ""
    full_size: int = 1


class Trainer:
    """One member's engine. It is the ``StepRunner`` of its steps. Belongs to the training thread."""

    def __init__(
        self,
        team: Team,
        state: TrainingState,
        computing: Computing,
        services: Services,
        loader: StepLoader,
        observer: StepObserver,
        recoveries: RecoveryObserver,
        options: TrainerOptions,
    ) -> None:
        self.team, self.state, self.loader = team, state, loader
        self.services = services
        self._computing, self._gradients, self._buffers = computing, computing.gradients, computing.buffers
        self._observer, self._recoveries, self._options = observer, recoveries, options
        self.standing = Standing(team, state)
        self._shares = Shares(
            loader.num_micro_batches,
            batch=options.batch,
            replica_size=team.replica.size,
            full_size=options.full_size,
        )
        self._looked_at: frozenset[int] | None = None
        self._transfers = Transfers(team, state, recoveries.state_received)
        self._beginning = Beginning(team, state, self.standing, self._transfers, services)
        self._missed = MissedSteps()
        self._regrouping = Regrouping(
            team, announce=self._announcement, begin=self._begin_generation, lose_state=self.standing.lose_state
        )
        self.ending = Ending(team, self._transfers)
        self._attempt = 0
        self._redo_began: float | None = None
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
                if self.standing.has_left:
                    return
                continue
            step = self._new_step(self.state.step)
            yield step
            if step.phase is StepPhase.NEW:
                raise StepError(f"step {step.index} was not begun: write 'with step:' in the loop over job.steps()")
            if step.phase is StepPhase.REPEATED:
                self._attempt += 1
                continue
            self._attempt = 0
            if self._between_steps():
                return

    def _new_step(self, index: int) -> Step:
        self.standing.step = Step(self, index, self.loader.epoch_of(index), self._attempt)
        return self.standing.step

    def _between_steps(self) -> bool:
        """After a step: end, or admit newcomers and let members go. True: this member is done."""
        self._transfers.forget_sent()
        outcome = self.standing.outcome
        if self.standing.is_over or not (outcome.leaving or outcome.newcomers):
            return False
        try:
            self._meet()  # all know that the step counts, before anybody goes
        except (WorldBrokenError, WorldClosedError) as error:
            self._advance(error)
            return False
        if self.team.place in outcome.leaving:
            self.standing.has_left = True
            return True
        if outcome.leaving:
            self.team.leaves(sorted(outcome.leaving))
        self._advance(None)
        return False

    def _end(self) -> bool:
        """After the last step: end together. False: this member has lost the state, and has to get it anew.

        A replica that was lost shortly before comes back meanwhile: it gets the state of the end, and ends with it.
        """
        while self.standing.has_state:
            error: WorldBrokenError | WorldClosedError | None = None
            try:
                if not self.ending.hear_of_missing(self.state.step):
                    self.ending.hand_over(self.state.step)
                    return True
            except (WorldBrokenError, WorldClosedError) as broken:
                error = broken
            self._advance(error)
        return False

    def _meet(self) -> None:
        def barrier() -> list[Facts]:
            self.team.world.blocking.barrier()
            return []

        self.team.replica.as_one(barrier)

    # ---- the loop over micro-batches

    def micro_batches(self, step: Step) -> Iterator[Any]:
        if self._missed.present is not None:
            self._apply_missed(step, self._missed.present)
            return
        self._begin()
        self.services.health.began(step.index)
        while True:
            try:
                yield from self._computing.compute(step.index, self._shares.by_place[self.team.place])
                facts = self.team.replica.as_one(self._complete)
                self._check_right(facts)
            except _WithoutError as error:
                self._do_without(error.places)
                continue
            except (WorldBrokenError, WorldClosedError) as error:
                before = self.team.generation
                heard = self._recover(error)
                if heard is None:
                    continue
                self._commit(step, heard, before)
                return
            self._commit(step, facts, self.team.generation)
            return

    def _complete(self) -> list[Facts]:
        """Reduce, and hear the facts of all: who returns knows that the step counts. Raises the world's error."""
        self._gradients.fill_up()
        self._computing.reduce()
        facts = exchange(self.team.world, self._own_facts())
        late = sorted({bucket for each in facts for bucket in each.late})
        if late:  # on any member: all reduce these once more
            self._computing.reduce_again(late)
            facts = exchange(self.team.world, self._own_facts())
        return facts

    def _begin(self) -> None:
        self._num_optimizer_steps = 0
        generation = self.team.generation
        is_first = not generation.is_restart and generation.step == self.state.step
        if is_first:  # others may have begun this step before this member came to it
            self._looked_at = None if generation.looked_at is None else frozenset(generation.looked_at)
        self._computing.begin_step(self._looked_at)
        self._shares.begin_step()
        self._deal(self._done_elsewhere() if is_first else {})

    def _done_elsewhere(self) -> dict[int, tuple[int, ...]]:
        """Return what was done of the step with which the present generation began, by place."""
        generation = self.team.generation
        return {generation.place_of(each): numbers for each, numbers in generation.done.items()}

    def _deal(self, done: Mapping[int, Sequence[int]]) -> None:
        """Share out what nobody has done; all members do so alike. ``done``: by place."""
        shares, members = self._shares, self.team.generation.members
        if shares.deal(members, done) and done:
            # The loader cannot know the share of the next step from what is left of this one.
            self.loader.expect(self.state.step + 1, shares.of_next_step(self.team.place, len(members)))
        self._computing.reduction.use(self.team.shard_world, shares.by_replica)

    def recorded(self, values: Mapping[str, float]) -> None:
        self._computing.progress.record(values)

    # ---- reduce and commit

    def _own_facts(self) -> Facts:
        progress = self._computing.progress
        self.team.membership.look_for_newcomers()
        more = self.services.own_facts(self.state.step)
        if self.standing.has_state:
            more = {**more, **self.services.health.own_facts(self.state.step, self._computing.reduced)}
        return Facts(
            step=self.state.step,
            member=self.team.membership.member.id,
            done=tuple(progress.done),
            values=progress.values_for_json(),
            seconds=progress.seconds,
            is_leaving=self.services.is_leaving(),
            newcomers=self.team.membership.newcomers,
            is_ready=self.standing.has_state,
            unused=tuple(sorted(self._computing.unused)) if progress.done else (),
            changed=tuple(sorted(self._buffers.changed)),
            late=tuple(sorted(self._gradients.late)),
            **more,
        )

    def _check_right(self, facts: Sequence[Facts]) -> None:
        """Raises _WithoutError if some members' results must not count."""
        wrong = self.services.health.wrong(self.state.step, self.team.generation.members, facts)
        if wrong:
            raise _WithoutError(wrong)

    def _do_without(self, places: frozenset[int]) -> None:
        """All have heard that these are wrong: they get the state anew, and the others do their micro-batches."""
        self._buffers.undo()
        self._computing.progress.is_complete = False  # the step does not count, for nobody applies it
        is_wrong = self.team.place in places
        if is_wrong:
            self.services.health.given_up(self.state.step)
        else:
            self.team.leaves(sorted(places), WRONG)
        self._advance(None, as_newcomer=is_wrong)
        if not self.standing.has_state:
            raise RepeatStep

    def _commit(self, step: Step, facts: list[Facts], generation: Generation) -> None:
        """The step counts: give the program the gradients. ``generation``: the facts are those of its members."""
        self._count(facts, generation)
        outcome = self.standing.outcome
        if outcome.num_done:
            for bucket in self._computing.buckets:
                bucket.reduced.div_(outcome.num_done)
        step.values = outcome.values
        step.num_samples = outcome.num_done * self.loader.micro_batch
        self._buffers.undo()  # equal on all members, as the step began
        try:
            skips = self.services.health.skips(step.index, generation.members, outcome, facts)
        except BadStepError:  # the same on all; who ends first must not break the world of those who still hear facts
            with contextlib.suppress(WorldBrokenError, WorldClosedError):
                self._meet()
            raise
        has_scaler = self.services.may_skip_optimizer
        if skips and has_scaler:  # it leaves the optimizer out by itself, and demands that there are gradients
            for reduced in self._computing.reduced:
                reduced.fill_(math.inf)
        everything = range(len(self._gradients.parameters))
        self._gradients.apply(everything if skips and not has_scaler else outcome.unused)
        if not skips:
            self._buffers.apply()
        self._computing.seed_after(self.state.step)
        self._computing.progress.is_complete = False
        if self._redo_began is not None:
            self._recoveries.recovery_phase("redo", step.index, time.monotonic() - self._redo_began)
            self._redo_began = None
        step.change(StepChange.COUNTED)
        self._observer.step_committed(step, generation, facts, outcome)
        self.services.timer.enter(OPTIMIZER)

    def _count(self, facts: list[Facts], generation: Generation) -> None:
        self.standing.facts = facts
        self.standing.outcome = decide(facts, self.team.replica.size)
        self._looked_at = self._buffers.next_to_look_at(self._looked_at, self.standing.outcome.changed)
        self.state.step += 1
        if generation is self.team.generation:
            self._shares.not_ready = self.standing.outcome.not_ready
        else:
            self._caught_up(generation)

    def _caught_up(self, before: Generation) -> None:
        """The others counted this step before the loss: what it decided on places and members is over.

        They stood at the barrier that follows a step with such decisions, or had begun the next step.
        """
        outcome = self.standing.outcome
        if not (outcome.leaving or outcome.newcomers):
            self._shares.others_began(before.members, outcome.not_ready)
        self.standing.outcome = replace(outcome, leaving=frozenset(), newcomers=(), not_ready=self._shares.not_ready)

    @property
    def savable_since(self) -> int | None:
        """After a step: how many had been committed at the last chance to save the state. None: now there is none."""
        return self.state.step - 1

    @property
    def num_restarts(self) -> int:
        """How often this member began together with all others, as nobody had any state."""
        return self._beginning.num_restarts

    @property
    def took_s(self) -> float:
        """Since the present step was begun."""
        return time.monotonic() - self._computing.progress.began

    @property
    def num_redone(self) -> int:
        """How many micro-batches of the present step were dealt a second time."""
        return self._computing.progress.num_redone

    @property
    def seconds(self) -> Mapping[str, float]:
        return self._computing.progress.seconds

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
        self.services.timer.enter(IDLE)
        if not self._num_optimizer_steps and not self.services.may_skip_optimizer:
            raise StepError(
                f"step {step.index} ended without optimizer.step(), so its gradients would be lost. Call it after the "
                "loop over the micro-batches"
            )
        self._missed.applied()
        self._observer.step_applied(step)

    def step_failed(self, step: Step, error: BaseException) -> bool:
        if isinstance(error, (WorldBrokenError, WorldClosedError)):
            self.team.replica.check(error)
        if isinstance(error, RepeatStep):
            step.change(StepChange.BROKE)
            return True
        may_repeat = step.phase in (StepPhase.OPEN, StepPhase.COMPUTING) and step.attempt < MAX_TRIES
        if isinstance(error, (WorldBrokenError, WorldClosedError)) and may_repeat:
            # Of a world of the program's own, inside of the replica perhaps: what was computed may be half done.
            self._computing.give_up()
            if self.team.stands:  # the others wait there for this member's gradients
                self.team.world.abort()
            self._advance(error)
            step.change(StepChange.BROKE)
            return True
        self.failure = f"{type(error).__name__}: {error}"
        is_own = isinstance(error, (StepError, SampleError, LoaderWorkerError, WorldBrokenError, WorldClosedError))
        if isinstance(error, Exception) and (is_own or not isinstance(error, MultiworldError)):
            tell_others(self.team, self.loader, step.index, error)
        return False

    # ---- a loss

    def _recover(self, error: WorldBrokenError | WorldClosedError) -> list[Facts] | None:
        """Go on with those who are left. Returns the facts of the present step if it counts, else None."""
        self._buffers.undo()
        before = self.state.step
        generation = self._advance(error)
        if generation is None or (not self.standing.has_state):
            raise RepeatStep
        if generation.step == before + 1:
            return list(generation.facts)
        return None

    def _announcement(self) -> Announcement:
        return Announcement(
            member=self.team.membership.member,
            step=self.state.step,
            done=tuple(self._computing.progress.done) if self.standing.has_state and self.standing.is_computing else (),
            has_state=self.standing.has_state,
            is_complete=self._computing.progress.is_complete and self.standing.is_computing,
            facts=tuple(self.standing.facts) if self.standing.has_state else (),
            digest=self._options.digest,
            saved_step=-1 if self.standing.has_state else self.services.saved_step(),
            snapshots=() if self.standing.has_state else self.services.memory.snapshots(),
            looked_at=None
            if not self.standing.is_computing or self._looked_at is None
            else tuple(sorted(self._looked_at)),
            is_over=self.standing.is_over,
        )

    def _join(self, total: int | None) -> None:
        """Meet the others. Raises OverError if the training is over already."""
        limits = [each for each in (total, self.loader.num_steps) if each is not None]
        self.team.membership.limit = min(limits, default=None)
        self._advance(None)

    def _advance(
        self, error: WorldBrokenError | WorldClosedError | None, *, as_newcomer: bool = False
    ) -> Generation | None:
        """Form the next generation. None: this member is a newcomer in it, though it had the state before."""
        before = None if self.team.membership.generation is None else self.team.generation
        observer, number = self._recoveries, self.state.step
        observer.recovery_began(number, error if isinstance(error, WorldBrokenError) else None)
        if isinstance(error, WorldBrokenError):
            self.team.note(error)
        self._transfers.clear()
        self.standing.receiving = None
        self._missed.clear()
        if as_newcomer:
            self.standing.has_state = False
            self.team.become_newcomer()
        generation, was_excluded = self._regrouping.regroup(
            lambda name, took_s: observer.recovery_phase(name, number, took_s)
        )
        observer.generation_began(before, generation, self._first_step_of(generation))
        return None if was_excluded or as_newcomer else generation

    def _first_step_of(self, generation: Generation) -> int:
        return self.state.step if generation.is_restart else generation.step

    def _begin_generation(self, generation: Generation) -> None:
        members, me = generation.members, self.team.membership.member.id
        self._shares.not_ready = frozenset() if generation.is_restart else _places(members, generation.stateless)
        same_shard = places_of_shard(self.team.place, len(members), self.team.replica.size)
        sources = sorted(_places(members, generation.sources).intersection(same_shard))
        newcomers = sorted(_places(members, generation.stateless).intersection(same_shard))
        if generation.is_restart:
            self._looked_at = None
            self._beginning.begin(sources[0], newcomers)
        elif me in generation.stateless:
            self.standing.lose_state()
            self.state.step = generation.step
            self.standing.receiving = Receiving(self.team.world, sources)
        elif newcomers and self.team.place in sources:
            self._transfers.send(Sending(self.team.world, self.state.capture(), sources, newcomers))
        if self.standing.is_computing and self.standing.has_state and generation.step == self.state.step:
            self._computing.progress.num_redone += self._shares.num_lost(members)
            self._computing.progress.is_complete = False
            self._redo_began = time.monotonic()
            self._deal(self._done_elsewhere())

    # ---- a newcomer

    def _catch_up(self) -> Iterator[Step]:
        """Take part without micro-batches until the state is here, then apply what counted meanwhile."""
        receiving = self.standing.receiving
        assert receiving is not None
        self.standing.step = None
        try:
            while not self._transfers.has_come(receiving):
                if self.standing.is_last:
                    self._transfers.has_come(receiving, wait=True)
                    continue
                self._shadow()
                outcome = self.standing.outcome
                if self.standing.is_last or not (outcome.leaving or outcome.newcomers):
                    continue
                self._meet()  # as the others do, see _between_steps
                if self.team.place in outcome.leaving:
                    self.standing.has_left = True
                    return
                self.team.leaves(sorted(outcome.leaving))
                self._advance(None)
                return
        except (WorldBrokenError, WorldClosedError) as error:
            self._advance(error)
            return
        except _WithoutError as error:
            self.team.leaves(sorted(error.places), WRONG)
            self._advance(None)
            return
        except DamagedStateError as error:
            logger.warning("%s; it is asked for again", error)
            self.team.world.abort()
            self._advance(None)
            return
        self._transfers.take(receiving)
        self.standing.facts = []
        self.standing.receiving = None
        while self._missed:
            self._missed.begin_next()
            step = self._new_step(self.state.step)
            yield step
            if step.phase is not StepPhase.OVER:
                raise StepError(f"step {step.index} was not applied: write 'with step:' in the loop over job.steps()")
        self.standing.has_state = True

    def _shadow(self) -> None:
        """Take part in a step with nothing of its own, and keep what it gave."""
        self._begin()
        looked_at = self._looked_at
        facts = self.team.replica.as_one(self._complete)
        self._check_right(facts)
        step = self.state.step
        self._count(facts, self.team.generation)
        self._missed.keep(step, facts, self._computing.buckets, looked_at)

    def _apply_missed(self, step: Step, missed: MissedStep) -> None:
        self._num_optimizer_steps = 0
        self._computing.begin_step(missed.looked_at)
        missed.restore(self._computing.buckets)
        self.state.step, self._looked_at = missed.step, missed.looked_at
        self._commit(step, missed.facts, self.team.generation)

    def close(self) -> None:
        self._gradients.close()


def _places(members: Sequence[Member], ids: Sequence[str]) -> frozenset[int]:
    return frozenset(place for place, each in enumerate(members) if each.id in ids)
