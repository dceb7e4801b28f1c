"""Lets a bounded number of generations run at a time, the others in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Use it on one event loop. Each ``enter`` that returned is followed by one ``leave``."""

    def __init__(self, number: int) -> None:
        self._number = self._free = number
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.num_running = 0

    @property
    def num_waiting(self) -> int:
        return sum(not waiter.done() for waiter in self._waiting)

    @property
    def is_free(self) -> bool:
        """Whether who enters now has a turn at once."""
        return self._free > 0 and not self.num_waiting

    @property
    def is_idle(self) -> bool:
        """Whether nobody has a turn, or is about to have one."""
        return self._free == self._number

    async def enter(self, timeout_s: float) -> None:
        """Wait for a turn; asyncio.TimeoutError if none comes in time. Cancelled, the turn goes to the next one."""
        if self.is_free:
            self._free -= 1
        else:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiting.append(waiter)
            timer = loop.call_later(timeout_s, _give_up, waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled() and waiter.exception() is None:  # the turn was ours already
                    self._pass_on()
                raise
            finally:
                timer.cancel()
        self.num_running += 1

    def leave(self) -> None:
        """Let the next one have the turn."""
        self.num_running -= 1
        self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(asyncio.TimeoutError())
