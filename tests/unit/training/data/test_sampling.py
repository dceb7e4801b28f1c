"""The orders of users' samplers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler, Sampler, SequentialSampler, TensorDataset, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from multiworld.training.data.sampling import SampledOrder

DATA = list(range(20))


def epoch_of(order: SampledOrder, epoch: int) -> list[Any]:
    return [order.index(epoch, place) for place in range(order.num_samples)]


class OfEpoch(Sampler[int]):
    """Shuffles by epoch, as samplers of the wild do."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(DATA)

    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(self.epoch).sample(DATA, len(DATA)))


class Stubborn(Sampler[int]):
    """Goes on with random numbers of its own whenever it is asked."""

    def __init__(self) -> None:
        self.random = random.Random(0)

    def __len__(self) -> int:
        return len(DATA)

    def __iter__(self) -> Iterator[int]:
        return iter(self.random.sample(DATA, len(DATA)))


class Growing(OfEpoch):
    def __iter__(self) -> Iterator[int]:
        return iter(DATA[: 5 + self.epoch])


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


def test_a_sampler_is_asked_for_the_order_of_the_epoch() -> None:
    order = SampledOrder(OfEpoch(), seed=0)
    assert epoch_of(order, 3) == random.Random(3).sample(DATA, len(DATA))
    assert epoch_of(order, 0) == random.Random(0).sample(DATA, len(DATA))
    assert order.is_once


@pytest.mark.parametrize("generator", [None, torch.Generator().manual_seed(5)])
def test_torchs_samplers_have_the_same_order_on_all_ranks_and_after_a_resume(generator: torch.Generator | None) -> None:
    torch.manual_seed(1)
    one = SampledOrder(RandomSampler(DATA, generator=generator), seed=3)
    first = [epoch_of(one, epoch) for epoch in range(3)]
    torch.manual_seed(2)
    resumed = SampledOrder(RandomSampler(DATA), seed=3)
    assert epoch_of(resumed, 2) == first[2]
    assert [sorted(epoch) for epoch in first] == [DATA] * 3
    assert first[0] != first[1]


def test_drawing_leaves_the_programs_random_numbers_alone() -> None:
    torch.manual_seed(1)
    random.seed(1)
    expected = (float(torch.rand(())), random.random())
    torch.manual_seed(1)
    random.seed(1)
    SampledOrder(RandomSampler(DATA), seed=3)
    assert (float(torch.rand(())), random.random()) == expected


def test_a_sampler_may_give_a_sample_more_than_once() -> None:
    order = SampledOrder(WeightedRandomSampler([1.0, 9.0], 30), seed=0)
    assert not order.is_once
    assert {order.index(0, place) for place in range(30)} == {0, 1}


def test_settings_differ_where_orders_differ() -> None:
    assert SampledOrder(SequentialSampler(DATA), seed=0).settings() != SampledOrder(OfEpoch(), seed=0).settings()
    assert SampledOrder(OfEpoch(), seed=0).settings() == SampledOrder(OfEpoch(), seed=0).settings()


@pytest.mark.parametrize(
    ("sampler", "what"),
    [
        (Stubborn(), "Stubborn gives another order when it is asked for the same epoch again"),
        (Endless(), "Endless has no __len__"),
        (DistributedSampler(TensorDataset(torch.arange(20)), num_replicas=2, rank=0), "take shuffle=True in its place"),
        ([], "list yields no samples"),
        ([[0, 1], [2, 3]], "as a batch sampler does"),
    ],
)
def test_a_sampler_whose_positions_do_not_hold_is_refused(sampler: object, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        SampledOrder(sampler, seed=0)


def test_what_is_no_sampler_is_refused() -> None:
    with pytest.raises(TypeError, match="sampler=int cannot be iterated over"):
        SampledOrder(3, seed=0)


def test_an_epoch_of_another_length_is_refused_when_it_comes() -> None:
    order = SampledOrder(Growing(), seed=0)
    with pytest.raises(ValueError, match="Growing yields 7 samples in epoch 2 and 5 in epoch 0"):
        order.index(2, 0)
