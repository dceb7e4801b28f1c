"""Steps that counted while this member had no state yet: what it needs to apply them once the state is here."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .facts import Facts
from .gradients import FlatBucket


@dataclass(frozen=True)
class MissedStep:
    """``reduced``: of each bucket, ``[num_elements]``. ``looked_at``: the buffers that it looked at; None: all."""

    step: int
    facts: list[Facts]
    reduced: list[Tensor]
    looked_at: frozenset[int] | None

    def restore(self, buckets: Sequence[FlatBucket]) -> None:
        for bucket, reduced in zip(buckets, self.reduced, strict=True):
            bucket.reduced.copy_(reduced)


class MissedSteps:
    """In the order in which they counted."""

    def __init__(self) -> None:
        self._waiting: deque[MissedStep] = deque()
        self.present: MissedStep | None = None
        """The one that the program applies now."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def keep(
        self, step: int, facts: list[Facts], buckets: Sequence[FlatBucket], looked_at: frozenset[int] | None
    ) -> None:
        """Copy what the buckets have: the next step writes into them."""
        reduced = [bucket.reduced.clone() for bucket in buckets]
        self._waiting.append(MissedStep(step, facts, reduced, looked_at))

    def begin_next(self) -> None:
        self.present = self._waiting.popleft()

    def applied(self) -> None:
        self.present = None

    def clear(self) -> None:
        """They are of no use: this member gets a newer state."""
        self._waiting.clear()
