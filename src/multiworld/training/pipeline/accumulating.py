"""What one step gives the parameters and buffers that the same members hold: sums here, and the same mean on all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...world.world import World
from ..engine.gradients import FlatBucket, Gradients
from ..engine.reduction import ResumableReduction, SumReduction, TreeReduction
from ..engine.tree import Node
from .owners import Owned
from .statistics import Statistics


@dataclass
class OwnSum:
    """What finished micro-batches gave one use or buffer here: flat tensors, by what they are sums of (see
    ``ResumableReduction.sums``). ``is_used``: any of them had a gradient.
    """

    parts: dict[Node, Tensor]
    is_used: bool


class Accumulation:
    """Of one set of owners. ``world``: theirs; None: this member is the only one.

    ``computes``: False of an owner that only needs the gradients. ``shares``: the micro-batches of each owner.
    ``skipped``: those that this member may compute, and that are in the sums of an owner already. ``exact``: sums over
    the canonical tree, see ``engine.tree``. ``recompute``: forwards are computed once more in backward.
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
        computes: bool = True,
        recompute: bool = False,
        skipped: Collection[int] = (),
    ) -> None:
        self.owned, self._skipped = owned, skipped
        self._recompute, self.computes = recompute, computes
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
        if self.computes:
            self._statistics.begin_forward()

    def end_forward(self, micro_batch: int) -> None:
        if self.computes:
            self._statistics.end_forward(micro_batch)

    def begin_backward(self) -> None:
        if not self.computes:
            return
        self.gradients.begin_micro_batch(None)
        if self._recompute:
            self._statistics.begin_recompute()

    def begin_weights(self) -> None:
        if self.computes:
            self.gradients.begin_micro_batch(None)

    def end_backward(self, micro_batch: int) -> None:
        if not self.computes:
            return
        self._statistics.undo()
        if micro_batch in self._skipped:
            self.gradients.drop_micro_batch()
            self._statistics.drop(micro_batch)
            return
        self.gradients.end_micro_batch()
        self._of_gradients.end_micro_batch(micro_batch)
        self._statistics.end_backward(micro_batch)
        self._of_statistics.end_micro_batch(micro_batch)

    def sums(self) -> dict[str, OwnSum]:
        """Return views of what the finished micro-batches gave, by use and buffer."""
        self.gradients.fill_up()
        unused = set(self.unused)
        found: dict[str, OwnSum] = {}
        for reduction, number, bucket, names in self._each_bucket():
            for flat_of, flat in reduction.sums(number).items():
                for name, part in _parts(bucket, flat, names):
                    found.setdefault(name, OwnSum({}, name not in unused)).parts[flat_of] = part
        return found

    def add(self, sums: Mapping[str, OwnSum]) -> None:
        """Begin with these, too: copies of those that belong here. After ``begin_step``."""
        self.gradients.fill_up()
        for reduction, number, bucket, names in self._each_bucket():
            flats: dict[Node, Tensor] = {}
            for slot in bucket.layout.slots:
                own = sums.get(names[slot.parameter])
                for flat_of, part in {} if own is None else own.parts.items():
                    if flat_of not in flats:
                        flats[flat_of] = torch.zeros_like(bucket.sums)
                    flats[flat_of][slot.begin : slot.begin + slot.num_elements] = part
            reduction.add(number, flats)
        used = {name for name, each in sums.items() if each.is_used}
        self.gradients.used |= {index for index, name in enumerate(self.owned.uses) if name in used}

    def _each_bucket(self) -> Iterator[tuple[ResumableReduction, int, FlatBucket, Sequence[str]]]:
        for reduction, buckets, names in (
            (self._of_gradients, self.gradients.buckets, self.owned.uses),
            (self._of_statistics, self._statistics.buckets, self.owned.buffers),
        ):
            for number, bucket in enumerate(buckets):
                yield reduction, number, bucket, names

    def launch(self) -> None:
        """Begin to reduce. All owners call it once their micro-batches are finished."""
        self.gradients.fill_up()
        for reduction, number, _, _ in self._each_bucket():
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

    def mean_changes(self) -> dict[str, Tensor]:
        """Return by name what ``apply`` has added to buffers: views."""
        return {self.owned.buffers[index]: each for index, each in self._statistics.mean_changes().items()}

    def undo(self) -> None:
        """The step did not end."""
        self._statistics.undo()

    def close(self) -> None:
        self.gradients.close()


def _parts(bucket: FlatBucket, flat: Tensor, names: Sequence[str]) -> Iterable[tuple[str, Tensor]]:
    for slot in bucket.layout.slots:
        yield names[slot.parameter], flat[slot.begin : slot.begin + slot.num_elements]


def _reduction(*, exact: bool) -> ResumableReduction:
    return TreeReduction() if exact else SumReduction()
