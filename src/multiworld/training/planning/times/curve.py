"""What a step of 1F1B or ZB-H1 takes for every number of micro-batches, from one pass: exact.

The last rounds of a step are the same for every number of micro-batches, counted from its end. We follow the longest
path through them backwards, once: what remains after each stage's last operation. Then each round of the pass gives
the time of one more number of micro-batches: the longest of what was until then and what remains. Once a round only
shifts all times by the same amount, so do all that follow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Bools, Floats
from .pipelines import Pipelines
from .rounds import Rounds, iterations_s

NEVER = -np.inf
LOOK_EVERY = 8  # rounds, for pipelines that have become steady


def curves_s(pipelines: Pipelines, up_to: int) -> Floats:
    """Return the times of steps with 0 to ``up_to`` micro-batches, [up_to + 1, num_pipelines]."""
    rounds, limits = Rounds(pipelines), pipelines.limits
    width = int(limits.max())
    remains = _Remains.after(rounds, width)
    times_s = np.zeros((up_to + 1, limits.shape[1]))
    warm_up = np.zeros((width, *limits.shape))  # [round], what ended last
    for index in range(1 - width, 0):
        rounds.advance(limits + (index - 1) >= 0, with_backwards=False)
        warm_up[index + width] = rounds.forward_end
    for count in range(1, min(width, up_to + 1)):
        ended = np.take_along_axis(warm_up, np.minimum(width - 1, count - limits + width)[None], axis=0)[0]
        times_s[count] = remains.longest_s(count, ended, ended)
    _full(rounds, remains, width, times_s)
    if pipelines.is_split:
        _short(pipelines, times_s[: 2 * width])
    return times_s


def _short(pipelines: Pipelines, times_s: Floats) -> None:
    """Fill in what ends before each stage has put off as much as it may: there the last rounds are not all alike."""
    for index in range(times_s.shape[1]):
        one = pipelines.of(np.arange(times_s.shape[1]) == index)
        if one.is_split and len(times_s) > 1:
            counts = np.arange(1, len(times_s))
            times_s[1:, index] = iterations_s(one.of(np.zeros(len(counts), np.int64)), counts)


def _full(rounds: Rounds, remains: _Remains, width: int, times_s: Floats) -> None:
    """Fill in the times for ``width`` micro-batches and more. Round -1 was the last."""
    if width < len(times_s):
        times_s[width] = remains.longest_s(width, rounds.forward_end, rounds.free)
    going = np.arange(times_s.shape[1])  # pipelines that are still simulated
    for count in range(width + 1, len(times_s)):
        forward_end, free = rounds.forward_end, rounds.free
        has_weights = rounds.pipelines.put_off < count - width if rounds.is_split else None
        rounds.advance(None, with_backwards=True, has_weights=has_weights)
        times_s[count, going] = remains.longest_s(width, rounds.forward_end, rounds.free)
        if count % LOOK_EVERY == 0 and (count > 2 * width + 1 or not rounds.is_split):
            shifts_s = np.concatenate((rounds.forward_end - forward_end, rounds.free - free))
            period_s = shifts_s.max(0)
            is_steady = period_s - shifts_s.min(0) <= 1e-11 * period_s
            if is_steady.any():
                steady, more = going[is_steady], np.arange(1, len(times_s) - count)
                times_s[count + 1 :, steady] = times_s[count, steady] + more[:, None] * period_s[is_steady]
                going, rounds, remains = going[~is_steady], rounds.of(~is_steady), remains.of(~is_steady)
                if not len(going):
                    return


@dataclass(frozen=True)
class _Remains:
    """What remains of a step ``[count]`` rounds before its end, after the last forward and backward of each stage.

    [width + 1, num_stages, num_pipelines]; minus infinity where nothing waits for that operation.
    """

    after_forward_s: Floats
    after_backward_s: Floats

    @classmethod
    def after(cls, rounds: Rounds, width: int) -> _Remains:
        forward_s, hops_s, weights_s = rounds.forward_s, rounds.hops_s, rounds.pipelines.weights_s
        after_forward = np.full((width + 1, *forward_s.shape), NEVER)
        after_backward = np.full((width + 1, *forward_s.shape), NEVER)
        after_backward[0] = weights_s * rounds.pipelines.put_off
        gained_s = forward_s.copy()
        gained_s[1:] += hops_s[:-1]
        for left in range(1, width + 1):
            through_s = after_backward[left - 1] + weights_s + rounds.back_s
            after = np.maximum(after_forward[left - 1], np.maximum.accumulate(through_s, axis=0) - rounds.rest_s)
            is_active = rounds.pipelines.limits <= left
            for stage, in_same in reversed(rounds.same_round):
                via = np.where(in_same & is_active[stage], after[stage] + gained_s[stage], NEVER)
                after[stage - 1] = np.maximum(after[stage - 1], via)
            after_backward[left] = after + np.where(is_active, forward_s, 0.0)
            after_forward[left, :-1] = np.where(is_active[1:] & rounds.falls, (after + gained_s)[1:], NEVER)
        return cls(after_forward, after_backward)

    def of(self, pipelines: Bools) -> _Remains:
        """Return those of some pipelines."""
        return _Remains(self.after_forward_s[..., pipelines], self.after_backward_s[..., pipelines])

    def longest_s(self, left: int, forward_end: Floats, backward_end: Floats) -> Floats:
        """Return when the step ends if these operations ended then and so many rounds are left."""
        longest: Floats = np.maximum(
            (forward_end + self.after_forward_s[left]).max(0), (backward_end + self.after_backward_s[left]).max(0)
        )
        return longest
