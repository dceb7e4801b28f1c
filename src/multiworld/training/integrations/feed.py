"""Steps of a job for a loop that belongs to another library, which asks for one item after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from ..data.base import Batch
from ..engine.step import Step
from ..errors import StepError


class StepFeed:
    """Turns ``for step in job.steps(): with step: for batch in step`` inside out.

    The loop calls ``next_step`` for an item, ``compute`` to have this member's micro-batches computed, runs its
    optimizer, and calls ``end``. ``total``: of all steps; the last ``end`` waits until all members know of it.
    """

    def __init__(self, steps: Iterator[Step], total: int) -> None:
        self._steps, self._total = steps, total
        self._coming: Step | None = None
        self._present: Step | None = None
        self.is_over = False

    def peek(self) -> Step | None:
        """Return the step that comes next, without beginning it. None: there is no more. Joins at the first call."""
        if self._coming is None and not self.is_over:
            self.end()
            self._coming = next(self._steps, None)
            self.is_over = self._coming is None
        return self._coming

    def next_step(self) -> Step | None:
        """Begin the next step. None: there is no more."""
        step, self._coming = self.peek(), None
        if step is not None:
            step.__enter__()
            self._present = step
        return step

    def compute(self, run: Callable[[Batch], Mapping[str, float | Tensor]]) -> Step:
        """Have ``run`` do forward and backward of each micro-batch, and record what it returns. Returns the step.

        The same step is begun again where a loss asks for it, or a later one, if this member came back as a newcomer.
        """
        while True:
            step = self._present
            assert step is not None, "next_step() comes before compute()"
            try:
                for batch in step:
                    step.record(**run(batch))
            except BaseException as error:
                self._present = None
                if not step.__exit__(type(error), error, error.__traceback__):
                    raise
            else:
                return step
            if self.next_step() is None:
                raise StepError(
                    f"this replica dropped out of step {step.index}, and the others ended the training meanwhile. They "
                    "have the result"
                )

    def end(self) -> None:
        """The optimizers have run: the step is over. Does nothing if there is none."""
        step, self._present = self._present, None
        if step is None:
            return
        step.__exit__(None, None, None)
        if step.index + 1 >= self._total:
            self.is_over = next(self._steps, None) is None
