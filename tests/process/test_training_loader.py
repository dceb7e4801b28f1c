"""Loaders with real worker processes: what they load, when they die, and what is left of them."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from multiworld import training
from multiworld.testing import scaled
from multiworld.training.data.map_loader import MapLoader
from multiworld.training.data.opening import open_loader
from multiworld.training.data.shards import Shards
from multiworld.training.data.starting import WorkerInit
from multiworld.training.errors import LoaderWorkerError, SampleError

pytestmark = pytest.mark.process


class Numbers(Dataset[Tensor]):
    """Sample ``i`` is ``i``, a random number, and who loaded it."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, float(torch.rand(())), os.getpid()], dtype=torch.float64)


class Broken(Numbers):
    def __getitem__(self, index: int) -> Tensor:
        if index == 5:
            raise OSError(f"no file for {index}")
        return super().__getitem__(index)


class Deadly(Numbers):
    """As a sample that takes all memory of the host."""

    def __getitem__(self, index: int) -> Tensor:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Stuck(Numbers):
    def __getitem__(self, index: int) -> Tensor:
        if index == 5:
            threading.Event().wait()
        return super().__getitem__(index)


@pytest.fixture
def opened(no_leaks: None) -> Iterator[Any]:
    """Open loaders that end with the test, and leave nothing behind."""
    loaders: list[MapLoader] = []

    def open_one(dataset: Any, **options: Any) -> MapLoader:
        options = {"global_batch": 12, "micro_batch": 2, "shuffle": True, "num_workers": 2, **options}
        loader = open_loader(dataset, **options)
        assert isinstance(loader, MapLoader)
        loaders.append(loader)
        return loader

    yield open_one
    for loader in loaders:
        loader.close()
    gc.collect()  # the frames of an error hold batches, and these the descriptors of their memory


def fetched(loader: MapLoader, step: int, micro_batches: Any = range(6)) -> dict[int, list[list[float]]]:
    """Return (index, random number) of each sample."""
    return {number: batch[:, :2].tolist() for number, batch in loader.fetch(step, list(micro_batches))}


def test_workers_load_what_the_program_would_and_lose_nothing_while_shares_change(opened: Any) -> None:
    torch.manual_seed(0)
    here, there = opened(Numbers(), num_workers=0), opened(Numbers())
    shares = [range(6), [0, 1], [0, 1], [4], range(6), [], [2, 3], [0, 1, 2, 3]]
    pids = set()
    for step, share in enumerate(shares):
        assert fetched(there, step, share) == fetched(here, step, share)
        pids.update(there.worker_pids)
        if step in (1, 6):  # a loss: what the lost one had comes too
            assert fetched(there, step, [5, 4]) == fetched(here, step, [5, 4])
    assert len(pids) == 2  # the same ones from the first step to the last


def test_an_expected_share_starts_the_workers(opened: Any) -> None:
    loader = opened(Numbers())
    loader.expect(0, [])
    assert len(loader.worker_pids) == 2
    loader.expect(3, [1, 2])
    assert fetched(loader, 3, [1, 2]) == fetched(opened(Numbers(), num_workers=0), 3, [1, 2])


def test_loaders_draw_nothing_from_the_programs_generator_and_set_no_handler(opened: Any) -> None:
    torch.manual_seed(4)
    expected, handler = torch.rand(3), signal.getsignal(signal.SIGCHLD)
    torch.manual_seed(4)
    fetched(opened(Numbers()), 0)
    assert torch.equal(torch.rand(3), expected)
    assert signal.getsignal(signal.SIGCHLD) is handler


def test_a_killed_worker_is_replaced_and_its_micro_batches_are_loaded_again(opened: Any) -> None:
    loader, here = opened(Numbers()), opened(Numbers(), num_workers=0)
    for step in range(6):
        if step in (1, 3):
            os.kill(loader.worker_pids[0], signal.SIGKILL)
        assert fetched(loader, step) == fetched(here, step)


def test_a_sample_that_kills_its_worker_again_and_again_ends_with_its_id(opened: Any) -> None:
    loader = opened(Deadly(), shuffle=False, num_workers=1)
    with pytest.raises(
        LoaderWorkerError, match="ended 3 times with no batch in between, last with exit code -9"
    ) as raised:
        fetched(loader, 0)
    assert {"4", "5"} <= set(raised.value.samples)
    assert fetched(loader, 1) == fetched(opened(Numbers(), shuffle=False, num_workers=0), 1)


