"""The c10d store at ``MASTER_ADDR:MASTER_PORT``: a fresh one for each generation, served by an agent.

It has no authentication and no bounds: it keeps any number of silent connections, and memory of those that say what it
does not know. So it listens on loopback, and workers come to it through a shared port.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from torch._C._distributed_c10d import TCPStore

from ...wire.endpoints.addresses import family_of
from ...wire.progress.operation import Operation
from ...wire.progress.thread import ProgressThread
from ...wire.progress.waiting import run_in_thread
from ...wire.rate_limited_log import RateLimitedLog
from .shared_port import BACKLOG, SharedPort

logger = logging.getLogger(__name__)

TIMEOUT = timedelta(seconds=30)  # of this end, which only serves
PATIENCE_S = 0.3  # a store opens in milliseconds
MAX_TRIES = 4
MAX_OLD = 4
AGAIN_S = 1.0  # after a store could not be opened
LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
LOOPBACK_S = 1.0


class MasterStore:
    """A ``TCPStore`` server on a free port of this host. Blocks, for seconds if a name server is slow."""

    def __init__(self, address: str, generation: int) -> None:
        self.address, self.generation = address, generation
        # else it listens on all addresses of this host, and asks a name server about those of its clients as IPv6
        listener = _listen(address)
        self.inside: tuple[str, int] = listener.getsockname()[:2]
        """Where it listens; ``address`` and ``port`` are where workers are to find it."""
        self.port = self.inside[1]
        self._door: SharedPort | None = None
        self._store: TCPStore | None = TCPStore(
            self.inside[0],
            self.inside[1],
            None,
            is_master=True,
            timeout=TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    def open_door(self, loop: ProgressThread) -> None:
        """Have workers come through a shared port of its own, at ``address``. Progress thread only. Raises OSError."""
        self._door = SharedPort(loop, self.address, 0, _turn_away)
        self._door.store, self.port = self.inside, self._door.port

    def close(self) -> None:
        """Workers of that generation lose it, which are gone as a rule."""
        if self._door is not None:
            self._door.close()
        self._store = None


class MasterKeeper:
    """The stores that one agent serves, on the progress thread. ``on_serving`` is told of each that was ordered.

    ``leads``: whether workers come to a store through a door that is there already.
    """

    def __init__(
        self,
        loop: ProgressThread,
        address: str,
        on_serving: Callable[[MasterStore], None],
        leads: Callable[[MasterStore], bool] = lambda _: False,
    ) -> None:
        self._loop, self._address, self._on_serving, self._leads = loop, address, on_serving, leads
        self._say_none = RateLimitedLog(logger.error)
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
            self._serve(opening.result(), opening)
        elif is_wanted:
            self._cannot_serve(generation, opening, opening.error)

    def _serve(self, master: MasterStore, opening: Operation[MasterStore]) -> None:
        try:
            if not self._leads(master):
                master.open_door(self._loop)
        except OSError as error:
            master.close()
            self._cannot_serve(master.generation, opening, error)
            return
        self.current = master
        self._on_serving(master)

    def _cannot_serve(self, generation: int, opening: Operation[MasterStore], error: BaseException) -> None:
        self._say_none("no store can be served at %s, so no worker is started yet: %s", self._address, error)
        self._loop.call_later(AGAIN_S, partial(self._open_again, generation, opening))

    def _open_again(self, generation: int, failed: Operation[MasterStore]) -> None:
        if failed is self._opening and not self._closed:
            self.open(generation)


def _listen(address: str) -> socket.socket:
    """Listen on loopback or, where a host has none that works, at ``address``."""
    family = family_of(address)
    try:
        listener = socket.create_server((LOOPBACK[family], 0), family=family, backlog=BACKLOG)
        try:
            socket.create_connection(listener.getsockname()[:2], timeout=LOOPBACK_S).close()
            return listener
        except OSError:
            listener.close()
            raise
    except OSError as error:
        logger.debug("loopback cannot be used: %s", error)
    return socket.create_server((address, 0), family=family, backlog=BACKLOG)


def _turn_away(sock: socket.socket, address: object) -> None:
    """An agent has nothing to ask here."""
    sock.close()


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
