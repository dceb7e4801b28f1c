"""Keeps one fork server: one that was killed or stopped is replaced, and the next one starts what that one owed."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from ...wire.progress.thread import ProgressThread
from ...wire.rate_limited_log import RateLimitedLog
from ...world.processes.restarts import Restarts
from ...world.processes.vitals import StoppedTime
from .fork_server import ForkServer, Started

logger = logging.getLogger(__name__)

MAX_LOST = 3  # fork servers that are lost, or cannot be started, before a process is given up
Order = Callable[[ForkServer, Started], None]


@dataclass
class _Wanted:
    """A process that somebody wants to be started."""

    order: Order
    on_started: Started
    num_lost: int = 0


class ForkServerKeeper:
    """All on the loop's thread, and ``close`` also after it has stopped.

    ``start`` makes another fork server. ``running`` returns the processes that are to end with this one. ``on_forked``
    gets the pid of each process that may become a worker.
    """

    def __init__(
        self,
        loop: ProgressThread,
        first: ForkServer,
        start: Callable[[], ForkServer],
        *,
        running: Callable[[], Iterable[int]],
        on_forked: Callable[[int], None],
    ) -> None:
        self._loop, self._start, self._running, self._on_forked = loop, start, running, on_forked
        self._restarts = Restarts()
        self._say_scarce = RateLimitedLog(logger.warning)
        self._lost: list[ForkServer] = []
        self._owed: list[_Wanted] = []  # while there is no fork server
        self._is_replacing = self._closed = False
        self._use(first)

    def spawn(self, order: Order, on_started: Started) -> None:
        """Have ``order(server, on_started)`` start a process, again with the next server if that one is lost."""
        self._spawn(_Wanted(order, on_started))

    def look(self, now: float, stopped_limit_s: float) -> None:
        """Replace one that is stopped for so long: it starts nothing, and nobody would learn why."""
        if self._closed or self._is_replacing:
            return
        if self._stopped.look(now) >= stopped_limit_s:
            logger.warning("the process that starts workers (%d) is stopped; it is killed", self._server.pid)
            with suppress(ProcessLookupError):
                os.kill(self._server.pid, signal.SIGKILL)

    def close(self) -> None:
        """End it, and with it whatever it has started and is still running. Idempotent, bounded."""
        self._closed = True
        self._server.close()
        for server in self._lost:  # the first one has made this process adopt orphans
            server.close()

    def _use(self, server: ForkServer) -> None:
        self._server, self._used_at = server, time.monotonic()
        self._stopped = StoppedTime(server.pid)
        server.attach(self._loop, self._server_lost, self._on_forked)

    def _spawn(self, wanted: _Wanted) -> None:
        if self._is_replacing:
            self._owed.append(wanted)
        else:
            wanted.order(self._server, partial(self._answered, wanted))

    def _answered(self, wanted: _Wanted, answer: int | OSError) -> None:
        is_lost = isinstance(answer, ConnectionResetError) and not self._closed and not self._server.is_useless
        if is_lost and wanted.num_lost < MAX_LOST:
            wanted.num_lost += 1
            self._spawn(wanted)
        else:
            wanted.on_started(answer)

    def _server_lost(self, reason: str) -> None:
        """Its workers live on as children of this process; the next start needs another server."""
        if self._closed or self._server.is_useless:  # it cannot import what it should, and another could not either
            return
        logger.warning("the process that starts workers is lost (%s); another one is started", reason)
        self._is_replacing = True
        self._lost.append(self._server)
        self._replace_later(lived_s=time.monotonic() - self._used_at)

    def _replace_later(self, *, lived_s: float) -> None:
        delay_s = self._restarts.ended(lived_s)
        if delay_s > 0:
            self._loop.call_later(delay_s, self._replace)
        else:
            self._replace()

    def _replace(self) -> None:
        if self._closed:
            return
        try:
            server = self._start()
        except OSError as error:  # too many processes, or no memory
            retry_s = self._restarts.not_started()
            text = "no process that starts workers can be started now, which is tried again in %.1f s: %s"
            self._say_scarce(text, retry_s, error)
            self._give_up(error)
            self._loop.call_later(retry_s, self._replace)
            return
        self._is_replacing = False
        self._use(server)
        server.watch(list(self._running()))
        owed, self._owed = self._owed, []
        for wanted in owed:
            self._spawn(wanted)

    def _give_up(self, error: OSError) -> None:
        """Nobody waits for ever."""
        for wanted in self._owed:
            wanted.num_lost += 1
        over = [wanted for wanted in self._owed if wanted.num_lost > MAX_LOST]
        self._owed = [wanted for wanted in self._owed if wanted.num_lost <= MAX_LOST]
        for wanted in over:
            wanted.on_started(error)
