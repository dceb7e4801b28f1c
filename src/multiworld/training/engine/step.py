"""What the training loop holds: one step, its micro-batches, and what was recorded in it."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol

from torch import Tensor

from ...wire.transitions import TransitionTable
from ..errors import StepError


class StepPhase(enum.Enum):
    """Where a step stands on this member."""

    NEW = "new"
    OPEN = "open"  # its block was entered
    COMPUTING = "computing"
    COMMITTED = "committed"  # the gradients are there on all members
    OVER = "over"
    REPEATED = "repeated"  # its block ended by a loss; the same step comes again


class StepChange(enum.Enum):
    ENTERED = "entered"
    ITERATED = "iterated"
    COUNTED = "counted"
    LEFT = "left"
    BROKE = "broke"


TRANSITIONS = TransitionTable(
    "a step",
    {
        (StepPhase.NEW, StepChange.ENTERED): StepPhase.OPEN,
        (StepPhase.OPEN, StepChange.ITERATED): StepPhase.COMPUTING,
        (StepPhase.COMPUTING, StepChange.COUNTED): StepPhase.COMMITTED,
        (StepPhase.COMMITTED, StepChange.LEFT): StepPhase.OVER,
        (StepPhase.OPEN, StepChange.BROKE): StepPhase.REPEATED,
        (StepPhase.COMPUTING, StepChange.BROKE): StepPhase.REPEATED,
    },
)


class StepRunner(Protocol):
    """What a step asks of the engine."""

    def micro_batches(self, step: Step) -> Iterator[Any]: ...

    def recorded(self, values: Mapping[str, float]) -> None: ...

    def step_ended(self, step: Step) -> None:
        """The block ended well after the commit."""

    def step_failed(self, step: Step, error: BaseException) -> bool:
        """The block ended with an error. True: it was a lost peer, and the same step comes again."""


class Step:
    """One step of the training, as ``Job.steps`` yields it: ``with step: for batch in step: ...``.

    ``index``: from 0. ``epoch``: of its first sample. ``values``: once it is committed, the mean of each value that was
    recorded, over all micro-batches of the step, wherever they ran. ``attempt``: how often it was begun before.
    """

    def __init__(self, runner: StepRunner, index: int, epoch: int, attempt: int) -> None:
        self.index, self.epoch, self.attempt = index, epoch, attempt
        self.values: Mapping[str, float] = {}
        self.num_samples = 0
        self.phase = StepPhase.NEW
        self._runner = runner

    def __repr__(self) -> str:
        return f"<Step {self.index}: {self.phase.value}>"

    @property
    def committed(self) -> bool:
        """Whether the step counts, on all members."""
        return self.phase in (StepPhase.COMMITTED, StepPhase.OVER)

    def change(self, change: StepChange) -> None:
        self.phase = TRANSITIONS.advance(self.phase, change)

    def record(self, **values: Any) -> None:
        """Record numbers of the present micro-batch: a loss, an accuracy. Each may be a tensor with one element."""
        if self.phase is not StepPhase.COMPUTING:
            raise StepError("step.record() belongs into the loop over the step's micro-batches")
        self._runner.recorded({name: _number(each) for name, each in values.items()})

    def __enter__(self) -> Step:
        if self.phase is not StepPhase.NEW:
            raise StepError(f"step {self.index} was begun before; take each step from job.steps() once")
        self.change(StepChange.ENTERED)
        return self

    def __iter__(self) -> Iterator[Any]:
        """Iterate over this member's micro-batches: more than its share when others have died.

        When the loop is over, the gradients are the means over the whole step, on all members.
        """
        if self.phase is not StepPhase.OPEN:
            raise StepError("iterate over a step once, inside of its block: with step: for batch in step: ...")
        self.change(StepChange.ITERATED)
        return self._runner.micro_batches(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is not None:
            return self._runner.step_failed(self, error)
        try:
            self._check_complete()
            self._runner.step_ended(self)
        except StepError as wrong:
            self._runner.step_failed(self, wrong)  # it tells the others: they must not take this one for lost
            raise
        self.change(StepChange.LEFT)
        return False

    def _check_complete(self) -> None:
        if self.phase is not StepPhase.COMMITTED:
            raise StepError(
                f"step {self.index} was left before its micro-batches were over, so its gradients are not complete. "
                "Let the loop over the step run to its end; to end the training, leave the loop over job.steps()"
            )


def _number(value: Any) -> float:
    return float(value.detach()) if isinstance(value, Tensor) else float(value)
