"""Worker processes that load micro-batches ahead: torch's DataLoader, fed with what is wanted next."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from .demand import Wanted
from .loading import Loaded, Loading, Sample, as_it_is
from .shards import ShardReader
from .starting import WorkerInit, off_main_thread

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.1
"""While no batch comes, the workers are looked at so often: whether they still run."""
SLOW_S: Final = 30.0
"""When no batch comes for so long, a warning says so."""
END_S: Final = 5.0
"""So long workers may take to end what they are at when their loader is closed."""
DYING_S: Final = 1.0
"""So long it may take until a process that was killed is seen to be gone."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """As the arguments of ``torch.utils.data.DataLoader`` with these names. ``timeout``: seconds; 0: no limit."""

    num_workers: int = 0
    prefetch_factor: int = 2
    pin_memory: bool = False
    timeout: float = 0.0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None

    def __post_init__(self) -> None:
        if self.num_workers < 0:
            raise ValueError(f"num_workers={self.num_workers} is impossible: expected 0 (load in the program) or more")
        if self.prefetch_factor < 1:
            raise ValueError(f"prefetch_factor={self.prefetch_factor} is impossible: expected at least 1")
        if self.timeout < 0:
            raise ValueError(f"timeout={self.timeout} is impossible: expected seconds, or 0 for no limit")


class WorkersDiedError(RuntimeError):
    """Some of the processes are gone. ``exits``: their exit codes."""

    def __init__(self, exits: tuple[int, ...]) -> None:
        super().__init__(exits)
        self.exits = exits

    def __str__(self) -> str:
        return f"with exit code {', '.join(str(code) for code in self.exits)}"


class Workers:
    """``options.num_workers`` processes. The thread that takes the batches also gives the workers what comes next.

    ``begin`` returns what is to be loaded next and its samples; it is called once for each received batch, and
    ``num_workers * prefetch_factor`` times at the start. ``number``: there is one worker here, with this number, and
    others elsewhere.
    """

    def __init__(
        self,
        loading: Loading,
        options: WorkerOptions,
        begin: Callable[[], tuple[Wanted, list[Sample]] | None],
        *,
        seed: int,
        number: int | None = None,
    ) -> None:
        self._begin = begin
        self._timeout_s = options.timeout
        self._begun: deque[Wanted | None] = deque()
        loader = DataLoader(
            _MapStyle(loading),
            batch_sampler=_Requests(self),
            collate_fn=as_it_is,
            num_workers=1 if number is not None else options.num_workers,
            prefetch_factor=options.prefetch_factor,
            pin_memory=options.pin_memory,
            timeout=LOOK_S,
            worker_init_fn=_WorkerStart(options.worker_init_fn, number),
            multiprocessing_context=options.multiprocessing_context,
            generator=torch.Generator().manual_seed(seed),  # else a draw from the program's would make ranks differ
            persistent_workers=True,
        )
        others = set(multiprocessing.active_children())
        self._batches: Any = off_main_thread(lambda: iter(loader))
        self._processes = [child for child in multiprocessing.active_children() if child not in others]

    @property
    def begun(self) -> list[Wanted]:
        """What the workers have, or have loaded already, in the order in which it is received."""
        return [wanted for wanted in self._begun if wanted is not None]

    @property
    def num_begun(self) -> int:
        """How many batches will be received, empty ones included, of what is begun by now."""
        return len(self._begun)

    @property
    def is_idle_next(self) -> bool:
        """Whether what is received next is nothing, as nothing was wanted when a worker had a free place."""
        return bool(self._begun) and self._begun[0] is None

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    def receive(self) -> tuple[Wanted, Loaded] | None:
        """Wait for the next micro-batch; None: the workers had nothing to do.

        Raises WorkersDiedError, after which ``stop`` is all that can be done, and TimeoutError.
        """
        began, num_told = time.monotonic(), 1
        while True:
            asked = time.monotonic()
            try:
                loaded = next(self._batches)
                break
            except (RuntimeError, OSError, EOFError) as error:
                # What a worker had sent is lost with it if its memory was not yet shared, which is no RuntimeError.
                is_silence = time.monotonic() - asked >= LOOK_S
                if exits := self._exits(0.0 if is_silence else DYING_S):
                    raise WorkersDiedError(exits) from error
                if not is_silence:
                    raise
            waited_s = time.monotonic() - began
            if waited_s >= SLOW_S * num_told:
                logger.warning(
                    "no batch came from the loader's workers for %.0f s; next is %s", waited_s, self._begun[0]
                )
                num_told += 1
            if self._timeout_s and waited_s >= self._timeout_s:
                raise TimeoutError(f"no batch came from the loader's workers for {waited_s:.1f} s")
        wanted = self._begun.popleft()
        return None if wanted is None else (wanted, loaded)

    def stop(self, *, at_once: bool = False) -> None:
        """End the processes. ``at_once``: kill them; else they may end what they are at, for which they have 5 s."""
        batches, self._batches = self._batches, None
        if batches is None:
            return
        if at_once:
            self._kill()
        killer = threading.Timer(END_S, self._kill)  # DataLoader waits for one worker after the other
        killer.start()
        try:
            batches._shutdown_workers()  # what DataLoader does at the end; there is no public name for it
        finally:
            killer.cancel()
            killer.join()
            self._kill()
            for process in self._processes:
                process.join()
        self._processes.clear()
        self._begun.clear()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    def request(self) -> list[Sample]:
        """Return the samples to load next: for ``_Requests``."""
        begun = self._begin()
        self._begun.append(begun[0] if begun else None)
        return begun[1] if begun else []

    def _exits(self, timeout_s: float) -> tuple[int, ...]:
        ended = connection.wait([process.sentinel for process in self._processes], timeout_s)
        dead = [process for process in self._processes if process.sentinel in ended]
        for process in dead:
            process.join()  # the kernel closes its descriptors, and thus tells us, a moment before it can be waited for
        return tuple(process.exitcode or 0 for process in dead)


class _Requests:
    """DataLoader's batch sampler: it never ends, so the workers never start anew; it is asked when a place is free."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def __iter__(self) -> Iterator[list[Sample]]:
        return self

    def __next__(self) -> list[Sample]:
        return self._workers.request()


class _MapStyle(Dataset[Any]):
    def __init__(self, loading: Loading) -> None:
        self.loading = loading

    def __getitems__(self, samples: list[Sample]) -> Any:
        return self.loading.__getitems__(samples)


class _WorkerStart(WorkerInit):
    """Also shows the user's code its dataset in ``get_worker_info()``.

    ``number``: what its ``worker_init_fn`` is called with. A worker that reads shards of its own is told by
    ``get_worker_info()`` that it is the only one: else an ``IterableDataset`` that shares itself out to workers would
    give a part of its shard only.
    """

    def __init__(self, init: Callable[[int], None] | None, number: int | None) -> None:
        super().__init__(init)
        self._number = number

    def __call__(self, worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None
        dataset = info.dataset.loading.dataset  # type: ignore[attr-defined]
        shown = dataset.shards if isinstance(dataset, ShardReader) else dataset
        object.__setattr__(info, "dataset", shown)  # it refuses changes
        super().__call__(worker_id if self._number is None else self._number)
