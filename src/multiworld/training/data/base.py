"""What the steps need of a loader: positions of samples that do not depend on ranks, and any micro-batch on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from ..state import StateDict

Batch = Any
"""What the user's collate function makes of ``micro_batch`` samples."""


class StepLoader(Protocol):
    """Says which samples each step has, and loads micro-batches of it. Made by ``Job.loader``.

    A step has ``num_micro_batches`` micro-batches of ``micro_batch`` samples: ``global_batch`` samples in all. Which
    samples these are is a function of the step's index (and of seed and epoch), never of ranks or workers. So any
    member can compute any micro-batch of any step.
    """

    global_batch: int
    micro_batch: int
    num_micro_batches: int

    @property
    def num_steps(self) -> int | None:
        """How many steps all epochs have; None: no end."""

    def epoch_of(self, step: int) -> int: ...

    def samples(self, step: int) -> Sequence[Sequence[str]]:
        """Return the sample ids of each micro-batch of a step: ``[num_micro_batches][micro_batch]``."""

    def fetch(self, step: int, micro_batches: Sequence[int]) -> Iterator[tuple[int, Batch]]:
        """Yield (micro-batch index, batch) in the order of ``micro_batches``. Closing it leaves nothing behind.

        Raises SampleError with the ids and the worker's traceback where the dataset raised.
        """

    def expect(self, step: int, micro_batches: Sequence[int]) -> None:
        """A hint: these will be fetched next, so workers may begin with them. What is not fetched then is dropped."""

    def digest(self) -> str:
        """Return a digest of what must be equal on all ranks: the dataset's length, sizes, seed, shuffle."""

    def state_dict(self) -> StateDict:
        """Return what a checkpoint keeps: settings that a resume is checked by, and what is no function of the step."""

    def load_state_dict(self, state: StateDict) -> None:
        """Raises ValueError that names the difference if the settings do not fit; the number of replicas may differ."""

    def close(self) -> None:
        """End all workers. Idempotent."""
