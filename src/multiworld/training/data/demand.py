"""Which micro-batches a loader's workers begin next, and which finished ones are still wanted. Pure.

A loader's workers are always busy with a fixed number of micro-batches ahead. What these are follows from what was
asked for: the rest of that, then what is expected of the next steps, then the same share of the steps after these. When
a share changes, what the workers have begun is kept if it is wanted later, and dropped if not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Wanted(NamedTuple):
    step: int
    micro_batch: int


class Demand:
    """``num_steps``: what is to come ends there; None: never."""

    def __init__(self, num_steps: int | None) -> None:
        self._num_steps = num_steps
        self._step = -1
        self._asked: list[Wanted] = []
        self._share: tuple[int, ...] = ()
        self._expected: dict[int, tuple[int, ...]] = {}
        self._begun: set[Wanted] = set()
        self._finished: set[Wanted] = set()

    def ask(self, step: int, micro_batches: Sequence[int]) -> None:
        """The program takes these now, in this order, and nothing of earlier steps any more."""
        if step != self._step:  # another question about the same step is for what a lost member had, not a share
            self._share = tuple(micro_batches)
        self._step = step
        self._asked = [Wanted(step, micro_batch) for micro_batch in micro_batches]
        self._expected = {later: share for later, share in self._expected.items() if later > step}
        self._finished = {wanted for wanted in self._finished if wanted.step >= step}

    def expect(self, step: int, micro_batches: Sequence[int]) -> None:
        """The program takes these later: so does the prediction for the steps from that one on."""
        self._expected = {known: share for known, share in self._expected.items() if known < step}
        self._expected[step] = tuple(micro_batches)
        self._share = tuple(micro_batches)
        if self._step < 0:
            self._step = step - 1

    def begin(self) -> Wanted | None:
        """Return what a worker is to do next, which is begun with that; None: nothing is worth it."""
        for wanted in self._coming():
            if wanted not in self._begun and wanted not in self._finished:
                self._begun.add(wanted)
                return wanted
        return None

    def finish(self, wanted: Wanted) -> bool:
        """A worker is done with it. Return whether it is to be kept; False: drop it."""
        self._begun.discard(wanted)
        if wanted.step < self._step:
            return False
        self._finished.add(wanted)
        return True

    def take(self, wanted: Wanted) -> None:
        """The program gets it: it is asked for no longer, and has to be loaded again if it is asked for again."""
        self._finished.discard(wanted)
        self._asked = [other for other in self._asked if other != wanted]

    def give_back(self, begun: Iterable[Wanted]) -> None:
        """The workers that had begun these are gone."""
        self._begun.difference_update(begun)

    def _coming(self) -> Iterable[Wanted]:
        yield from self._asked
        if not self._share:
            return
        step = self._step + 1
        while self._num_steps is None or step < self._num_steps:
            for micro_batch in self._expected.get(step, self._share):
                yield Wanted(step, micro_batch)
            step += 1
