"""One collective call's use of the memory that the ranks of a host share: pieces laid open, and meetings."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from torch import Tensor

from ...errors import again
from ...wire.progress.operation import Operation
from ...wire.progress.spinning import SPIN_S, QuickWaits
from .flags import FlagPage, position_of

PATIENCE_S = 0.02  # then a rank that has not come may be in another call


class SharedMemory(Protocol):
    """What a call needs of the memory; the area of each rank has two halves."""

    rank: int
    size: int
    half_bytes: int
    quick_waits: QuickWaits
    half: int
    """That this rank has filled last."""
    gave_up: int
    """The last call that failed here, while others may still be in it; 0: none."""

    @property
    def pages(self) -> Mapping[int, FlagPage]:
        """By rank."""

    def area(self, rank: int, half: int, like: Tensor, offset_bytes: int = 0) -> Tensor:
        """Return a part of a rank's area as a flat tensor of the length and dtype of another."""

    def block(self, wait: Callable[[], None]) -> bool:
        """Run what blocks on a thread for that; False: there is none, for the reason that ``why_not`` returns."""

    def why_not(self) -> Exception: ...


class CallContext(Protocol):
    """What a call needs to know about itself."""

    def check(self) -> None:
        """Raise what has ended the call, if anything did."""

    def expect_nothing(self, rank: int) -> Operation[None]:
        """Return an operation that fails with the error of this call if that rank is in another one, or gave up."""

    def mismatch(self, rank: int, signature: bytes) -> Exception:
        """Return the error for a rank that is in another call of the same number."""


class SharedCall:
    """Implements ``collectives.SharedSpace`` for the one call that has its turn now.

    ``thread`` is the one that may block in it; others hand their waits over, and go on where those end.
    """

    def __init__(self, memory: SharedMemory, context: CallContext, seq: int, signature: bytes) -> None:
        self.rank, self.size, self.half_bytes = memory.rank, memory.size, memory.half_bytes
        self.thread = 0
        self._memory, self._context, self._seq, self._signature = memory, context, seq, signature
        self._others = [(rank, page) for rank, page in memory.pages.items() if rank != memory.rank]
        self._own = memory.pages[memory.rank]
        self._step = 0
        self._halves = [memory.half] * memory.size
        self._watched: dict[int, Operation[None]] = {}

    # ---- the algorithm's side

    async def begin(self) -> None:
        """Return once nobody is in a call any more that failed here: they might still read what we would write."""
        if self._memory.gave_up:
            await self._blocking(self._wait_until_left)
            self._memory.gave_up = 0

    def begin_piece(self) -> None:
        self._memory.half = self._halves[self.rank] = 1 - self._memory.half

    async def show(self) -> None:
        position = position_of(self._seq, self._step + 1)
        self._own.label(self._halves[self.rank], position, self._signature)
        await self.meet()
        for rank, page in self._others:
            half = page.half_at(position)
            if half is None:  # it is in a later call, and was here in one that does not use the memory
                raise self._context.expect_nothing(rank).error or self._context.mismatch(rank, b"another call")
            if not page.has_text(half, self._signature):
                raise self._context.mismatch(rank, page.text(half))
            self._halves[rank] = half

    async def meet(self) -> None:
        self._context.check()  # who is the last to come waits for nobody, and would not notice
        self._step += 1
        self._own.come_to(position_of(self._seq, self._step))
        if not self._have_all_come() and not self._look():
            await self._blocking(self._wait_for_all)

    def area(self, rank: int, like: Tensor, offset_bytes: int = 0) -> Tensor:
        return self._memory.area(rank, self._halves[rank], like, offset_bytes)

    # ---- waiting

    def end(self, error: Exception) -> None:
        """The call is over: nothing of it waits any more."""
        for watched in self._watched.values():
            watched.cancel(error)

    async def _blocking(self, wait: Callable[[], None]) -> None:
        if self.thread == threading.get_ident():
            wait()
            return
        over: Operation[None] = Operation()
        if not self._memory.block(partial(self._wait_there, wait, over)):
            raise self._memory.why_not()
        await over

    def _wait_there(self, wait: Callable[[], None], over: Operation[None]) -> None:
        self.thread = threading.get_ident()
        try:
            wait()
        except Exception as error:  # it belongs to the call
            error.__traceback__ = None  # it may be what ended the world, which would keep these frames
            over.fail(error)
        else:
            over.succeed(None)

    def _have_all_come(self) -> bool:
        position = position_of(self._seq, self._step)
        return all(page.has_come_to(position) for _, page in self._others)

    def _look(self) -> bool:
        """On a thread that may not block: look again for a moment if that pays. Whether all have come."""
        quick_waits = self._memory.quick_waits
        if self.thread == threading.get_ident() or not quick_waits.pay:
            return False
        began = time.perf_counter()
        while not self._have_all_come():
            if time.perf_counter() - began > SPIN_S:
                return False
            os.sched_yield()
        quick_waits.waited(time.perf_counter() - began)
        return True

    def _wait_for_all(self) -> None:
        position = position_of(self._seq, self._step)
        for rank, page in self._others:
            if not page.has_come_to(position):
                self._wait_for(rank, page, position)

    def _wait_for(self, rank: int, page: FlagPage, position: int) -> None:
        began, quick_waits = time.perf_counter(), self._memory.quick_waits
        if quick_waits.pay:
            while not page.has_come_to(position) and time.perf_counter() - began < SPIN_S:
                os.sched_yield()  # to the peer, if it needs this core
        while not page.has_come_to(position):
            self._check(rank, position, time.perf_counter() - began)
            page.sleep(position)
        quick_waits.waited(time.perf_counter() - began)

    def _check(self, rank: int, position: int, waited_s: float) -> None:
        """Raise why a rank will not come, or another one, if that is known."""
        for other, its_page in self._others:
            if its_page.has_given_up(self._seq) and not its_page.has_come_to(position):
                raise self._context.mismatch(other, b"")
        self._context.check()
        if waited_s > PATIENCE_S and rank not in self._watched:
            self._watched[rank] = self._context.expect_nothing(rank)
        watched = self._watched.get(rank)
        if watched is not None and watched.error is not None:
            raise again(watched.error)

    def _wait_until_left(self) -> None:
        gave_up = self._memory.gave_up
        for rank, page in self._others:
            began = time.perf_counter()
            while not page.has_left(gave_up):
                self._check(rank, position_of(self._seq, 1), time.perf_counter() - began)
                page.sleep(position_of(gave_up + 1, 0))
