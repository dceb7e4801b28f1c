"""Loaders of torchdata's StatefulDataLoader: each replica reads the whole stream, and uses its share."""

from __future__ import annotations

import gc
import io
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from multiworld.training.data.opening import open_loader
from multiworld.training.data.stream_loader import StreamLoader
from multiworld.training.errors import SampleError

stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")]


class Count(IterableDataset[Tensor]):
    """The numbers below 24, each with a random one; each worker has every other."""

    def __init__(self, broken: int | None = None) -> None:
        self.broken = broken
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        first, num = (info.id, info.num_workers) if info is not None else (0, 1)
        for number in range(first, 24, num):
            if number == self.broken:
                raise OSError(f"no file for {number}")
            yield torch.tensor([100 * self.epoch + number, float(torch.rand(()))])


def stream(dataset: Any = None, **options: Any) -> Any:
    options = {"batch_size": 2, "drop_last": True, **options}
    return stateful_dataloader.StatefulDataLoader(Count() if dataset is None else dataset, **options)


@pytest.fixture
def opened(no_leaks: None) -> Iterator[Any]:
    loaders: list[StreamLoader] = []

    def open_one(source: Any, global_batch: int = 8, **options: Any) -> StreamLoader:
        loader = open_loader(source, global_batch=global_batch, **options)
        assert isinstance(loader, StreamLoader)
        loaders.append(loader)
        return loader

    yield open_one
    for loader in loaders:
        loader.close()
    gc.collect()  # the frames of an error hold batches, and these the descriptors of their memory


def fetched(loader: StreamLoader, step: int, micro_batches: Any = range(4)) -> dict[int, list[Any]]:
    return {number: batch.tolist() for number, batch in loader.fetch(step, list(micro_batches))}


def saved(loader: StreamLoader) -> Any:
    """Return the state as a checkpoint or a newcomer has it."""
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_replicas_have_their_shares_of_one_stream_and_a_newcomer_reads_on(
    opened: Any, num_workers: int, shuffle: bool
) -> None:
    def one() -> StreamLoader:
        source = (
            stream(list(range(24)), shuffle=True, num_workers=num_workers)
            if shuffle
            else stream(num_workers=num_workers)
        )
        return opened(source)  # type: ignore[no-any-return]

    handler = signal.getsignal(signal.SIGCHLD)
    whole, part, newcomer = one(), one(), one()
    for step in range(5):  # an epoch has three steps
        batches = fetched(whole, step)
        torch.rand(1)  # the program's own random numbers change nothing
        assert fetched(part, step, [1, 2]) == {1: batches[1], 2: batches[2]}
        assert fetched(part, step, [3, 0]) == {3: batches[3], 0: batches[0]}  # the other one was lost
        if step == 1:
            state = saved(part)
        if step == 2:
            newcomer.load_state_dict(state)
        if step in (2, 4):
            assert fetched(newcomer, step) == batches
    assert signal.getsignal(signal.SIGCHLD) is handler


def test_loading_leaves_the_programs_generator_alone(opened: Any) -> None:
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    fetched(opened(stream()), 0)
    assert torch.equal(torch.rand(3), expected)


def test_an_epoch_that_ends_within_a_step_goes_on_with_the_next(opened: Any) -> None:
    loader = opened(stream(), global_batch=16)
    numbers = [int(row[0]) for step in range(3) for batch in fetched(loader, step, range(8)).values() for row in batch]
    assert numbers == [*range(24), *range(100, 124)]
    assert loader.samples(1)[0] == ["16", "17"]


def test_epochs_of_a_stream_with_a_length_end(opened: Any) -> None:
    loader = opened(stream(list(range(24))), global_batch=16, epochs=2)
    assert (loader.num_steps, [loader.epoch_of(step) for step in range(3)]) == (3, [0, 0, 1])
    with pytest.raises(ValueError, match="there is no step 3: 2 epochs have 3 steps"):
        loader.fetch(3, [0])


def test_an_error_of_the_stream_names_the_samples_and_comes_again(opened: Any) -> None:
    loader = opened(stream(Count(broken=5)))
    for _ in range(2):
        with pytest.raises(SampleError, match=r"samples 4, 5 of step 0.*OSError: no file for 5") as raised:
            fetched(loader, 0)
        assert raised.value.samples == ("4", "5")
    assert fetched(loader, 0, [0]).keys() == {0}


def test_a_stream_does_not_go_back(opened: Any) -> None:
    loader = opened(stream())
    fetched(loader, 1)
    with pytest.raises(ValueError, match="batch 0 of the stream was read already, and so were all before 8"):
        loader.fetch(0, [0])


def test_a_state_of_other_sizes_is_refused(opened: Any) -> None:
    state = opened(stream()).state_dict()
    with pytest.raises(ValueError, match="global_batch was 8, now 16"):
        opened(stream(), global_batch=16).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "others", "what"),
    [
        ({"batch_size": 3}, {}, r"8 = 2 \* 3 \+ 2"),
        ({"drop_last": False}, {}, "make the loader with drop_last=True"),
        ({}, {"micro_batch": 4}, "micro_batch=4, and the batches of the stream have 2 samples"),
        ({}, {"epochs": 2}, "epochs=2 of a stream without a length"),
        ({"batch_size": None, "drop_last": False}, {}, "has no batch_size"),
        ({"dataset": [1, 2, 3, 4]}, {}, "an epoch has 2 batches of 2 samples, fewer than the 4 of one step"),
    ],
)
def test_a_stream_whose_steps_are_not_known_is_refused(
    options: dict[str, Any], others: dict[str, Any], what: str
) -> None:
    with pytest.raises(ValueError, match=what):
        open_loader(stream(**options), global_batch=8, **others)
