"""ZB-H1: gradients of weights are computed where a rank would otherwise wait (Qi et al. 2023, arXiv 2401.10241)."""

from __future__ import annotations

from collections.abc import Sequence

from .operations import Kind, Operation


def zero_bubble(limits: Sequence[int], num_micro_batches: int) -> tuple[tuple[Operation, ...], ...]:
    """Return the order of each stage. ``limits``: how many micro-batches it holds from forward to weight operation.

    The order is that of a run in which each operation takes one unit of time, and a stage that is free prefers
    backwards, then forwards, then weights. As such a run ends, no stage ever waits for itself through others.
    """
    stages = [_Stage(index, len(limits) - index, limit, num_micro_batches) for index, limit in enumerate(limits)]
    now = 0
    while not all(each.is_done for each in stages):
        chosen = [
            each.choose(
                arrived=num_micro_batches if each.index == 0 else stages[each.index - 1].forwards,
                returned=each.forwards if each is stages[-1] else stages[each.index + 1].backwards,
            )
            for each in stages
        ]
        for stage, kind in zip(stages, chosen, strict=True):
            if kind is not None:
                stage.compute(kind)
        now += 1
        assert any(chosen), f"ZB-H1 with limits {tuple(limits)} stands still after {now} operations"
    return tuple(tuple(each.order) for each in stages)


class _Stage:
    """One stage in the run: how many operations of each kind it has computed."""

    def __init__(self, index: int, distance: int, limit: int, num_micro_batches: int) -> None:
        self.index = index
        self.order: list[Operation] = []
        self.forwards = self.backwards = self.weights = 0
        self._ahead, self._limit, self._num = min(distance, limit), limit, num_micro_batches

    @property
    def is_done(self) -> bool:
        return self.weights == self._num

    def choose(self, arrived: int, returned: int) -> Kind | None:
        """Return what to compute now. ``arrived``, ``returned``: micro-batches whose input, or gradient, is here."""
        if self.backwards < returned:
            return Kind.BACKWARD
        is_ahead = self.forwards - self.backwards >= self._ahead or self.forwards - self.weights >= self._limit
        if self.forwards < arrived and not is_ahead:
            return Kind.FORWARD
        return Kind.WEIGHT if self.weights < self.backwards else None

    def compute(self, kind: Kind) -> None:
        if kind is Kind.FORWARD:
            self.order.append(Operation(kind, self.index, self.forwards))
            self.forwards += 1
        elif kind is Kind.BACKWARD:
            self.order.append(Operation(kind, self.index, self.backwards))
            self.backwards += 1
        else:
            self.order.append(Operation(kind, self.index, self.weights))
            self.weights += 1
