"""Make the loader that fits a dataset: what ``job.loader`` calls."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from .base import Batch
from .map_loader import MapLoader
from .orders import NumberedOrder, Order, ShardedOrder
from .positions import Positions, check_batches
from .sampling import SampledOrder
from .seeding import SampleSeeds, drawn_from
from .shards import ShardReader, Shards
from .stream_loader import StreamLoader
from .workers import WorkerOptions


def open_loader(
    dataset: Any,
    *,
    global_batch: int,
    micro_batch: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    epochs: int | None = None,
    drop_last: bool = False,
    sampler: Any = None,
    collate_fn: Callable[[list[Any]], Batch] | None = None,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    pin_memory: bool = False,
    timeout: float = 0.0,
    worker_init_fn: Callable[[int], None] | None = None,
    multiprocessing_context: Any = None,
    generator: torch.Generator | None = None,
    reseed: bool = True,
    probe: int = 0,
) -> MapLoader | StreamLoader:
    """Return a loader whose steps have ``global_batch`` samples, all replicas together, ``micro_batch`` at once.

    ``dataset``: a map-style dataset; ``Shards`` for streams; or torchdata's ``StatefulDataLoader``, which brings its
    own batch size, order and workers. ``epochs``: None has no end. ``drop_last``: leave out what is no whole step at an
    epoch's end; else that step is completed from the next epoch. ``generator``: its ``initial_seed()`` takes the place
    of ``seed``. ``reseed``: seed ``random``, NumPy and torch before each sample with (seed, epoch, place), so that
    augmentations do not depend on who loads it. ``probe``: load so many samples at the start, to compare the datasets
    of the ranks by what is in them, too. The others are as those of ``torch.utils.data.DataLoader``.

    Raises ValueError or TypeError at once for what can't be trained with.
    """
    if _is_stateful_loader(dataset):
        return StreamLoader(dataset, global_batch=global_batch, micro_batch=micro_batch, epochs=epochs)
    if micro_batch is None:
        raise TypeError("give micro_batch: how many samples are computed at once on one replica")
    if generator is not None:
        seed = generator.initial_seed()
    check_batches(global_batch, micro_batch)
    order = _order_of(dataset, sampler, global_batch, micro_batch, seed=seed, shuffle=shuffle)
    positions = Positions(
        num_samples=order.num_samples,
        global_batch=global_batch,
        micro_batch=micro_batch,
        drop_last=drop_last,
        epochs=epochs,
    )
    source = dataset
    if isinstance(dataset, Shards):
        assert isinstance(order, ShardedOrder)
        source = ShardReader(dataset, order)
    options = WorkerOptions(
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        pin_memory=pin_memory,
        timeout=timeout,
        worker_init_fn=worker_init_fn,
        multiprocessing_context=multiprocessing_context,
    )
    return MapLoader(
        source,
        order,
        positions,
        collate_fn or default_collate,
        options=options,
        seed=seed,
        reseed=reseed,
        fingerprint=_fingerprint(dataset, order, probe, seed),
    )


def _order_of(dataset: Any, sampler: Any, global_batch: int, micro_batch: int, *, seed: int, shuffle: bool) -> Order:
    name = type(dataset).__name__
    if isinstance(dataset, Shards):
        if sampler is not None:
            raise ValueError("shards are read from their begins, so no sampler can choose: leave sampler out")
        return ShardedOrder(
            dataset.lengths, global_batch=global_batch, micro_batch=micro_batch, seed=seed, shuffle=shuffle
        )
    if isinstance(dataset, DataLoader):
        raise TypeError(
            "job.loader takes a dataset, not a DataLoader: give DataLoader's dataset, sampler, collate_fn and "
            "num_workers, and the batch sizes as global_batch and micro_batch"
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise ValueError(
            f"{name} has no samples with positions, so nobody knows what a lost replica had: declare its shards with "
            "training.Shards([...], lengths=[...]), or give torchdata's StatefulDataLoader"
        )
    if sampler is not None:
        if shuffle:
            raise ValueError("sampler and shuffle exclude each other: the order is the sampler's")
        return SampledOrder(sampler, seed=seed)
    if not hasattr(dataset, "__len__"):
        raise ValueError(f"{name} has no __len__, so nobody knows which samples a step has: give it one, or a sampler")
    if not len(dataset):
        raise ValueError(f"{name} has no samples")
    return NumberedOrder(len(dataset), seed=seed, shuffle=shuffle)


def _is_stateful_loader(dataset: Any) -> bool:
    return all(hasattr(dataset, name) for name in ("state_dict", "load_state_dict", "batch_size", "__iter__"))


def _fingerprint(dataset: Any, order: Order, probe: int, seed: int) -> str:
    """Return what the ranks' datasets are compared by: class, what a dataset says of itself, and some samples."""
    own = getattr(dataset, "_fingerprint", "")  # Hugging Face's datasets have one
    digest = hashlib.blake2b(f"{type(dataset).__qualname__}/{own}".encode(), digest_size=16)
    # Readers of their own, as forked workers would share the positions of open files.
    source: Any = ShardReader(dataset, order) if isinstance(order, ShardedOrder) else dataset
    for place in sorted({number * (order.num_samples - 1) // max(1, probe - 1) for number in range(probe)}):
        with drawn_from(SampleSeeds(seed).at(0, place)):
            digest.update(_bytes_of(source[order.index(0, place)]))
    return digest.hexdigest()


def _bytes_of(sample: Any) -> bytes:
    """Return bytes that are equal for equal samples. A pickled tensor has its storage's address nowhere in it."""
    if isinstance(sample, torch.Tensor):
        plain = sample.detach().cpu().contiguous()
        data: bytes = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{plain.dtype}{tuple(plain.shape)}".encode() + data
    if isinstance(sample, dict):
        return b"".join(_bytes_of(key) + _bytes_of(value) for key, value in sample.items())
    if isinstance(sample, (tuple, list)):
        return b"".join(_bytes_of(part) for part in sample)
    return pickle.dumps(sample)
