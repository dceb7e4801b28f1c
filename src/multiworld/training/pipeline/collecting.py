"""What one member has of a step: sums of gradients and statistics, losses, and which micro-batches are in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ..engine.progress import StepProgress
from ..split_backward.put_off import PutOff
from ..state import StateDict
from .accumulating import Accumulation, OwnSum
from .partial_step import PartialStep, spans_of, written
from .work import Work


class Collected:
    """Of the layers that this member computes, in one step after the other. It is the stage's ``StageObserver``.

    ``present``: for each of these layers, the micro-batches that some member's sums have from before a loss: they are
    not added again. ``work``: what this member computes. ``is_last``: the last of these layers is the model's, so the
    losses are here. ``is_after_loss``: some member, perhaps another one, has something of this step from before a loss.
    """

    def __init__(
        self,
        step: int,
        accumulations: Sequence[Accumulation],
        present: Mapping[int, Collection[int]],
        progress: StepProgress,
        work: Work,
        *,
        is_last: bool = False,
        is_after_loss: bool = False,
    ) -> None:
        self.accumulations, self._present, self._is_last = accumulations, present, is_last
        self.work, self.is_after_loss = work, is_after_loss
        self.begin_step(step, progress)

    def begin_step(self, step: int, progress: StepProgress) -> None:
        """Nothing of it is there."""
        self.step, self.progress = step, progress
        self._has: dict[int, set[int]] = {layer: set() for layer in self._present}
        self._begun: set[int] = set()
        for each in self.accumulations:
            each.begin_step()

    # ---- what the stage tells

    def begin_forward(self, micro_batch: int) -> None:
        self._begun.add(micro_batch)
        for each in self.accumulations:
            each.begin_forward()

    def end_forward(self, micro_batch: int) -> None:
        for each in self.accumulations:
            each.end_forward(micro_batch)

    def begin_backward(self, micro_batch: int) -> None:
        for each in self.accumulations:
            each.begin_backward()

    def put_off(self, micro_batch: int, weights: PutOff) -> None:
        computed = [each for each in self.accumulations if each.computes]
        weights.take_others(parameter for each in computed for parameter in each.gradients.parameters)

    def begin_weights(self, micro_batch: int) -> None:
        for each in self.accumulations:
            each.begin_weights()

    def end_backward(self, micro_batch: int) -> None:
        for each in self.accumulations:
            each.end_backward(micro_batch)
        for layer, present in self._present.items():
            if micro_batch not in present:
                self._has[layer].add(micro_batch)

    def lost(self, micro_batch: int, loss: float) -> None:
        if micro_batch not in self._present[max(self._present)]:
            self.progress.begin_micro_batch()
            self.progress.record({"loss": loss})
            self.progress.end_micro_batch(micro_batch)

    # ---- a loss

    def undo(self) -> None:
        """What was not finished does not count."""
        for each in self.accumulations:
            each.undo()

    def drop(self) -> None:
        """Nothing of the step counts."""
        self.undo()
        self.step = -1

    def close(self) -> None:
        for each in self.accumulations:
            each.close()

    def partial_step(self) -> PartialStep:
        """Return what this member says of the step."""
        return PartialStep(sums=written(self._has), begun=spans_of(self._begun))

    def sums(self, names: Collection[str]) -> dict[str, OwnSum]:
        """Return views of the sums of these uses and buffers."""
        return {name: each for each_of in self.accumulations for name, each in each_of.sums().items() if name in names}

    def losses(self, layers: Iterable[int]) -> dict[int, dict[str, float]]:
        """Return the losses of finished micro-batches, if the last one of these layers has them."""
        last = max(self._has, default=-1)
        return self.progress.values_of(self._has[last]) if self._is_last and last in layers else {}

    def begin_with(
        self,
        has: Mapping[int, Collection[int]],
        sums: Iterable[Mapping[str, OwnSum]],
        losses: Iterable[Mapping[int, Mapping[str, float]]],
    ) -> None:
        """Take over what is kept and what others have handed over. ``has``: by layer, which micro-batches these are."""
        for layer, numbers in has.items():
            self._has[layer].update(numbers)
        for each in sums:
            for accumulation in self.accumulations:
                accumulation.add(each)
        for values in losses:
            self.progress.take(values)


def nothing_collected() -> Collected:
    """Return what a member has before its first step."""
    return Collected(-1, [], {}, StepProgress(), Work(tasks=(), arrivals=()))


def packed(sums: Mapping[str, OwnSum]) -> StateDict:
    """Return sums as a state that can be sent."""
    return {name: {"parts": dict(each.parts), "is_used": each.is_used} for name, each in sums.items()}


def unpacked(state: StateDict) -> dict[str, OwnSum]:
    return {name: OwnSum(each["parts"], each["is_used"]) for name, each in state.items()}
