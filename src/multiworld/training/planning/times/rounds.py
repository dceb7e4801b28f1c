"""Exact times of 1F1B and ZB-H1 for many pipelines at once, round by round.

Round ``m`` of stage ``k`` is forward ``m + W_k - 1`` and then backward ``m``, where ``W_k`` is how many micro-batches
the stage may have in flight. As ``W`` falls by one from stage to stage, all forwards of a round need only results of
the round before, and its backwards are one running maximum from the last stage to the first. With a split backward, a
round ends with the gradients of weights of an earlier micro-batch.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Bools, Floats, Ints
from .pipelines import Pipelines


def iterations_s(pipelines: Pipelines, counts: Ints) -> Floats:
    """Return what a step of each pipeline takes with ``counts`` micro-batches, [num_pipelines]."""
    rounds, limits = Rounds(pipelines), pipelines.limits
    put_off = np.clip(np.minimum(pipelines.put_off, counts - limits), 0, None)
    rest_s = pipelines.weights_s * put_off
    taken_s = np.zeros(limits.shape[1])
    for index in range(1 - int(limits.max()), int(counts.max())):
        place = limits + (index - 1)
        has_weights = put_off <= index if rounds.is_split else None
        rounds.advance((place >= 0) & (place < counts), with_backwards=index >= 0, has_weights=has_weights)
        ending = counts == index + 1
        if ending.any():
            taken_s[ending] = (rounds.free[:, ending] + rest_s[:, ending]).max(0)
    return taken_s


class Rounds:
    """When the last forward and the last backward of each stage ended, and it was free, as rounds go on.

    ``back_s``: of a backward here and in all stages behind, with transfers; ``rest_s``: the same without that here.
    ``falls``: whether a stage holds fewer micro-batches than the one before it, [num_stages - 1, num_pipelines];
    ``same_round``: the stages that hold as many in some pipelines, and in which.
    """

    def __init__(self, pipelines: Pipelines) -> None:
        falls = pipelines.limits[:-1] - pipelines.limits[1:]
        assert np.isin(falls, (0, 1)).all(), f"limits fall by {falls}"
        self.pipelines = pipelines
        self.forward_s, self.hops_s = pipelines.forward_s, pipelines.transfers_s.copy()
        self.hops_s[-1] = 0.0
        self.falls: Bools = falls == 1
        self.same_round = [(each + 1, ~falls) for each, falls in enumerate(self.falls) if not falls.all()]
        self.back_s = np.cumsum((pipelines.backward_s + self.hops_s)[::-1], axis=0)[::-1]
        self.rest_s = self.back_s - pipelines.backward_s
        self.is_split = pipelines.is_split
        self.forward_end = np.zeros_like(self.forward_s)
        self.free = np.zeros_like(self.forward_s)

    def of(self, pipelines: Bools) -> Rounds:
        """Return those of some pipelines, which go on from here."""
        rounds = Rounds(self.pipelines.of(pipelines))
        rounds.forward_end, rounds.free = self.forward_end[:, pipelines], self.free[:, pipelines]
        return rounds

    def advance(self, is_active: Bools | None, *, with_backwards: bool, has_weights: Bools | None = None) -> None:
        """Compute one round. A stage that is not active has no forward in it, because it had none yet, or all.

        ``has_weights``: which stages compute gradients of weights in it. None: all of them.
        """
        ends = np.zeros_like(self.forward_end)
        np.add(self.forward_end[:-1], self.hops_s[:-1], out=ends[1:])
        np.maximum(ends, self.free, out=ends)
        ends += self.forward_s
        if is_active is not None:
            ends = np.where(is_active, ends, self.free)
        for stage, in_same in self.same_round:
            arrival = np.maximum(ends[stage - 1] + self.hops_s[stage - 1], self.free[stage])
            chosen = in_same if is_active is None else in_same & is_active[stage]
            ends[stage] = np.where(chosen, arrival + self.forward_s[stage], ends[stage])
        self.forward_end = self.free = ends
        if with_backwards:
            self.free = np.maximum.accumulate((ends - self.rest_s)[::-1], axis=0)[::-1] + self.back_s
            if self.is_split:
                weights_s = self.pipelines.weights_s
                self.free += weights_s if has_weights is None else np.where(has_weights, weights_s, 0.0)
