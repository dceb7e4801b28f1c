"""What one step gives the parameters and buffers that the same members hold: sums here, and the same mean on all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from ...world.world import World
from ..engine.gradients import FlatBucket, Gradients
from ..engine.reduction import Reduction, SumReduction, TreeReduction
from .owners import Owned
from .statistics import Statistics


class Accumulation:
    """Of one set of owners. ``world``: theirs; None: this member is the only one.

    ``shares``: the micro-batches of each owner. ``exact``: sums over the canonical tree, see ``engine.tree``.
    ``recompute``: forwards are computed once more in backward.
    """

    def __init__(
        self,
        owned: Owned,
        world: World | None,
        shares: Sequence[Collection[int]],
        leaves: Mapping[str, nn.Parameter],
        buffers: Mapping[str, Tensor],
        modules: Sequence[nn.Module],
        *,
        num_micro_batches: int,
        exact: bool,
        recompute: bool = False,
    ) -> None:
        self.owned = owned
        self._recompute = recompute
        self._world, self._shares, self._num_micro_batches = world, shares, num_micro_batches
        self.gradients = Gradients([leaves[name] for name in owned.uses], list(owned.uses), separate=exact)
        self._statistics = Statistics({name: buffers[name] for name in owned.buffers}, modules, separate=exact)
        self._of_gradients, self._of_statistics = _reduction(exact=exact), _reduction(exact=exact)

    @property
    def reduced(self) -> list[Tensor]:
        return [bucket.reduced for bucket in self.gradients.buckets]

    def reduced_of_uses(self) -> dict[str, Tensor]:
        """Return the summed gradient of each use."""
        return {self.owned.uses[index]: view for index, view in self.gradients.reduced_views()}

    @property
    def unused(self) -> list[str]:
        """The uses that had no gradient here in this step."""
        used = self.gradients.used
        return [name for index, name in enumerate(self.owned.uses) if index not in used]

    @property
    def _buckets(self) -> list[FlatBucket]:
        return [*self.gradients.buckets, *self._statistics.buckets]

    def begin_step(self) -> None:
        self.gradients.begin_step()
        self._statistics.begin_step()
        self._of_gradients.begin_step(self.gradients.buckets, self._num_micro_batches)
        self._of_statistics.begin_step(self._statistics.buckets, self._num_micro_batches)
        self._of_gradients.use(self._world, self._shares)
        self._of_statistics.use(self._world, self._shares)

    def begin_forward(self) -> None:
        self._statistics.begin_forward()

    def end_forward(self, micro_batch: int) -> None:
        self._statistics.end_forward()
        self._of_statistics.end_micro_batch(micro_batch)

    def begin_backward(self) -> None:
        self.gradients.begin_micro_batch(None)
        if self._recompute:
            self._statistics.begin_recompute()

    def end_backward(self, micro_batch: int) -> None:
        self._statistics.undo()
        self.gradients.end_micro_batch()
        self._of_gradients.end_micro_batch(micro_batch)

    def launch(self) -> None:
        """Begin to reduce. All owners call it once their micro-batches are finished."""
        self.gradients.fill_up()
        for reduction, buckets in (
            (self._of_gradients, self.gradients.buckets),
            (self._of_statistics, self._statistics.buckets),
        ):
            for number in range(len(buckets)):
                reduction.launch(number)

    def wait(self) -> None:
        """Raises the world's error."""
        self._of_gradients.wait()
        self._of_statistics.wait()

    def apply(self, num_done: int, unused: Collection[str], *, skips: bool) -> None:
        """Give the program the means over ``num_done`` micro-batches. ``skips``: no gradient at all."""
        if num_done:
            torch._foreach_div_([each.reduced for each in self._buckets], num_done) if self._buckets else None
        names = self.owned.uses
        left_out = range(len(names)) if skips else [index for index, name in enumerate(names) if name in unused]
        self.gradients.apply(left_out)
        if not skips:
            self._statistics.apply()

    def undo(self) -> None:
        """The step did not end."""
        self._statistics.undo()

    def close(self) -> None:
        self.gradients.close()


def _reduction(*, exact: bool) -> Reduction:
    return TreeReduction() if exact else SumReduction()
