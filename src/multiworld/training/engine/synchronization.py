"""What differs between trainings that exchange gradients in each step and those that meet once in many steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from ...errors import WorldBrokenError, WorldClosedError
from ..recovery.records import Announcement, Generation
from .progress import StepProgress
from .step import Step


class RepeatStep(Exception):
    """The present step cannot be ended on this member, which has to get the state anew. Ends the step's block."""


class Advance(Protocol):
    """Forms the next generation: it calls ``announced`` and ``begin_generation`` of the synchronization."""

    def __call__(
        self, error: WorldBrokenError | WorldClosedError | None, *, as_newcomer: bool = False
    ) -> Generation | None:
        """Return None if this member is a newcomer in it, though it had the state before."""


class Synchronization(Protocol):
    """What members exchange and when, what counts then, and what is done again after a loss.

    Called on the training thread. All members call each method that uses a world alike.
    """

    def attach(self, advance: Advance) -> None:
        """Called once, before anything else."""

    def begin_training(self, total: int | None) -> None:
        """``total``: how many steps the training has; None: no end. Nobody was met yet."""

    def micro_batches(self, step: Step) -> Iterator[Any]:
        """Yield this member's micro-batches; afterwards the step is COMMITTED, and the gradients are the reduced ones.

        In a step that ``catch_up`` has asked for there are none. Recovers from losses, and raises RepeatStep where this
        member cannot end the step.
        """

    def step_ended(self, step: Step) -> None:
        """The optimizers have run."""

    def between_steps(self) -> bool:
        """After each step, and after ``catch_up``. True: all have just heard the same facts, see ``Standing.outcome``,
        so members may come and go now.
        """

    def catch_up(self) -> Iterator[int]:
        """Take part in a step or a round without the state. Called again until the state is here.

        Yields the index of each step that counted since the state was taken: the program has to apply it, without
        micro-batches.
        """

    def end(self) -> None:
        """All steps are done: see that this member has what it should end with. Raises world errors."""

    def announced(self, common: Announcement) -> Announcement:
        """Return what this member announces: add how far it is to what is common to all trainings."""

    def begin_generation(self, generation: Generation) -> None:
        """Take it up: send, get or await the state, and deal anew what was lost. Raises what ``Regrouping`` handles."""

    def first_step_of(self, generation: Generation) -> int:
        """Return the step at which its members are that have the state."""

    @property
    def progress(self) -> StepProgress:
        """How far this member is with the present step."""

    def give_up(self) -> None:
        """What was computed of the present step may be half done: none of it counts."""

    def close(self) -> None:
        """The training is over here."""

    @property
    def savable_since(self) -> int | None:
        """After a step: how many had been committed at the last chance to save the state. None: now there is none."""
