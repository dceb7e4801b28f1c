"""Synchronization of a training in pipelines: all members do a step together, and it counts once all have heard so.

In each step every pipeline computes its micro-batches, stage by stage, and those who hold the same layers reduce their
gradients. A step commits as replicas commit it: all members have complete gradients, and all have heard so. After a
loss the next generation has another assignment, and layers are moved. Nothing of the step was applied anywhere. What is
left in the sums of the survivors is kept, and micro-batches are computed again that are not in them, see ``remaining``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from ...errors import WorldBrokenError, WorldClosedError
from ..engine.commit import exchange
from ..engine.decision import decide
from ..engine.engine_parts import EngineParts
from ..engine.facts import Facts
from ..engine.progress import StepProgress
from ..engine.step import Step, StepChange
from ..engine.synchronization import Advance, RepeatStep
from ..errors import BadStepError, LayersLostError
from ..health.timing import IDLE, OPTIMIZER, WAIT
from ..recovery.records import Announcement, Generation
from .assignment import Assignment, Role, without_last_owners
from .clipping import clip, norm_of, own_squares
from .collecting import Collected, nothing_collected
from .holdings import Holdings
from .partial_step import NOTHING
from .prefetching import Prefetching
from .preparing import Preparing
from .stage import StageModel, StageRun


class Pipelined:
    """``exact``: the same bits however micro-batches and layers are divided."""

    def __init__(self, parts: EngineParts, holdings: Holdings, model: StageModel, *, exact: bool) -> None:
        self._team, self._state, self._loader = parts.team, parts.state, parts.loader
        self._services, self._standing, self._beginning = parts.services, parts.standing, parts.beginning
        self._observer, self._recoveries = parts.observer, parts.recoveries
        self._holdings, self._contents = holdings, holdings.contents
        self._model, self._exact = model, exact
        self._preparing = Preparing(parts, holdings, exact=exact)
        self._worlds = self._preparing.worlds
        self._collected = nothing_collected()
        self._advance: Advance
        self._role: Role | None = None
        self._is_ready = False
        """Whether this member has what the present generation's assignment gives it."""
        self._prefetching: Prefetching | None = None
        self._has_committed = False
        self._redo_began: float | None = None

    def attach(self, advance: Advance) -> None:
        self._advance = advance

    def begin_training(self, total: int | None) -> None:
        pass

    @property
    def savable_since(self) -> int | None:
        return self._state.step - 1

    @property
    def progress(self) -> StepProgress:
        return self._collected.progress

    @property
    def assignment(self) -> Assignment:
        assignment = self._team.generation.assignment
        assert assignment is not None, "a generation of a training in pipelines has an assignment"
        return assignment

    def first_step_of(self, generation: Generation) -> int:
        return generation.step

    def give_up(self) -> None:
        self._collected.drop()

    def close(self) -> None:
        self._worlds.close()
        self._collected.close()

    # ---- a step

    def micro_batches(self, step: Step) -> Iterator[Any]:
        """Yield nothing: the stage computes its micro-batches here, with the model that it was given."""
        yield from ()
        self._collected.progress = StepProgress()
        while True:
            before = self._team.generation
            try:
                self._prepare()
                self._compute(step.index)
                facts = exchange(self._team.world, self._own_facts())
            except (WorldBrokenError, WorldClosedError) as error:
                heard = self._recover(error)
                if heard is None:
                    continue
                self._commit(step, heard, before)
                return
            else:
                self._commit(step, facts, before)
                return

    def _compute(self, step: int) -> None:
        """Do this stage's part of the step, and reduce. Raises the world's error."""
        if self._collected.step != step:
            self._collected = self._preparing.next_step(self._collected, step)
        collected, timer = self._collected, self._services.timer
        if self._prefetching is not None:
            self._prefetching.begin_step()
        try:
            if self._role is not None:
                self._run_stage(step, self._role)
            for each in collected.accumulations:
                each.launch()
            for each in collected.accumulations:
                each.wait()
            collected.progress.is_complete = True
        finally:
            collected.progress.spent(timer.taken())
            timer.enter(IDLE)

    def _run_stage(self, step: int, role: Role) -> None:
        team, timer = self._team, self._services.timer
        place_of, work, collected = team.generation.place_of, self._collected.work, self._collected
        run = StageRun(
            role, work, self._model, team.world, place_of, collected, timer, self._check_standing, exact=self._exact
        )
        batches = self._loader.fetch(step, work.micro_batches if role.reads else ())
        try:
            run.run(step, batches)
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def _check_standing(self) -> None:
        error = self._team.error or self._worlds.error
        if error is not None:
            raise error

    def _own_facts(self) -> Facts:
        progress, accumulations = self._collected.progress, self._collected.accumulations
        self._services.timer.enter(WAIT)
        self._team.membership.look_for_newcomers()
        reduced = [each for accumulation in accumulations for each in accumulation.reduced]
        more = self._services.own_facts(self._state.step)
        more = {**more, **self._services.health.own_facts(self._state.step, reduced)}
        index = {name: number for number, name in enumerate(self._contents.uses)}
        return Facts(
            step=self._state.step,
            member=self._team.membership.member.id,
            done=tuple(progress.done),
            values=progress.values_for_json(),
            seconds=progress.seconds,
            is_leaving=self._services.is_leaving(),
            newcomers=self._team.membership.newcomers,
            squares=self._own_squares(),
            unused=tuple(sorted(index[name] for each in accumulations for name in each.unused)),
            sent=0 if self._prefetching is None else self._prefetching.num_sent,
            got=0 if self._prefetching is None else self._prefetching.num_got,
            **more,
        )

    def _commit(self, step: Step, facts: Sequence[Facts], generation: Generation) -> None:
        """The step counts: give the program the gradients. ``generation``: the facts are those of its members."""
        assert generation.assignment is not None
        self._standing.facts = list(facts)
        outcome = decide(facts)
        if generation is not self._team.generation:  # what was decided on places and members is over
            outcome = replace(outcome, leaving=frozenset(), newcomers=(), not_ready=frozenset())
        elif self._prefetching is not None:
            self._prefetching.step_counts(facts)
            outcome = replace(outcome, is_prefetched=self._prefetching.is_over(facts))
        if outcome.leaving and len(outcome.leaving) < len(facts):
            ids = [each.id for each in generation.members]
            leaving = without_last_owners(generation.assignment, [ids[place] for place in sorted(outcome.leaving)])
            outcome = replace(outcome, leaving=frozenset(map(ids.index, leaving)))
        self._standing.outcome = outcome
        self._state.step += 1
        step.values = outcome.values
        step.num_samples = outcome.num_done * self._loader.micro_batch
        try:
            skips = self._services.health.skips(step.index, generation.members, outcome, facts)
        except BadStepError:  # the same on all
            with contextlib.suppress(WorldBrokenError, WorldClosedError):
                self._team.meet()
            raise
        names = self._contents.uses
        unused_by = [frozenset(each.unused) for each in facts]
        for each in self._collected.accumulations:
            unused = {
                names[index] for index in frozenset.intersection(*(unused_by[place] for place in each.owned.owners))
            }
            each.apply(outcome.num_done, unused, skips=skips)
        if self._prefetching is not None:
            self._prefetching.keep({} if skips else _mean_changes(self._collected))
        self._contents.add_up()
        self._clip(step, facts, outcome.num_done)
        self._collected.progress.is_complete = False
        if self._redo_began is not None:
            self._recoveries.recovery_phase("redo", step.index, time.monotonic() - self._redo_began)
            self._redo_began = None
        step.change(StepChange.COUNTED)
        self._observer.step_committed(step, generation, list(facts), outcome)
        self._services.timer.enter(OPTIMIZER)

    def _own_squares(self) -> tuple[float, ...]:
        if self._holdings.max_grad_norm is None:
            return ()
        uses = self._contents.uses_of(range(self._contents.num_layers))
        return own_squares(self._collected.accumulations, uses, self._team.place, exact=self._exact)

    def _clip(self, step: Step, facts: Sequence[Facts], num_done: int) -> None:
        max_norm = self._holdings.max_grad_norm
        if max_norm is not None:
            norm = norm_of([each.squares for each in facts], num_done)
            clip(self._contents.gradients(), norm, max_norm)
            step.values = {**step.values, "grad_norm": norm}

    def step_ended(self, step: Step) -> None:
        self._has_committed = True

    def between_steps(self) -> bool:
        has_committed, self._has_committed = self._has_committed, False
        return has_committed

    def catch_up(self) -> Iterator[int]:
        """A newcomer has its layers before its first step."""
        raise AssertionError("no member waits for the state while it takes part in steps")

    # ---- a loss

    def _recover(self, error: WorldBrokenError | WorldClosedError) -> tuple[Facts, ...] | None:
        """Go on with those who are left. Returns the facts of the present step if it counts, else None."""
        before = self._state.step
        generation = self._advance(error)
        is_stateless = generation is None or self._team.membership.member.id in generation.stateless
        goes_on = generation is not None and not generation.is_restart and generation.step in (before, before + 1)
        if generation is None or is_stateless or not goes_on:
            raise RepeatStep
        if generation.step == before + 1:
            return generation.facts
        self._collected.undo()
        return None

    def end(self) -> None:
        """Members that came or were lost after the last step have given each other other layers."""
        self._prepare()

    def announced(self, common: Announcement) -> Announcement:
        collected, is_computing = self._collected, self._standing.is_computing
        has_part = is_computing and self._standing.has_state and collected.step == self._state.step
        return replace(
            common,
            has_state=bool(self._holdings.held) and self._standing.has_state,
            step=self._state.step,
            is_complete=collected.progress.is_complete and is_computing,
            layers=tuple(sorted(self._holdings.held)) if self._standing.has_state else (),
            num_layers=self._contents.num_layers,
            is_whole=self._holdings.is_whole,
            saved_step=self._services.saved_step(),  # also with the state: layers may have been lost
            partial=collected.partial_step() if has_part else NOTHING,
        )

    def begin_generation(self, generation: Generation) -> None:
        """Take the assignment up; layers are moved when all begin the next step, as some may have to end one first."""
        self._is_ready, self._prefetching = False, None
        me = self._team.membership.member.id
        if generation.is_restart:
            self._restart(generation)
        elif me in generation.stateless:
            self._standing.lose_state()
            self._holdings.forget()
            self._collected.drop()
            self._state.step = generation.step
        limit = self._team.membership.limit
        if limit is not None and generation.step >= limit:  # all end now, with the layers that they have
            self._standing.has_state = True
        if self._standing.is_computing and generation.step == self._state.step:
            self.progress.num_redone += 0 if generation.remaining is None else generation.remaining.num_redone
            self._redo_began = time.monotonic()

    def _restart(self, generation: Generation) -> None:
        """The source begins with a checkpoint or its own model. Raises LayersLostError if it has neither.

        Where others have trained already and lost a layer, to begin anew would throw their steps away in silence: then
        all raise, but if a checkpoint was loaded or no step was committed.
        """
        self._collected.drop()
        is_source = self._team.membership.member.id in generation.sources
        lost_at, can_begin = generation.lost_at, True
        if is_source:
            reached = max(self._state.step, self._standing.held_step)
            self._state.step = self._standing.held_step
            self._services.restart(None)
            can_begin = self._holdings.is_whole and (lost_at <= 0 or self._state.step > 0)
            lost_at = max(lost_at, reached)
        if generation.lost_at >= 0:  # the others hear from the source
            heard = exchange(self._team.world, Facts(step=self._state.step, is_ready=can_begin))
            can_begin = all(each.is_ready for each in heard)
        if not can_begin:
            raise LayersLostError(lost_at)
        if is_source:
            self._holdings.hold_all()
        else:
            self._state.step = generation.step
            self._holdings.forget()
        self._prepare()  # all are here: nobody has a step to end first
        self._beginning.num_restarts += 1

    # ---- what the assignment asks for

    def _prepare(self) -> None:
        """Get the layers that the assignment gives this member, and form the worlds of owners. Raises world errors."""
        if self._is_ready:
            return
        began = time.monotonic()
        prepared = self._preparing.prepare(self._team.generation, self._collected)
        self._collected.close()
        self._role, self._collected, self._prefetching = prepared.role, prepared.collected, prepared.prefetching
        self._is_ready = self._standing.has_state = True
        took_s = time.monotonic() - began
        self._recoveries.recovery_phase("move", self._state.step, took_s)
        if prepared.num_sources:
            self._recoveries.state_received(self._state.step, prepared.got_bytes, prepared.num_sources, took_s)
        if self._redo_began is not None:  # what is moved is no part of what is done again
            self._redo_began = time.monotonic()
        reads = self._role is not None and self._role.reads
        for number, work in enumerate((self._collected.work, prepared.next_work)):
            self._loader.expect(self._state.step + number, work.micro_batches if reads else ())


def _mean_changes(collected: Collected) -> dict[str, Tensor]:
    return {name: each for of_owners in collected.accumulations for name, each in of_owners.mean_changes().items()}
