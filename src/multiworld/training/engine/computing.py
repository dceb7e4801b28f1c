"""Compute this member's micro-batches of the present step, and reduce what they give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from ...errors import WorldBrokenError, WorldClosedError
from ..data.base import StepLoader
from ..health.timing import DATA, FORWARD, IDLE, WAIT
from ..recovery.team import Team
from .buffers import Buffers
from .gradients import FlatBucket, Gradients
from .progress import StepProgress
from .reduction import Reduction
from .seeds import seed_of, seed_torch
from .services import Services


class Computing:
    """``seed``: of random numbers, one for each micro-batch, where the result must have the same bits however they are
    dealt; None: the program's own random numbers.

    ``alone``: a step needs no other member, so one that is lost does not interrupt it.
    """

    def __init__(
        self,
        team: Team,
        gradients: Gradients,
        buffers: Buffers,
        reduction: Reduction,
        loader: StepLoader,
        services: Services,
        *,
        seed: int | None = None,
        alone: bool = False,
    ) -> None:
        self.gradients, self.buffers, self.reduction = gradients, buffers, reduction
        self.progress = StepProgress()
        self._team, self._loader, self._services = team, loader, services
        self._seed, self._alone = seed, alone
        self._may_overlap = seed is None
        """False once a gradient came late here, too: the program goes backward more than once for a micro-batch."""
        self._launch_failed = False

    @property
    def buckets(self) -> list[FlatBucket]:
        return [*self.gradients.buckets, *self.buffers.buckets]

    @property
    def reduced(self) -> list[Tensor]:
        """Of all members: the gradients, flat."""
        return [bucket.reduced for bucket in self.gradients.buckets]

    @property
    def unused(self) -> frozenset[int]:
        """The parameters that had no gradient here in this step, by index."""
        return frozenset(range(len(self.gradients.parameters))) - self.gradients.used

    def begin_step(self, looked_at: frozenset[int] | None) -> None:
        """No micro-batch is finished. ``looked_at``: the buffers that all members look at; None: all."""
        self.progress = StepProgress()
        self.gradients.begin_step()
        self.buffers.begin_step(looked_at)
        self.reduction.begin_step(self.buckets, self._loader.num_micro_batches)

    def compute(self, step: int, share: Sequence[int]) -> Iterator[Any]:
        """Yield the batches of those micro-batches of ``share`` that are not finished, each to be gone backward with.

        One that is computed a second time, to compare, is yielded twice. Raises the world's error between two of them.
        """
        progress, services = self.progress, self._services
        todo = [each for each in share if each not in progress.done]
        if not todo:
            return
        batches = self._loader.fetch(step, todo)
        repeats = not progress.done and services.health.repeats(step)
        services.timer.enter(DATA)
        try:
            for number, batch in batches:
                services.timer.enter(FORWARD)
                if self._team.replica.size == 1:  # else its processes must enter the same collectives to the end
                    self._check_standing()
                if repeats:
                    self._begin_micro_batch(step, number, may_overlap=False)
                    services.health.begin()
                    yield batch
                    services.health.again()
                self._begin_micro_batch(step, number, may_overlap=number == todo[-1] and not repeats)
                yield batch
                if repeats:
                    repeats = False
                    services.health.compare()
                self.gradients.end_micro_batch()
                self.buffers.end_micro_batch()
                self.reduction.end_micro_batch(number)
                progress.end_micro_batch(number)
                services.timer.enter(DATA)
        finally:
            self._note_seconds()
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def reduce(self) -> None:
        """Wait for the gradients of all members. Raises the world's error."""
        self._services.timer.enter(WAIT)
        self._check_standing()
        self.reduction.wait()
        self.progress.is_complete = True
        self._note_seconds()

    def reduce_again(self, buckets: Sequence[int]) -> None:
        """These got gradients on some member after their reduction had begun. Raises the world's error."""
        self.progress.is_complete = False
        self._may_overlap &= not self.gradients.late
        self.gradients.late.clear()
        for bucket in buckets:
            self.reduction.launch(bucket)
        self.reduce()

    def give_up(self) -> None:
        """What was computed of this step may be half done: none of it counts."""
        self.progress.done.clear()
        self.buffers.undo()

    def seed_after(self, step: int) -> None:
        """Have what follows step ``step - 1`` draw the same random numbers on all members, if there is a seed."""
        self._seed_for(step, -1)

    def _begin_micro_batch(self, step: int, number: int, *, may_overlap: bool) -> None:
        self.progress.begin_micro_batch()
        self._launch_failed = False
        self._seed_for(step, number)
        self.buffers.begin_micro_batch()
        self.gradients.begin_micro_batch(self._launch if may_overlap and self._may_overlap else None)

    def _launch(self, bucket: int) -> None:
        """In backward: this bucket's gradients are complete. What the world raises is raised after backward."""
        if not self._launch_failed:
            try:
                self.reduction.launch(bucket)
            except (WorldBrokenError, WorldClosedError):
                self._launch_failed = True

    def _check_standing(self) -> None:
        if not self._alone:
            error = self._team.error
            if error is not None:
                raise error

    def _note_seconds(self) -> None:
        timer = self._services.timer
        self.progress.spent(timer.taken())
        timer.enter(IDLE)

    def _seed_for(self, step: int, micro_batch: int) -> None:
        if self._seed is not None:
            seed_torch(seed_of(self._seed, step, micro_batch))
