"""Which sample stands at which place of an epoch. Pure."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Hashable, Sequence
from typing import Protocol

from .permutation import Permutation

Index = Hashable
"""What the dataset is asked for: an int, or what a user's sampler yields."""


class Order(Protocol):
    """A function of (epoch, place), equal in all processes."""

    num_samples: int
    """Of each epoch."""
    is_once: bool
    """Whether no sample comes twice in an epoch."""

    def index(self, epoch: int, place: int) -> Index: ...

    def id_of(self, index: Index) -> str:
        """Return the name that the sample has in ledgers and errors."""

    def settings(self) -> dict[str, object]:
        """Return plain values that are equal where the orders are equal."""


class NumberedOrder:
    """The numbers from 0, in their order or shuffled anew in each epoch."""

    is_once = True

    def __init__(self, num_samples: int, *, seed: int = 0, shuffle: bool = False) -> None:
        self.num_samples = num_samples
        self._seed = seed
        self._shuffle = shuffle
        self._shuffles: dict[int, Permutation] = {}  # of the latest epochs only

    def index(self, epoch: int, place: int) -> int:
        return self._of(epoch)[place] if self._shuffle else place

    def id_of(self, index: Index) -> str:
        return str(index)

    def settings(self) -> dict[str, object]:
        return {
            "num_samples": self.num_samples,
            "shuffle": self._shuffle,
            "seed": self._seed if self._shuffle else None,
        }

    def _of(self, epoch: int) -> Permutation:
        if epoch not in self._shuffles:
            if len(self._shuffles) >= 4:
                del self._shuffles[min(self._shuffles)]
            self._shuffles[epoch] = Permutation(self.num_samples, "samples", self._seed, epoch)
        return self._shuffles[epoch]


class ShardedOrder:
    """The samples of shards that are read from their beginnings to their ends, by several readers at once.

    The shards of an epoch, shuffled or not, make one stream. It is cut into as many lanes of equal length as a step has
    micro-batches, and micro-batch ``j`` of each step takes the next samples of lane ``j``. So who computes the same
    micro-batches in each step reads few shards, and skips nothing. What is left at the end of the stream, less than one
    global batch, comes last. An index counts the samples of all shards as they were declared.
    """

    is_once = True

    def __init__(
        self, lengths: Sequence[int], *, global_batch: int, micro_batch: int, seed: int = 0, shuffle: bool = False
    ) -> None:
        self.lengths = tuple(lengths)
        self.begins = (0, *itertools.accumulate(self.lengths))
        self.num_samples = self.begins[-1]
        self._micro_batch = micro_batch
        self._num_lanes = global_batch // micro_batch
        self._lane_samples = self.num_samples // global_batch * micro_batch
        self._seed = seed
        self._shuffle = shuffle
        self._streams: dict[int, tuple[list[int], list[int]]] = {}  # of the latest epochs only

    def index(self, epoch: int, place: int) -> int:
        shards, begins = self._stream(epoch)
        at = self._in_stream(place)
        number = bisect.bisect_right(begins, at) - 1
        return self.begins[shards[number]] + at - begins[number]

    def shard_of(self, index: int) -> tuple[int, int]:
        """Return (shard, position in it)."""
        shard = bisect.bisect_right(self.begins, index) - 1
        return shard, index - self.begins[shard]

    def id_of(self, index: Index) -> str:
        assert isinstance(index, int)
        return "{}:{}".format(*self.shard_of(index))

    def settings(self) -> dict[str, object]:
        return {
            "shards": list(self.lengths),
            "lanes": self._num_lanes,
            "micro_batch": self._micro_batch,
            "shuffle": self._shuffle,
            "seed": self._seed if self._shuffle else None,
        }

    def _in_stream(self, place: int) -> int:
        if place >= self._num_lanes * self._lane_samples:
            return place
        row, rest = divmod(place, self._num_lanes * self._micro_batch)
        lane, offset = divmod(rest, self._micro_batch)
        return lane * self._lane_samples + row * self._micro_batch + offset

    def _stream(self, epoch: int) -> tuple[list[int], list[int]]:
        """Return the shards with samples in their order, and where each begins in the stream."""
        if epoch not in self._streams:
            if len(self._streams) >= 4:
                del self._streams[min(self._streams)]
            shards = [shard for shard, length in enumerate(self.lengths) if length]
            if self._shuffle:
                order = Permutation(len(shards), "shards", self._seed, epoch)
                shards = [shards[order[place]] for place in range(len(shards))]
            begins = list(itertools.accumulate((self.lengths[shard] for shard in shards), initial=0))[:-1]
            self._streams[epoch] = (shards, begins)
        return self._streams[epoch]
