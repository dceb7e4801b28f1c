"""What one request may use of what all share: the gateway's memory, and the time of its loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from ..error_body import HttpError

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")

R = TypeVar("R")
APART_BYTES = 1 << 20  # a copy of these takes about as long as handing them to a thread and back
SMALL_AT_ONCE = 32  # each takes some ten microseconds


class HeldBytes:
    """How many bytes all open requests take, and may: bodies, what they become, and answers that are being sent."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Count them; an HttpError if that is too much now, or always."""
        if num_bytes > self._max_bytes:
            raise HttpError(
                413, f"this takes {num_bytes} bytes of memory, and all requests together may take {self._max_bytes}"
            )
        if self.held_bytes + num_bytes > self._max_bytes:
            raise HttpError(
                429, f"open requests take {self.held_bytes} bytes, and may take {self._max_bytes}; try again later"
            )
        self.held_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        self.held_bytes -= num_bytes


class Turns:
    """Lets one slice of long work run in each turn of the loop, whichever request it is for; others wait in line."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def wait_next(self) -> None:
        async with self._lock:
            await asyncio.sleep(0)


class Budget:
    """The share of one request. ``close`` gives back what was taken."""

    def __init__(self, held: HeldBytes, turns: Turns) -> None:
        self._held, self._turns = held, turns
        self._taken = self._num_small = 0

    def take(self, num_bytes: int) -> None:
        """Count memory before it is used; an HttpError if there is not so much."""
        self._held.take(num_bytes)
        self._taken += num_bytes

    @contextmanager
    def lent(self, num_bytes: int) -> Iterator[None]:
        """Count memory that is needed only within the block."""
        self._held.take(num_bytes)
        try:
            yield
        finally:
            self._held.give_back(num_bytes)

    def close(self) -> None:
        """Idempotent; more may be taken afterwards."""
        self._held.give_back(self._taken)
        self._taken = 0

    async def wait_turn(self) -> None:
        """Between two slices of work of a millisecond or less: let everything else run."""
        await self._turns.wait_next()

    async def apart(self, num_bytes: int, work: Callable[P, R], /, *args: P.args, **more: P.kwargs) -> R:
        """Return what ``work`` does on arrays of that size; on a thread, if they are large.

        Numpy and torch work without the interpreter's lock, so the loop is free meanwhile. Of small ones there may be
        thousands: now and then it is another's turn.
        """
        if num_bytes <= APART_BYTES:
            self._num_small += 1
            if self._num_small % SMALL_AT_ONCE == 0:
                await self.wait_turn()
            return work(*args, **more)
        return await asyncio.to_thread(work, *args, **more)