def test_an_error_in_a_worker_names_the_sample_and_shows_the_traceback(opened: Any) -> None:
    loader = opened(Broken(), shuffle=False)
    for _ in range(2):
        with pytest.raises(
            SampleError, match=r"sample 5 of step 0 \(micro-batch 2\).*OSError: no file for 5"
        ) as raised:
            fetched(loader, 0)
        assert raised.value.samples == ("5",)
        assert "in __getitem__" in raised.value.traceback
        assert pickle.loads(pickle.dumps(raised.value)).samples == ("5",)
    assert fetched(loader, 0, [0, 1, 3]).keys() == {0, 1, 3}


def test_workers_that_give_nothing_are_given_up_after_the_timeout(opened: Any) -> None:
    loader = opened(Stuck(), shuffle=False, timeout=0.4)
    with pytest.raises(LoaderWorkerError, match=r"no batch came from the loader's workers for 0\.\d s") as raised:
        fetched(loader, 0, [2])
    assert raised.value.samples[:2] == ("4", "5")


def _note_worker(worker_id: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.seen = (worker_id, info.id, info.num_workers)  # type: ignore[attr-defined]


class Noted(Numbers):
    seen = (-1, -1, -1)

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(self.seen)


def test_a_worker_init_fn_finds_the_users_dataset_and_the_workers_number(opened: Any) -> None:
    loader = opened(Noted(), worker_init_fn=_note_worker)
    seen = {tuple(row) for _, batch in loader.fetch(0, range(6)) for row in batch.tolist()}
    assert seen == {(0, 0, 2), (1, 1, 2)}
    pickle.dumps(WorkerInit(_note_worker))


class Lines:
    """A shard that writes down who reads which of its lines."""

    def __init__(self, path: Path, begin: int) -> None:
        self.path, self.begin = path, begin

    def __iter__(self) -> Iterator[int]:
        for number in range(self.begin, self.begin + 24):
            with self.path.open("a") as file:
                file.write(f"{number}\n")
            yield number


def test_each_worker_reads_shards_of_its_own_and_each_line_once(opened: Any, tmp_path: Path) -> None:
    path = tmp_path / "read"
    shards = Shards([Lines(path, begin) for begin in (0, 24, 48, 72)], [24] * 4)
    loader = opened(shards, micro_batch=3, epochs=1, shuffle=False)
    seen = [sample for step in range(8) for _, batch in loader.fetch(step, range(4)) for sample in batch.tolist()]
    loader.close()
    assert sorted(seen) == list(range(96))
    assert sorted(map(int, path.read_text().split())) == list(range(96))


class Split(IterableDataset[Tensor]):
    """Gives each worker its part, as streams of the wild do, with random numbers."""

    def __init__(self, begin: int) -> None:
        self.begin = begin

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        first, num = (info.id, info.num_workers) if info is not None else (0, 1)
        for number in range(self.begin + first, self.begin + 24, num):
            yield torch.tensor([number, float(torch.rand(()))])


def test_shards_are_whole_and_their_random_numbers_the_same_after_a_loss(opened: Any) -> None:
    shards = Shards([Split(begin) for begin in (0, 24, 48, 72)], [24] * 4)
    whole = opened(shards)
    part = opened(shards)
    for step in range(8):
        batches = fetched(whole, step)
        share = range(3) if step < 3 else range(6)
        assert fetched(part, step, share) == {number: batches[number] for number in share}


def test_a_global_batch_that_leaves_replicas_without_work_is_refused() -> None:
    with (
        training.join("few", rank=0, world_size=8, store="tcp://127.0.0.1:1", progress=False) as job,
        pytest.raises(
            ValueError, match="has 6 micro-batches of 2, fewer than the 8 replicas: raise global_batch to 16"
        ),
    ):
        job.loader(Numbers(), global_batch=12, micro_batch=2)


def _train(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        loader = open_loader(Numbers(), global_batch=12, micro_batch=2, num_workers=2)
        assert isinstance(loader, MapLoader)
        next(iter(loader.fetch(0, [0, 1])))
        connection.sendall(pickle.dumps(loader.worker_pids))
        threading.Event().wait()


def test_peers_of_a_killed_process_see_at_once_that_it_is_gone() -> None:
    """Its workers live on for some seconds, and must not hold its connections open."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = multiprocessing.get_context("fork").Process(target=_train, args=(server.getsockname()[1],))
        process.start()
        try:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(scaled(30.0))
                workers = pickle.loads(connection.recv(1_000))
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
                connection.settimeout(scaled(2.0))  # the workers look for their parent every 5 s
                assert connection.recv(1) == b""
                for pid in workers:
                    os.kill(pid, signal.SIGKILL)
        finally:
            process.kill()
            process.join()
