"""Synchronization in each step: all members reduce their gradients, and the step counts once all have heard so."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import WorldBrokenError, WorldClosedError
from ..errors import BadStepError
from ..health.timing import OPTIMIZER
from ..recovery.records import Announcement, Generation, Member
from ..recovery.transfer import Receiving, Sending
from ..replica.layout import places_of_shard
from .commit import exchange
from .computing import Computing
from .decision import decide
from .engine_parts import EngineParts
from .facts import Facts
from .missed_steps import MissedStep, MissedSteps
from .newcomer import Newcomer
from .progress import StepProgress
from .shares import Shares
from .step import Step, StepChange
from .synchronization import Advance, RepeatStep

WRONG = "its state or its gradients were not those of the others"


class _WithoutError(Exception):
    """The step has to be done without the members at these places."""

    def __init__(self, places: frozenset[int]) -> None:
        super().__init__(places)
        self.places = places


class EachStep:
    """After a loss the others compute what the lost member has not; finished micro-batches stay."""

    def __init__(self, parts: EngineParts, computing: Computing, shares: Shares) -> None:
        self._team, self._state, self._loader = parts.team, parts.state, parts.loader
        self._services, self._standing = parts.services, parts.standing
        self._computing, self._shares = computing, shares
        self._gradients, self._buffers = computing.gradients, computing.buffers
        self._transfers, self._beginning = parts.transfers, parts.beginning
        self._observer, self._recoveries = parts.observer, parts.recoveries
        self._advance: Advance
        self._looked_at: frozenset[int] | None = None
        self._missed = MissedSteps()
        self._newcomer = Newcomer(self._team, self._standing, self._transfers)
        self._redo_began: float | None = None
        self._has_committed = False
        """Since the last look between two steps."""

    def attach(self, advance: Advance) -> None:
        self._advance = advance

    def begin_training(self, total: int | None) -> None:
        pass

    @property
    def savable_since(self) -> int | None:
        return self._state.step - 1

    @property
    def progress(self) -> StepProgress:
        return self._computing.progress

    def give_up(self) -> None:
        self._computing.give_up()

    def close(self) -> None:
        self._gradients.close()

    def first_step_of(self, generation: Generation) -> int:
        return generation.step

    def step_ended(self, step: Step) -> None:
        self._has_committed = self._missed.present is None
        self._missed.applied()

    def between_steps(self) -> bool:
        has_committed, self._has_committed = self._has_committed, False
        return has_committed

    # ---- the loop over micro-batches

    def micro_batches(self, step: Step) -> Iterator[Any]:
        if self._missed.present is not None:
            self._apply_missed(step, self._missed.present)
            return
        self._begin()
        self._services.health.began(step.index)
        while True:
            try:
                yield from self._computing.compute(step.index, self._shares.by_place[self._team.place])
                facts = self._team.replica.as_one(self._complete)
                self._check_right(facts)
            except _WithoutError as error:
                self._do_without(error.places)
                continue
            except (WorldBrokenError, WorldClosedError) as error:
                before = self._team.generation
                heard = self._recover(error)
                if heard is None:
                    continue
                self._commit(step, heard, before)
                return
            self._commit(step, facts, self._team.generation)
            return

    def _complete(self) -> list[Facts]:
        """Reduce, and hear the facts of all: who returns knows that the step counts. Raises the world's error."""
        self._gradients.fill_up()
        self._computing.reduce()
        facts = exchange(self._team.world, self._own_facts())
        late = sorted({bucket for each in facts for bucket in each.late})
        if late:  # on any member: all reduce these once more
            self._computing.reduce_again(late)
            facts = exchange(self._team.world, self._own_facts())
        return facts

    def _begin(self) -> None:
        generation = self._team.generation
        is_first = not generation.is_restart and generation.step == self._state.step
        if is_first:  # others may have begun this step before this member came to it
            self._looked_at = None if generation.looked_at is None else frozenset(generation.looked_at)
        self._computing.begin_step(self._looked_at)
        self._shares.begin_step()
        self._deal(self._done_elsewhere() if is_first else {})

    def _done_elsewhere(self) -> dict[int, tuple[int, ...]]:
        """Return what was done of the step with which the present generation began, by place."""
        generation = self._team.generation
        return {generation.place_of(each): numbers for each, numbers in generation.done.items()}

    def _deal(self, done: Mapping[int, Sequence[int]]) -> None:
        """Share out what nobody has done; all members do so alike. ``done``: by place."""
        shares, members = self._shares, self._team.generation.members
        if shares.deal(members, done) and done:
            # The loader cannot know the share of the next step from what is left of this one.
            self._loader.expect(self._state.step + 1, shares.of_next_step(self._team.place, len(members)))
        self._computing.reduction.use(self._team.shard_world, shares.by_replica)

    # ---- reduce and commit

    def _own_facts(self) -> Facts:
        progress = self._computing.progress
        self._team.membership.look_for_newcomers()
        more = self._services.own_facts(self._state.step)
        if self._standing.has_state:
            more = {**more, **self._services.health.own_facts(self._state.step, self._computing.reduced)}
        return Facts(
            step=self._state.step,
            member=self._team.membership.member.id,
            done=tuple(progress.done),
            values=progress.values_for_json(),
            seconds=progress.seconds,
            is_leaving=self._services.is_leaving(),
            newcomers=self._team.membership.newcomers,
            is_ready=self._standing.has_state,
            unused=tuple(sorted(self._computing.unused)) if progress.done else (),
            changed=tuple(sorted(self._buffers.changed)),
            late=tuple(sorted(self._gradients.late)),
            **more,
        )

    def _check_right(self, facts: Sequence[Facts]) -> None:
        """Raises _WithoutError if some members' results must not count."""
        wrong = self._services.health.wrong(self._state.step, self._team.generation.members, facts)
        if wrong:
            raise _WithoutError(wrong)

    def _let_all_hear(self) -> None:
        """Before this member leaves the world: who goes first must not break it for those who still hear the facts."""
        with contextlib.suppress(WorldBrokenError, WorldClosedError):
            self._team.meet()

    def _do_without(self, places: frozenset[int]) -> None:
        """All have heard that these are wrong: they get the state anew, and the others do their micro-batches."""
        self._buffers.undo()
        self._computing.progress.is_complete = False  # the step does not count, for nobody applies it
        self._let_all_hear()
        is_wrong = self._team.place in places
        if is_wrong:
            self._services.health.given_up(self._state.step)
        else:
            self._team.leaves(sorted(places), WRONG)
        self._advance(None, as_newcomer=is_wrong)
        if not self._standing.has_state:
            raise RepeatStep

    def _commit(self, step: Step, facts: list[Facts], generation: Generation) -> None:
        """The step counts: give the program the gradients. ``generation``: the facts are those of its members."""
        self._count(facts, generation)
        outcome = self._standing.outcome
        if outcome.num_done:
            for bucket in self._computing.buckets:
                bucket.reduced.div_(outcome.num_done)
        step.values = outcome.values
        step.num_samples = outcome.num_done * self._loader.micro_batch
        self._buffers.undo()  # equal on all members, as the step began
        try:
            skips = self._services.health.skips(step.index, generation.members, outcome, facts)
        except BadStepError:  # the same on all
            self._let_all_hear()
            raise
        has_scaler = self._services.may_skip_optimizer
        if skips and has_scaler:  # it leaves the optimizer out by itself, and demands that there are gradients
            for reduced in self._computing.reduced:
                reduced.fill_(math.inf)
        everything = range(len(self._gradients.parameters))
        self._gradients.apply(everything if skips and not has_scaler else outcome.unused)
        if not skips:
            self._buffers.apply()
        self._computing.seed_after(self._state.step)
        self._computing.progress.is_complete = False
        if self._redo_began is not None:
            self._recoveries.recovery_phase("redo", step.index, time.monotonic() - self._redo_began)
            self._redo_began = None
        step.change(StepChange.COUNTED)
        self._observer.step_committed(step, generation, facts, outcome)
        self._services.timer.enter(OPTIMIZER)

    def _count(self, facts: list[Facts], generation: Generation) -> None:
        self._standing.facts = facts
        self._standing.outcome = decide(facts, self._team.replica.size)
        self._looked_at = self._buffers.next_to_look_at(self._looked_at, self._standing.outcome.changed)
        self._state.step += 1
        if generation is self._team.generation:
            self._shares.not_ready = self._standing.outcome.not_ready
        else:
            self._caught_up(generation)

    def _caught_up(self, before: Generation) -> None:
        """The others counted this step before the loss: what it decided on places and members is over.

        They stood at the barrier that follows a step with such decisions, or had begun the next step.
        """
        outcome = self._standing.outcome
        if not (outcome.leaving or outcome.newcomers):
            self._shares.others_began(before.members, outcome.not_ready)
        self._standing.outcome = replace(outcome, leaving=frozenset(), newcomers=(), not_ready=self._shares.not_ready)

    # ---- a loss

    def _recover(self, error: WorldBrokenError | WorldClosedError) -> list[Facts] | None:
        """Go on with those who are left. Returns the facts of the present step if it counts, else None."""
        self._buffers.undo()
        before = self._state.step
        generation = self._advance(error)
        if generation is None or (not self._standing.has_state):
            raise RepeatStep
        if generation.step == before + 1:
            return list(generation.facts)
        return None

    def end(self) -> None:
        pass

    def announced(self, common: Announcement) -> Announcement:
        progress, is_computing = self._computing.progress, self._standing.is_computing
        return replace(
            common,
            step=self._state.step,
            done=tuple(progress.done) if self._standing.has_state and is_computing else (),
            is_complete=progress.is_complete and is_computing,
            snapshots=() if self._standing.has_state else self._services.memory.snapshots(),
            looked_at=None if not is_computing or self._looked_at is None else tuple(sorted(self._looked_at)),
        )

    def begin_generation(self, generation: Generation) -> None:
        self._missed.clear()
        members, me = generation.members, self._team.membership.member.id
        self._shares.not_ready = frozenset() if generation.is_restart else _places(members, generation.stateless)
        same_shard = places_of_shard(self._team.place, len(members), self._team.replica.size)
        sources = sorted(_places(members, generation.sources).intersection(same_shard))
        newcomers = sorted(_places(members, generation.stateless).intersection(same_shard))
        if generation.is_restart:
            self._looked_at = None
            self._beginning.begin(sources[0], newcomers)
        elif me in generation.stateless:
            self._standing.lose_state()
            self._state.step = generation.step
            self._standing.receiving = Receiving(self._team.world, sources)
        elif newcomers and self._team.place in sources:
            self._transfers.send(Sending(self._team.world, self._state.capture(), sources, newcomers))
        if self._standing.is_computing and self._standing.has_state and generation.step == self._state.step:
            self._computing.progress.num_redone += self._shares.num_lost(members)
            self._computing.progress.is_complete = False
            self._redo_began = time.monotonic()
            self._deal(self._done_elsewhere())

    # ---- a newcomer

    def catch_up(self) -> Iterator[int]:
        if not self._newcomer.get_state(self._is_state_here, self._advance):
            return
        while self._missed:
            self._missed.begin_next()
            yield self._state.step
        self._standing.has_state = True

    def _is_state_here(self, receiving: Receiving) -> bool:
        """Look; if it is not, take part in a step with zeros, and keep what the step gave."""
        if self._transfers.has_come(receiving):
            return True
        if self._standing.is_last:
            return self._transfers.has_come(receiving, wait=True)
        self._begin()
        step, looked_at = self._state.step, self._looked_at
        facts = self._team.replica.as_one(self._complete)
        try:
            self._check_right(facts)
        except _WithoutError as error:
            self._let_all_hear()
            self._team.leaves(sorted(error.places), WRONG)
            self._advance(None)
            return False
        self._count(facts, self._team.generation)
        self._missed.keep(step, facts, self._computing.buckets, looked_at)
        self._has_committed = True
        return False

    def _apply_missed(self, step: Step, missed: MissedStep) -> None:
        self._computing.begin_step(missed.looked_at)
        missed.restore(self._computing.buckets)
        self._state.step, self._looked_at = missed.step, missed.looked_at
        self._commit(step, missed.facts, self._team.generation)


def _places(members: Sequence[Member], ids: Sequence[str]) -> frozenset[int]:
    return frozenset(place for place, each in enumerate(members) if each.id in ids)
