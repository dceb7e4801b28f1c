"""The c10d store at ``MASTER_ADDR:MASTER_PORT``: a fresh one for each generation, served by an agent."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from torch._C._distributed_c10d import TCPStore

from ..wire.addresses import family_of
from ..wire.operation import Operation
from ..wire.progress import ProgressThread
from ..wire.waiting import run_in_thread

__all__ = ["MasterKeeper", "MasterStore"]

logger = logging.getLogger(__name__)

TIMEOUT = timedelta(seconds=30)  # of this end, which only serves
PATIENCE_S = 0.3  # a store opens in milliseconds
MAX_TRIES = 4
BACKLOG = 4096  # thousands of workers come at once
MAX_OLD = 4
AGAIN_S = 1.0  # after a store could not be opened


class MasterStore:
    """A ``TCPStore`` server on a free port of an address of this host. Blocks, for seconds if a name server is slow."""

    def __init__(self, address: str, generation: int) -> None:
        self.address, self.generation = address, generation
        # else it listens on all addresses of this host, and asks a name server about those of its clients as IPv6
        listener = socket.create_server((address, 0), family=family_of(address), backlog=BACKLOG)
        port = int(listener.getsockname()[1])
        self._store: TCPStore | None = TCPStore(
            address,
            port,
            None,
            is_master=True,
            timeout=TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        self.inside = (address, port)
        """Where it listens; ``address`` and ``port`` are where workers are to find it."""
        self.port = self.inside[1]

    def close(self) -> None:
        """Workers of that generation lose it, which are gone as a rule."""
        self._store = None


class MasterKeeper:
    """The stores that one agent serves, on the progress thread. ``on_serving`` is told of each that was ordered."""

    def __init__(self, loop: ProgressThread, address: str, on_serving: Callable[[MasterStore], None]) -> None:
        self._loop, self._address, self._on_serving = loop, address, on_serving
        self.current: MasterStore | None = None
        self._old: list[MasterStore] = []
        self._opening: Operation[MasterStore] | None = None  # the last that was ordered
        self._opening_for: int | None = None
        self._closed = False

    def open(self, generation: int) -> None:
        """Serve one for that generation, and close what nobody can need any more."""
        if self.current is not None and self.current.generation == generation:
            self._on_serving(self.current)  # the answer was lost
            return
        if self._opening is not None and not self._opening.done and self._opening_for == generation:
            return
        if self.current is not None:
            self._old.append(self.current)  # workers that run on, on any host, may have a process group on it
            self.current = None
            if len(self._old) > MAX_OLD:
                self._old.pop(0).close()
        self._opening = opening = _open_store(self._loop, self._address, generation)
        self._opening_for = generation
        opening.add_callback(partial(self._opened, generation))

    def close(self) -> None:
        self._closed = True
        for master in [*self._old, *([] if self.current is None else [self.current])]:
            master.close()

    def _opened(self, generation: int, opening: Operation[MasterStore]) -> None:
        is_wanted = opening is self._opening and not self._closed
        if opening.error is None and not is_wanted:
            opening.result().close()
        elif opening.error is None:
            self.current = opening.result()
            self._on_serving(self.current)
        elif is_wanted:
            logger.error("no store can be served at %s, so no worker is started: %s", self._address, opening.error)
            self._loop.call_later(AGAIN_S, partial(self._open_again, generation, opening))

    def _open_again(self, generation: int, failed: Operation[MasterStore]) -> None:
        if failed is self._opening and not self._closed:
            self.open(generation)


def _open_store(loop: ProgressThread, address: str, generation: int) -> Operation[MasterStore]:
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
