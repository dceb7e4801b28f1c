"""The c10d store at ``MASTER_ADDR:MASTER_PORT``: a fresh one for each generation, served by an agent."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial

from torch._C._distributed_c10d import TCPStore

from ..wire.operation import Operation
from ..wire.progress import ProgressThread
from ..wire.waiting import run_in_thread

__all__ = ["MasterStore", "open_master_store"]

logger = logging.getLogger(__name__)

TIMEOUT = timedelta(seconds=30)  # of this end, which only serves
PATIENCE_S = 0.3  # a store opens in milliseconds
MAX_TRIES = 4


class MasterStore:
    """A ``TCPStore`` server on a free port of an address of this host. Blocks, for seconds if a name server is slow."""

    def __init__(self, address: str, generation: int) -> None:
        self.address, self.generation = address, generation
        self._store: TCPStore | None = TCPStore(
            address, 0, None, is_master=True, timeout=TIMEOUT, wait_for_workers=False
        )
        self.inside = (address, int(self._store.port))
        """Where it listens; ``address`` and ``port`` are where workers are to find it."""
        self.port = self.inside[1]

    def close(self) -> None:
        """Workers of that generation lose it, which are gone as a rule."""
        self._store = None


def open_master_store(loop: ProgressThread, address: str, generation: int) -> Operation[MasterStore]:
    """Open one without blocking the progress thread, on which this is called; fails as the last try has."""
    return _Opening(loop, address, generation).opened


class _Opening:
    """c10d asks a name server about every connection, its own too, and waits 5 s for an answer that was lost.

    So a second try is begun beside one that takes long. The first that succeeds counts.
    """

    def __init__(self, loop: ProgressThread, address: str, generation: int) -> None:
        self._loop, self._address, self._generation = loop, address, generation
        self._num_tries = self._num_failed = 0
        self.opened: Operation[MasterStore] = Operation()
        self._try()

    def _try(self) -> None:
        if self.opened.done or self._num_tries == MAX_TRIES:
            return
        self._num_tries += 1
        opening = run_in_thread(partial(MasterStore, self._address, self._generation), "multiworld-master-store")
        opening.add_callback(lambda _: self._loop.call_soon(partial(self._tried, opening)))
        self._loop.call_later(PATIENCE_S, self._try)

    def _tried(self, opening: Operation[MasterStore]) -> None:
        error = opening.error
        if error is None:
            if self.opened.done:
                opening.result().close()
            else:
                self.opened.succeed(opening.result())
            return
        logger.debug("a store for generation %d cannot be opened", self._generation, exc_info=error)
        self._num_failed += 1
        if self._num_failed == MAX_TRIES and not self.opened.done:
            self.opened.fail(error)
