"""Streams of samples by declared shards: what the user declares, and how a worker reads a sample of one."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from .orders import ShardedOrder

MAX_OPEN: Final = 64
"""Shards that one worker keeps open: where another one would be, the one used longest ago is closed."""


class Shards:
    """A dataset of iterables (files, ``IterableDataset``s, ...), each with the same samples in each iteration.

    ``lengths``: how many samples each one has. Without them ``len(shard)`` counts; what has no length is read once to
    be counted, on each rank, so give lengths if reading takes long. A sample's position is (shard, position in it), and
    its id ``shard:position``. A shard with a method ``iter_from(position)`` is asked to begin there, others are read up
    to there: that happens at an epoch's begin, after a loss, and on a resume, as readers else go from sample to sample.
    ``shuffle`` shuffles the shards, not what is in them; the micro-batches of a step come from different places.
    """

    def __init__(self, shards: Sequence[Iterable[Any]], lengths: Sequence[int] | None = None) -> None:
        self.shards = list(shards)
        if not self.shards:
            raise ValueError("a dataset of no shards has no samples: give at least one shard")
        for number, shard in enumerate(self.shards):
            if isinstance(shard, Iterator):
                raise TypeError(
                    f"shard {number} is an iterator ({type(shard).__name__}), which can be read only once: give "
                    "something whose __iter__ begins anew"
                )
            if not isinstance(shard, Iterable):
                raise TypeError(f"shard {number} ({type(shard).__name__}) cannot be iterated over")
        if lengths is not None and len(lengths) != len(self.shards):
            raise ValueError(f"{len(self.shards)} shards have {len(lengths)} lengths: give one for each")
        if lengths is not None and min(lengths) < 0:
            raise ValueError(f"a shard of {min(lengths)} samples is impossible")
        self.lengths = [_length_of(shard) for shard in self.shards] if lengths is None else list(lengths)


def _length_of(shard: Iterable[Any]) -> int:
    try:
        return len(shard)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        return sum(1 for _ in shard)


class ShardReader:
    """Reads single samples of shards in one process, cheapest where it read the one before."""

    def __init__(self, shards: Shards, order: ShardedOrder) -> None:
        self.shards = shards
        self._order = order
        self._open: OrderedDict[int, Iterator[Any]] = OrderedDict()  # by the index that comes next

    def go_to(self, index: int) -> None:
        """Open what ``[index]`` reads, and read up to there. Before it is seeded: this may draw random numbers."""
        if index not in self._open:
            self._keep(index, self._begin(*self._order.shard_of(index)))

    def __getitem__(self, index: int) -> Any:
        self.go_to(index)
        samples = self._open.pop(index)
        shard, position = self._order.shard_of(index)
        try:
            sample = next(samples)
        except StopIteration:
            raise self._too_short(shard, position) from None
        if position + 1 < self.shards.lengths[shard]:
            self._keep(index + 1, samples)
        return sample

    def _begin(self, shard: int, position: int) -> Iterator[Any]:
        source = self.shards.shards[shard]
        if hasattr(source, "iter_from"):
            return iter(source.iter_from(position))
        samples = iter(source)
        skipped = sum(1 for _ in itertools.islice(samples, position))
        if skipped < position:
            raise self._too_short(shard, skipped)
        return samples

    def _keep(self, index: int, samples: Iterator[Any]) -> None:
        self._open[index] = samples
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)

    def _too_short(self, shard: int, length: int) -> ValueError:
        return ValueError(
            f"shard {shard} ended after {length} samples, and {self.shards.lengths[shard]} were declared: correct "
            "the length, or leave lengths out so that shards are counted"
        )
