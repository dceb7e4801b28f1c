"""A group of a loader's workers: what they are to load, what they have loaded, and others where they die."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from ..errors import LoaderWorkerError
from .demand import Demand, Wanted
from .loading import Loaded, Loading, Sample
from .workers import WorkerOptions, Workers, WorkersDiedError

logger = logging.getLogger(__name__)

MAX_DEATHS: Final = 3
"""So often workers may die with no batch received in between."""


class WorkerGroup:
    """Workers that share what is wanted. They start when that is known first, and stay.

    ``samples`` says what a micro-batch is made of, ``ids`` names that in errors. ``number``: of this group,
    which has one worker.
    """

    def __init__(
        self,
        loading: Loading,
        options: WorkerOptions,
        samples: Callable[[Wanted], list[Sample]],
        ids: Callable[[Wanted], list[str]],
        *,
        num_steps: int | None,
        seed: int,
        number: int | None = None,
    ) -> None:
        self._loading = loading
        self._options = options
        self._samples = samples
        self._ids = ids
        self._demand = Demand(num_steps)
        self._seed = seed
        self._number = number
        self._ready: dict[Wanted, Loaded] = {}
        self._workers: Workers | None = None
        self._num_deaths = 0

    @property
    def pids(self) -> list[int]:
        return self._workers.pids if self._workers is not None else []

    def ask(self, step: int, micro_batches: Sequence[int]) -> None:
        """These are taken next; what was loaded for earlier steps is dropped."""
        self._demand.ask(step, micro_batches)
        self._ready = {wanted: loaded for wanted, loaded in self._ready.items() if wanted.step >= step}

    def expect(self, step: int, micro_batches: Sequence[int]) -> None:
        """These are taken later: workers that have nothing to do begin with them."""
        self._demand.expect(step, micro_batches)
        workers = self._running()
        for _ in range(workers.num_begun if micro_batches else 0):
            if not workers.is_idle_next or not self._receive(workers):
                return

    def take(self, wanted: Wanted) -> Loaded:
        """Wait for a micro-batch that was asked for. Raises LoaderWorkerError."""
        while wanted not in self._ready:
            self._receive(self._running())
        self._demand.take(wanted)
        return self._ready.pop(wanted)

    def stop(self) -> None:
        self._ready.clear()
        if self._workers is not None:
            self._workers.stop()
            self._workers = None

    def _running(self) -> Workers:
        if self._workers is None:
            # Without reseed, workers that come after others must not draw the same random numbers again.
            seed = self._seed + self._num_deaths
            self._workers = Workers(self._loading, self._options, self._begin, seed=seed, number=self._number)
        return self._workers

    def _begin(self) -> tuple[Wanted, list[Sample]] | None:
        wanted = self._demand.begin()
        return None if wanted is None else (wanted, self._samples(wanted))

    def _receive(self, workers: Workers) -> bool:
        """Return False where nothing came as workers died, and others are to start."""
        try:
            received = workers.receive()
        except (WorkersDiedError, TimeoutError) as error:
            self._replace(workers, error)
            return False
        self._num_deaths = 0
        if received is not None and self._demand.finish(received[0]):
            self._ready[received[0]] = received[1]
        return True

    def _replace(self, workers: Workers, error: WorkersDiedError | TimeoutError) -> None:
        begun = workers.begun
        workers.stop(at_once=True)
        self._workers = None
        self._demand.give_back(begun)
        samples = tuple(name for wanted in begun for name in self._ids(wanted))
        if isinstance(error, TimeoutError):
            raise LoaderWorkerError(f"{error}.", samples) from error
        self._num_deaths += 1
        if self._num_deaths >= MAX_DEATHS:
            what = f"Worker processes of the loader ended {MAX_DEATHS} times with no batch in between, last {error}."
            raise LoaderWorkerError(what, samples) from error
        logger.warning("a worker process of the loader ended %s; new ones load what it had", str(error))
