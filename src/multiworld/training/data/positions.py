"""Which places of which epoch a step has, as a function of the step's index alone. Pure.

An epoch has ``num_samples`` places, and an order says which sample stands at each. Steps take ``global_batch`` places
after one another, and a step's micro-batches ``micro_batch`` each of these::

    drop_last=False   places   0 ......... 63 | 64 ........ 99   0 ...... 27 | 28 ...      100 samples, 64 a step
                      epoch    0              | 0                1           | 1
                      step     0              | 1                            | 2

    drop_last=True    places   0 ......... 63 | 0 ......... 63 |                           36 are left out
                      epoch    0              | 1              |
                      step     0              | 1              |

So the global batch is constant in both. Without ``drop_last`` each sample comes exactly once in each epoch; only the
last step of the last epoch is completed with the first samples of one more. With it, a few samples of each epoch are
left out: others in each epoch if they are shuffled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Place(NamedTuple):
    epoch: int
    number: int
    """Below ``num_samples``: where in the order of the epoch."""


@dataclass(frozen=True, kw_only=True)
class Positions:
    """``epochs``: None has no end. Raises ValueError that shows the arithmetic if the sizes do not fit."""

    num_samples: int
    global_batch: int
    micro_batch: int
    drop_last: bool = False
    epochs: int | None = None

    def __post_init__(self) -> None:
        check_batches(self.global_batch, self.micro_batch)
        if self.num_samples < self.global_batch:
            raise ValueError(
                f"the dataset has {self.num_samples} samples, fewer than the global_batch={self.global_batch} of one "
                "step: lower global_batch, or give more samples"
            )
        if self.epochs is not None and self.epochs < 1:
            raise ValueError(f"epochs={self.epochs} is impossible: expected at least 1, or None for no end")

    @property
    def num_micro_batches(self) -> int:
        return self.global_batch // self.micro_batch

    @property
    def num_steps(self) -> int | None:
        if self.epochs is None:
            return None
        if self.drop_last:
            return self.epochs * (self.num_samples // self.global_batch)
        return -(-self.epochs * self.num_samples // self.global_batch)

    def epoch_of(self, step: int) -> int:
        """Return the epoch of the step's first sample."""
        return self._place(step, 0).epoch

    def places(self, step: int, micro_batch: int) -> list[Place]:
        """Return the places of one micro-batch of a step. Raises ValueError if there is no such one."""
        if not 0 <= micro_batch < self.num_micro_batches:
            raise ValueError(f"there is no micro-batch {micro_batch}: a step has {self.num_micro_batches}, from 0")
        if step < 0 or (self.num_steps is not None and step >= self.num_steps):
            raise ValueError(f"there is no step {step}: {self.epochs} epochs have {self.num_steps} steps, from 0")
        return list(self._run(step, micro_batch * self.micro_batch))

    def _run(self, step: int, begin: int) -> Iterator[Place]:
        for offset in range(begin, begin + self.micro_batch):
            yield self._place(step, offset)

    def _place(self, step: int, offset: int) -> Place:
        if self.drop_last:
            epoch, step_of_epoch = divmod(step, self.num_samples // self.global_batch)
            return Place(epoch, step_of_epoch * self.global_batch + offset)
        return Place(*divmod(step * self.global_batch + offset, self.num_samples))


def check_batches(global_batch: int, micro_batch: int) -> None:
    """Raise ValueError unless whole micro-batches make the global batch."""
    for name, size in (("global_batch", global_batch), ("micro_batch", micro_batch)):
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{name}={size!r} is no number of samples: expected an int")
        if size < 1:
            raise ValueError(f"{name}={size} is impossible: expected at least 1 sample")
    num, rest = divmod(global_batch, micro_batch)
    if rest:
        fitting = max(size for size in range(1, micro_batch) if global_batch % size == 0)
        below = f"{num * micro_batch} or " if num else ""
        raise ValueError(
            f"micro-batches do not divide the global batch: {global_batch} = {num} * {micro_batch} + {rest}. "
            f"Take micro_batch={fitting}, or global_batch={below}{(num + 1) * micro_batch}"
        )
