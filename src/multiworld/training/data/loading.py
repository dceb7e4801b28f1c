"""Load one micro-batch in any process: seed, load and collate its samples, and say which one failed."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .seeding import seed_all
from .shards import ShardReader

Batch = Any


class Sample(NamedTuple):
    key: Any
    """What the dataset is asked for."""
    seed: int | None
    """None: its loading draws from the generators as they are."""


class Loaded(NamedTuple):
    """A micro-batch as it leaves the worker. NamedTuple, since DataLoader pins the memory of what is in a tuple."""

    batch: Batch
    failure: Failure | None


@dataclass(frozen=True)
class Failure:
    """What the user's code raised. ``sample``: its place in the micro-batch; None: it was no single one."""

    sample: int | None
    error: str
    traceback: str


class Loading:
    """What a worker does: the dataset that the user gave, as one that is asked for whole micro-batches."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Batch]) -> None:
        self.dataset = dataset
        self._collate = collate
        self.at: int | None = None
        """Which sample of the micro-batch is being loaded; None: no single one."""

    def __getitems__(self, samples: Sequence[Sample]) -> Loaded:
        """Return the batch, or what failed: an error that left a worker would lose its place and its traceback."""
        if not samples:
            return Loaded(None, None)
        try:
            return Loaded(self.load(samples), None)
        except Exception as error:
            return Loaded(None, Failure(self.at, described(error), traceback.format_exc()))

    def load(self, samples: Sequence[Sample]) -> Batch:
        """Return the batch. Raises what the user's code raises."""
        self.at = None
        if callable(getattr(self.dataset, "__getitems__", None)):
            return self._collate(self._all_at_once(samples))
        loaded = []
        for at, sample in enumerate(samples):
            self.at = at
            if isinstance(self.dataset, ShardReader):
                self.dataset.go_to(sample.key)
            if sample.seed is not None:
                seed_all(sample.seed)
            loaded.append(self.dataset[sample.key])
        self.at = None
        return self._collate(loaded)

    def _all_at_once(self, samples: Sequence[Sample]) -> list[Any]:
        if samples[0].seed is not None:
            seed_all(samples[0].seed)
        return list(self.dataset.__getitems__([sample.key for sample in samples]))


def described(error: BaseException) -> str:
    """Return the type and message of an error, in one line if it has no more."""
    return "".join(traceback.format_exception_only(error)).strip()


def as_it_is(loaded: Any) -> Any:
    """DataLoader's collate function: all was done already."""
    return loaded
