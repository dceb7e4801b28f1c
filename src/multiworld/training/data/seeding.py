"""The random numbers of a sample: a function of (seed, epoch, place), never of who loads it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .permutation import keys_of, mixed

np: Any
try:
    import numpy as np
except ImportError:  # torch works without it, and so do datasets that do not use it
    np = None


class SampleSeeds:
    """One seed for each place of each epoch."""

    def __init__(self, seed: int) -> None:
        (self._key,) = keys_of("augmentation", seed, count=1)

    def at(self, epoch: int, place: int) -> int:
        return mixed(mixed(self._key ^ epoch) ^ place)


def seed_all(seed: int) -> None:
    """Seed the global CPU generators of ``random``, NumPy (if it is there) and torch in some 20 µs.

    ``torch.manual_seed`` would also look at all accelerators, which takes some 20 times as long.
    """
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if np is not None:
        np.random.seed(seed & 0xFFFFFFFF)


@contextmanager
def kept_torch_state() -> Iterator[None]:
    """Leave torch's CPU generator as it was, since dropout draws from it. The other two belong to the data's code."""
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Seed all three generators, and leave them as they were."""
    kept = random.getstate()
    kept_numpy = np.random.get_state() if np is not None else None
    with kept_torch_state():
        try:
            seed_all(seed)
            yield
        finally:
            random.setstate(kept)
            if np is not None:
                np.random.set_state(kept_numpy)
