"""Streams of samples by declared shards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import IterableDataset

from multiworld.training.data.map_loader import MapLoader
from multiworld.training.data.opening import open_loader
from multiworld.training.data.orders import ShardedOrder
from multiworld.training.data.shards import ShardReader, Shards


class File(IterableDataset[str]):
    """Counts what is read of it."""

    def __init__(self, name: str, length: int) -> None:
        self.lines = [f"{name}{number}" for number in range(length)]
        self.num_read = 0

    def __iter__(self) -> Iterator[str]:
        for line in self.lines:
            self.num_read += 1
            yield line


class Seekable(File):
    def iter_from(self, position: int) -> Iterator[str]:
        for line in self.lines[position:]:
            self.num_read += 1
            yield line


def reader(shards: Shards) -> ShardReader:
    return ShardReader(shards, ShardedOrder(shards.lengths, global_batch=2, micro_batch=1))


def test_lengths_are_counted_where_they_are_not_declared() -> None:
    assert Shards([File("a", 3), ["x", "y"], File("b", 0)]).lengths == [3, 2, 0]
    file = File("a", 3)
    assert Shards([file], lengths=[3]).lengths == [3]
    assert file.num_read == 0


def test_who_reads_on_reads_nothing_twice() -> None:
    files = [File("a", 3), File("b", 4)]
    samples = reader(Shards(files, [3, 4]))
    assert [samples[index] for index in range(7)] == ["a0", "a1", "a2", "b0", "b1", "b2", "b3"]
    assert [file.num_read for file in files] == [3, 4]


def test_who_begins_elsewhere_reads_up_to_there_or_seeks() -> None:
    plain, seekable = File("a", 6), Seekable("b", 6)
    samples = reader(Shards([plain, seekable], [6, 6]))
    assert (samples[4], samples[10]) == ("a4", "b4")
    assert (plain.num_read, seekable.num_read) == (5, 1)


def test_two_places_of_a_shard_are_read_beside_each_other() -> None:
    file = File("a", 8)
    samples = reader(Shards([file], [8]))
    assert [samples[index] for index in (0, 4, 1, 5, 2, 6)] == ["a0", "a4", "a1", "a5", "a2", "a6"]
    assert file.num_read == 3 + 7


def test_a_shard_that_is_shorter_than_declared_is_named() -> None:
    for index, read in ((3, 3), (5, 3)):
        with pytest.raises(ValueError, match=f"shard 0 ended after {read} samples, and 6 were declared"):
            reader(Shards([File("a", 3)], [6]))[index]


def test_replicas_that_keep_their_share_read_their_part_only() -> None:
    """Two replicas go through an epoch: each file is read once in all, but for where a lane begins within one."""
    num_read, seen = 0, []
    for share in ([0, 1], [2, 3]):
        files = [File(name, 12) for name in "abcd"]
        loader = open_loader(Shards(files, [12] * 4), global_batch=8, micro_batch=2, shuffle=True, collate_fn=list)
        for step in range(6):
            seen += [sample for _, batch in loader.fetch(step, share) for sample in batch]
        num_read += sum(file.num_read for file in files)
    assert sorted(seen) == sorted(f"{name}{number}" for name in "abcd" for number in range(12))
    assert num_read == 48


def test_ids_say_where_a_sample_is() -> None:
    shards = Shards([torch.arange(4), torch.arange(10, 14)])
    loader = open_loader(shards, global_batch=4, micro_batch=2, epochs=1)
    assert isinstance(loader, MapLoader)
    assert loader.samples(1) == [["0:2", "0:3"], ["1:2", "1:3"]]
    assert [batch.tolist() for _, batch in loader.fetch(1, [0, 1])] == [[2, 3], [12, 13]]


def test_what_cannot_be_read_again_is_refused() -> None:
    with pytest.raises(TypeError, match=r"shard 1 is an iterator \(list_iterator\), which can be read only once"):
        Shards([[1], iter([2])])
    with pytest.raises(TypeError, match=r"shard 0 \(int\) cannot be iterated over"):
        Shards([1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="2 shards have 1 lengths"):
        Shards([[1], [2]], [1])
    with pytest.raises(ValueError, match="a dataset of no shards"):
        Shards([])
    with pytest.raises(ValueError, match="a shard of -1 samples"):
        Shards([[1]], [-1])
