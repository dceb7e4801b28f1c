"""Steps of datasets with positions, loaded in the program itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from multiworld.training.data.map_loader import MapLoader
from multiworld.training.data.opening import open_loader
from multiworld.training.errors import SampleError


class Numbers(Dataset[Tensor]):
    """Sample ``i`` is ``i`` and random numbers; 13 is broken if so wanted."""

    def __init__(self, length: int = 100, broken: int | None = None) -> None:
        self.length = length
        self.broken = broken

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        if index == self.broken:
            raise KeyError(f"no file for {index}")
        return torch.tensor([float(index), float(torch.rand(())), random.random()])


class AtOnce(Numbers):
    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return [torch.tensor([float(index)]) for index in indices]


def opened(dataset: Any = None, **options: Any) -> MapLoader:
    options = {"global_batch": 8, "micro_batch": 2, **options}
    loader = open_loader(Numbers() if dataset is None else dataset, **options)
    assert isinstance(loader, MapLoader)
    return loader


def fetched(loader: MapLoader, step: int, micro_batches: Any = range(4)) -> dict[int, list[list[float]]]:
    return {number: batch.tolist() for number, batch in loader.fetch(step, list(micro_batches))}


def test_a_step_has_the_samples_that_it_names() -> None:
    loader = opened(shuffle=True, epochs=2)
    for step in (0, 12, 24):
        batches = fetched(loader, step)
        assert [[str(int(row[0])) for row in batches[number]] for number in range(4)] == loader.samples(step)


def test_each_sample_comes_once_in_an_epoch() -> None:
    loader = opened(shuffle=True, epochs=2)
    names = [name for step in range(25) for ids in loader.samples(step) for name in ids]
    assert loader.num_steps == 25
    assert [sorted(map(int, names[:100])), sorted(map(int, names[100:]))] == [list(range(100))] * 2


def test_random_numbers_of_a_sample_do_not_depend_on_who_loads_it_and_when() -> None:
    whole = fetched(opened(shuffle=True), 5)
    assert fetched(opened(shuffle=True), 5, [3]) == {3: whole[3]}
    other_sizes = fetched(opened(shuffle=True, micro_batch=4), 5, [1])
    assert other_sizes[1] == whole[2] + whole[3]
    assert fetched(opened(shuffle=True, seed=1), 5) != whole


def test_loading_leaves_the_programs_generator_alone() -> None:
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    fetched(opened(), 0)
    assert torch.equal(torch.rand(3), expected)


def test_without_reseed_samples_draw_on() -> None:
    loader = opened(reseed=False)
    assert fetched(loader, 0) != fetched(loader, 0)


def test_a_dataset_that_loads_many_at_once_is_asked_so() -> None:
    assert fetched(opened(AtOnce()), 0, [1]) == {1: [[2.0], [3.0]]}


def test_a_collate_function_makes_the_batch() -> None:
    loader = opened(collate_fn=lambda samples: [int(sample[0]) for sample in samples])
    assert list(loader.fetch(1, [2, 0])) == [(2, [12, 13]), (0, [8, 9])]


def test_an_error_of_the_dataset_names_the_sample() -> None:
    loader = opened(Numbers(broken=13))
    with pytest.raises(
        SampleError, match=r"sample 13 of step 1 \(micro-batch 2\) cannot be loaded: KeyError"
    ) as raised:
        fetched(loader, 1)
    assert (raised.value.step, raised.value.micro_batch, raised.value.samples) == (1, 2, ("13",))
    assert isinstance(raised.value.__cause__, KeyError)
    assert 'raise KeyError(f"no file for {index}")' in raised.value.traceback
    assert fetched(loader, 1, [3]).keys() == {3}


def test_an_error_of_the_collate_function_names_all_samples_of_the_micro_batch() -> None:
    loader = opened(collate_fn=lambda samples: samples[2])
    with pytest.raises(SampleError, match="samples 10, 11 of step 1") as raised:
        list(loader.fetch(1, [1]))
    assert raised.value.samples == ("10", "11")


def test_a_sampler_chooses() -> None:
    loader = opened(sampler=RandomSampler(Numbers(20)), epochs=1)
    names = [name for step in range(3) for ids in loader.samples(step) for name in ids]
    assert sorted(map(int, names[:20])) == list(range(20))


def test_a_generator_gives_the_seed() -> None:
    assert opened(shuffle=True, generator=torch.Generator().manual_seed(9)).samples(3) == opened(
        shuffle=True, seed=9
    ).samples(3)


@pytest.mark.parametrize(
    "others",
    [
        {"dataset": Numbers(101)},
        {"seed": 1},
        {"shuffle": False},
        {"global_batch": 16},
        {"micro_batch": 4},
        {"drop_last": True},
        {"dataset": AtOnce()},
        {"sampler": RandomSampler(Numbers()), "shuffle": False},
    ],
)
def test_digests_differ_where_ranks_would_compute_other_steps(others: dict[str, Any]) -> None:
    assert opened(**{"shuffle": True, **others}).digest() != opened(shuffle=True).digest()
    assert opened(shuffle=True).digest() == opened(shuffle=True, num_workers=2).digest()


def test_a_probe_finds_other_samples() -> None:
    tensors, swapped = torch.arange(20.0), torch.arange(20.0)
    swapped[[0, 19]] = swapped[[19, 0]]
    assert opened(tensors).digest() == opened(swapped).digest()
    assert opened(tensors, probe=3).digest() != opened(swapped, probe=3).digest()
    assert opened(Numbers(), probe=3).digest() == opened(Numbers(), probe=3).digest()


def test_a_state_loads_where_steps_have_the_same_samples() -> None:
    state = opened(shuffle=True).state_dict()
    opened(shuffle=True, micro_batch=4).load_state_dict(state)
    with pytest.raises(ValueError, match=r"num_samples was 100, now 90; global_batch was 8, now 4. Steps would have"):
        opened(Numbers(90), global_batch=4, shuffle=True).load_state_dict(state)


def test_a_closed_loader_says_so() -> None:
    loader = opened()
    loader.close()
    loader.close()
    with pytest.raises(ValueError, match="this loader is closed"):
        loader.fetch(0, [0])


class Unsized(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(100))


@pytest.mark.parametrize(
    ("dataset", "options", "kind", "what"),
    [
        (Numbers(), {"micro_batch": 3}, ValueError, r"8 = 2 \* 3 \+ 2"),
        (Numbers(7), {}, ValueError, "7 samples, fewer than the global_batch=8"),
        (Numbers(0), {}, ValueError, "Numbers has no samples"),
        (Unsized(), {}, ValueError, "Unsized has no __len__"),
        (Stream(), {}, ValueError, r"Stream has no samples with positions.*training.Shards"),
        (DataLoader(Numbers()), {}, TypeError, "takes a dataset, not a DataLoader"),
        (Numbers(), {"sampler": RandomSampler(Numbers()), "shuffle": True}, ValueError, "exclude each other"),
        (Numbers(), {"micro_batch": None}, TypeError, "give micro_batch"),
        (Numbers(), {"num_workers": -1}, ValueError, "num_workers=-1 is impossible"),
        (Numbers(), {"prefetch_factor": 0}, ValueError, "prefetch_factor=0 is impossible"),
        (Numbers(), {"timeout": -1}, ValueError, "timeout=-1 is impossible"),
    ],
)
def test_what_cannot_be_trained_with_is_refused_at_once(
    dataset: Any, options: dict[str, Any], kind: type[Exception], what: str
) -> None:
    with pytest.raises(kind, match=what):
        opened(dataset, **options)


def test_a_step_after_the_end_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no step 13"):
        opened(epochs=1).fetch(13, [0])
