"""Turn a user's sampler into an order that is a function of the epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils.data.distributed import DistributedSampler

from .orders import Index
from .permutation import keys_of
from .seeding import drawn_from


class SampledOrder:
    """Draws the whole order of an epoch from ``sampler`` when it is wanted first.

    Before that, ``sampler.set_epoch`` is called if there is such a method, ``sampler.generator`` is replaced by one
    seeded with (seed, epoch) if there is such an attribute, and the global generators are seeded so while it draws.
    Raises ValueError for a sampler whose order of an epoch still depends on how often it was asked, or on the rank.
    """

    def __init__(self, sampler: Any, *, seed: int) -> None:
        self._name = type(sampler).__name__
        self._sampler = sampler
        self._seed = seed
        self._drawn: dict[int, list[Index]] = {}  # of the latest epochs only
        self._check()
        first = self._draw(0)
        if self._draw(0) != first:
            raise ValueError(
                f"{self._name} gives another order when it is asked for the same epoch again, so ranks would differ: "
                "let its order follow from set_epoch(epoch) and a seed"
            )
        if not first:
            raise ValueError(f"{self._name} yields no samples")
        self._drawn[0] = first
        self.num_samples = len(first)
        self.is_once = len(set(first)) == len(first)

    def index(self, epoch: int, place: int) -> Index:
        if epoch not in self._drawn:
            drawn = self._draw(epoch)
            if len(drawn) != self.num_samples:
                raise ValueError(
                    f"{self._name} yields {len(drawn)} samples in epoch {epoch} and {self.num_samples} in epoch 0, so "
                    "the positions of steps are not known: let it yield the same number in each epoch"
                )
            if len(self._drawn) >= 3:
                del self._drawn[min(self._drawn)]
            self._drawn[epoch] = drawn
        return self._drawn[epoch][place]

    def id_of(self, index: Index) -> str:
        return str(index)

    def settings(self) -> dict[str, object]:
        return {"num_samples": self.num_samples, "sampler": self._name, "order": self._digest(0), "seed": self._seed}

    def _check(self) -> None:
        if not hasattr(self._sampler, "__iter__"):
            raise TypeError(f"sampler={self._name} cannot be iterated over: give a torch.utils.data.Sampler")
        if not hasattr(self._sampler, "__len__"):
            raise ValueError(f"{self._name} has no __len__, so nobody knows which samples a step has: give it one")
        if isinstance(self._sampler, DistributedSampler) and self._sampler.num_replicas != 1:
            raise ValueError(
                f"{self._name} gives each of {self._sampler.num_replicas} ranks samples of its own, and they would be "
                "lost with a rank: job.loader deals the samples to ranks itself, so take shuffle=True in its place"
            )

    def _draw(self, epoch: int) -> list[Index]:
        (key,) = keys_of("sampler", self._seed, epoch, count=1)
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
        if hasattr(self._sampler, "generator"):
            self._sampler.generator = torch.Generator().manual_seed(key)
        with drawn_from(key):
            return list(_plain(self._sampler))

    def _digest(self, epoch: int) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for index in self._drawn.get(epoch) or self._draw(epoch):
            digest.update(f"{index}\n".encode())
        return digest.hexdigest()


def _plain(indices: Iterable[Any]) -> Iterable[Index]:
    for index in indices:
        if isinstance(index, torch.Tensor):
            yield index.item()
        elif isinstance(index, Sequence) and not isinstance(index, (str, bytes, tuple)):
            raise ValueError(
                f"the sampler yields {type(index).__name__}s, as a batch sampler does: give one that yields samples"
            )
        else:
            yield index
