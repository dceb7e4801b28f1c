"""Exact times of 1F1B for many pipelines at once, round by round.

Round ``m`` of stage ``k`` is forward ``m + W_k - 1`` and then backward ``m``, where ``W_k`` is how many micro-batches
the stage may have in flight. As ``W`` falls by one from stage to stage, all forwards of a round need only results of
the round before, and its backwards are one running maximum from the last stage to the first.

Arrays have shape [num_stages, num_pipelines]. A pipeline with fewer stages than others has stages without work in
front: such a stage delays nothing.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Bools, Floats, Ints


def iterations_s(forward_s: Floats, backward_s: Floats, transfers_s: Floats, limits: Ints, counts: Ints) -> Floats:
    """Return what a step of each pipeline takes, [num_pipelines].

    ``transfers_s``: to the next stage, one way; that of the last is not used. ``limits``: micro-batches in flight,
    falling by at most one from stage to stage. ``counts``: micro-batches of a step, [num_pipelines].
    """
    rounds = Rounds(forward_s, backward_s, transfers_s, limits)
    taken = np.zeros(forward_s.shape[1])
    for index in range(1 - int(limits.max()), int(counts.max())):
        place = limits + (index - 1)
        rounds.advance((place >= 0) & (place < counts), with_backwards=index >= 0)
        ending = counts == index + 1
        taken[ending] = rounds.backward_end[0, ending]
    return taken


class Rounds:
    """When the last forward and the last backward of each stage ended, as rounds go on.

    ``back_s``: of a backward here and in all stages behind, with transfers; ``rest_s``: the same without that here.
    ``falls``: whether a stage holds fewer micro-batches than the one before it, [num_stages - 1, num_pipelines];
    ``same_round``: the stages that hold as many in some pipelines, and in which.
    """

    def __init__(self, forward_s: Floats, backward_s: Floats, transfers_s: Floats, limits: Ints) -> None:
        self._backward_s, self._limits = backward_s, limits
        falls = limits[:-1] - limits[1:]
        assert np.isin(falls, (0, 1)).all(), f"limits fall by {falls}"
        self.forward_s, self.hops_s = forward_s, transfers_s.copy()
        self.hops_s[-1] = 0.0
        self.falls: Bools = falls == 1
        self.same_round = [(each + 1, ~falls) for each, falls in enumerate(self.falls) if not falls.all()]
        after_s = np.cumsum((backward_s + self.hops_s)[::-1], axis=0)[::-1]
        self.back_s = after_s
        self.rest_s = after_s - backward_s
        self.forward_end = np.zeros_like(forward_s)
        self.backward_end = np.zeros_like(forward_s)

    def of(self, pipelines: Bools) -> Rounds:
        """Return those of some pipelines, which go on from here."""
        rounds = Rounds(
            self.forward_s[:, pipelines],
            self._backward_s[:, pipelines],
            self.hops_s[:, pipelines],
            self._limits[:, pipelines],
        )
        rounds.forward_end, rounds.backward_end = self.forward_end[:, pipelines], self.backward_end[:, pipelines]
        return rounds

    def advance(self, is_active: Bools | None, *, with_backwards: bool) -> None:
        """Compute one round. A stage that is not active has no forward in it, because it had none yet, or all.

        None: all are active.
        """
        ends = np.zeros_like(self.forward_end)
        np.add(self.forward_end[:-1], self.hops_s[:-1], out=ends[1:])
        np.maximum(ends, self.backward_end, out=ends)
        ends += self.forward_s
        if is_active is not None:
            ends = np.where(is_active, ends, self.backward_end)
        for stage, in_same in self.same_round:
            arrival = np.maximum(ends[stage - 1] + self.hops_s[stage - 1], self.backward_end[stage])
            chosen = in_same if is_active is None else in_same & is_active[stage]
            ends[stage] = np.where(chosen, arrival + self.forward_s[stage], ends[stage])
        self.forward_end = ends
        if with_backwards:
            latest = np.maximum.accumulate((ends - self.rest_s)[::-1], axis=0)[::-1]
            self.backward_end = latest + self.back_s
        else:
            self.backward_end = ends
