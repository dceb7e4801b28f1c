"""The loader of datasets whose samples can be asked for by position."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..errors import SampleError
from ..state import StateDict
from .base import Batch
from .demand import Wanted
from .group import WorkerGroup
from .ledger_check import Data
from .loading import Loading, Sample, described
from .orders import Order, ShardedOrder
from .positions import Positions
from .seeding import SampleSeeds, kept_torch_state
from .settings import check_settings
from .workers import WorkerOptions


class MapLoader:
    """A ``StepLoader``: ``order`` says which sample stands where, ``dataset[index]`` is that sample.

    With ``options.num_workers`` it has worker processes, which start at the first ``fetch`` or ``expect`` and stay.
    They load ahead: what is expected, else the same micro-batches of the next steps. A worker that dies is replaced,
    and what it had is loaded again. Not for several threads at once.
    """

    def __init__(
        self,
        dataset: Any,
        order: Order,
        positions: Positions,
        collate: Callable[[list[Any]], Batch],
        *,
        options: WorkerOptions,
        seed: int = 0,
        reseed: bool = True,
        fingerprint: str = "",
    ) -> None:
        self.global_batch = positions.global_batch
        self.micro_batch = positions.micro_batch
        self.num_micro_batches = positions.num_micro_batches
        self.order = order
        self.positions = positions
        self._seeds = SampleSeeds(seed) if reseed else None
        self._fingerprint = fingerprint
        self._loading = Loading(dataset, collate)
        self._is_closed = False
        # A shard is cheap to read for the worker that read the micro-batch before, so each worker gets its own lanes.
        is_sharded = isinstance(order, ShardedOrder)
        num_groups = options.num_workers if is_sharded else min(options.num_workers, 1)
        self._groups = [
            WorkerGroup(
                self._loading,
                options,
                self._samples,
                self._ids,
                num_steps=positions.num_steps,
                seed=seed,
                number=number if is_sharded else None,
            )
            for number in range(num_groups)
        ]

    @property
    def num_steps(self) -> int | None:
        return self.positions.num_steps

    @property
    def worker_pids(self) -> list[int]:
        return [pid for group in self._groups for pid in group.pids]

    def epoch_of(self, step: int) -> int:
        return self.positions.epoch_of(step)

    def samples(self, step: int) -> list[list[str]]:
        return [self._ids(Wanted(step, micro_batch)) for micro_batch in range(self.num_micro_batches)]

    def fetch(self, step: int, micro_batches: Sequence[int]) -> Iterator[tuple[int, Batch]]:
        """Raises SampleError where the user's code raised, LoaderWorkerError where workers die again and again."""
        self._check_open()
        for micro_batch in micro_batches:
            self.positions.places(step, micro_batch)
        for place, group in enumerate(self._groups):
            group.ask(step, self._share(micro_batches, place))
        return self._fetch(step, tuple(micro_batches))

    def expect(self, step: int, micro_batches: Sequence[int]) -> None:
        self._check_open()
        if self.num_steps is not None and step >= self.num_steps:
            return
        for place, group in enumerate(self._groups):
            group.expect(step, self._share(micro_batches, place))

    def digest(self) -> str:
        known = {**self.settings(), "micro_batch": self.micro_batch, "fingerprint": self._fingerprint}
        return hashlib.blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=16).hexdigest()

    def data(self) -> Data:
        """Return what a ledger says of the steps."""
        return Data(
            global_batch=self.global_batch,
            micro_batch=self.micro_batch,
            num_samples=self.order.num_samples,
            drop_last=self.positions.drop_last,
            is_once=self.order.is_once,
        )

    def settings(self) -> dict[str, object]:
        """Return what decides which samples a step has."""
        return {
            **self.order.settings(),
            "global_batch": self.global_batch,
            "drop_last": self.positions.drop_last,
        }

    def state_dict(self) -> StateDict:
        return {"settings": self.settings()}

    def load_state_dict(self, state: StateDict) -> None:
        check_settings(self.settings(), state["settings"])

    def close(self) -> None:
        self._is_closed = True
        for group in self._groups:
            group.stop()

    def _fetch(self, step: int, micro_batches: tuple[int, ...]) -> Iterator[tuple[int, Batch]]:
        for micro_batch in micro_batches:
            self._check_open()
            wanted = Wanted(step, micro_batch)
            yield micro_batch, self._from_workers(wanted) if self._groups else self._here(wanted)

    def _here(self, wanted: Wanted) -> Batch:
        with kept_torch_state():
            try:
                return self._loading.load(self._samples(wanted))
            except Exception as error:
                raise self._failed(wanted, self._loading.at, described(error), traceback.format_exc()) from error

    def _from_workers(self, wanted: Wanted) -> Batch:
        loaded = self._groups[wanted.micro_batch % len(self._groups)].take(wanted)
        if loaded.failure is not None:
            failure = loaded.failure
            raise self._failed(wanted, failure.sample, failure.error, failure.traceback)
        return loaded.batch

    def _share(self, micro_batches: Sequence[int], place: int) -> list[int]:
        return [micro_batch for micro_batch in micro_batches if micro_batch % len(self._groups) == place]

    def _ids(self, wanted: Wanted) -> list[str]:
        return [self.order.id_of(self.order.index(*place)) for place in self.positions.places(*wanted)]

    def _samples(self, wanted: Wanted) -> list[Sample]:
        seeds = self._seeds
        return [
            Sample(self.order.index(*place), None if seeds is None else seeds.at(*place))
            for place in self.positions.places(*wanted)
        ]

    def _failed(self, wanted: Wanted, sample: int | None, error: str, text: str) -> SampleError:
        ids = self._ids(wanted)
        return SampleError(*wanted, tuple(ids if sample is None else [ids[sample]]), error, text)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("this loader is closed")
