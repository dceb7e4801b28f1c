"""Keeps the host process of a deployment running: one that was killed is started again, and its replicas with it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from ....world.processes.restarts import Restarts
from ...member.exit_status import starts_again
from .start import HostHandle

logger = logging.getLogger(__name__)


class KeptHost:
    """``start`` makes a host process, which dials the controller when it is ready. ``abort`` it in the end."""

    def __init__(self, start: Callable[[], HostHandle]) -> None:
        self._start = start
        self.handle = start()
        self._keeping: asyncio.Task[None] | None = None

    def keep(self) -> None:
        """Start another one from now on whenever it ends, unless it was told to end."""
        self._keeping = asyncio.create_task(self._keep())

    def release(self) -> None:
        """Start none any more."""
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None

    def abort(self) -> None:
        """Kill it, and by that its members, at once. Idempotent."""
        self.release()
        self.handle.abort()

    async def _keep(self) -> None:
        restarts = Restarts()
        while True:
            started_at = time.monotonic()
            await self.handle.wait_ended()
            returncode, pid = self.handle.returncode, self.handle.pid
            if not starts_again(returncode):
                logger.warning("the host process %d has ended as it was told to; no replica runs on this host", pid)
                return
            delay_s = restarts.ended(time.monotonic() - started_at)
            text = "the host process %d ended with %s; it is started again in %.1f s"
            logger.warning(text, pid, returncode, delay_s)
            self.handle.abort()
            await asyncio.sleep(delay_s)
            await self._restart(restarts)

    async def _restart(self, restarts: Restarts) -> None:
        while True:
            try:
                self.handle = self._start()
                return
            except OSError as error:  # no process, descriptor or memory just now
                delay_s = restarts.not_started()
                logger.warning("no host process can be started, which is tried again in %.1f s: %s", delay_s, error)
                await asyncio.sleep(delay_s)
