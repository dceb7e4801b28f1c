"""Whose turn it is to use the memory that the ranks of a host share for collectives, and when its pages are given back.

The calls take turns in the order of their numbers, the same on all ranks. Each rank has an area in its memory: a page
of flags, and two halves.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping

from torch import Tensor

from ...errors import again
from ...wire.progress.operation import Operation, settler
from ...wire.progress.spinning import SPIN_S, QuickWaits
from ...wire.progress.thread import ProgressThread, weakly
from ...wire.progress.waiting import Move
from ..threads import SerialThread
from .flags import PAGE_BYTES, FlagPage
from .host_memory import FORGET_S, HALF_BYTES, HostMemory


class Turn:
    """One call's place in the row.

    ``operation`` is done when it is this call's turn: True; or False: the ranks share no memory.
    """

    __slots__ = ("has_failed", "is_over", "is_wanted", "operation", "seq")

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.operation: Operation[bool] = Operation()
        self.is_wanted = self.is_over = self.has_failed = False


class SharedArea:
    """The areas of all ranks of one world; implements ``shared_call.SharedMemory``. Any thread."""

    def __init__(self, loop: ProgressThread, memory: HostMemory) -> None:
        self.rank, self.size = memory.rank, memory.world_size
        self.half_bytes = HALF_BYTES
        self.quick_waits = QuickWaits(SPIN_S)
        self.half = self.gave_up = 0
        self._loop, self._memory = loop, memory
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._turns: deque[Turn] = deque()  # the first one has the area
        self._last_seq = 0
        self._unused_after: dict[int, int] = {}  # by rank, after which call it has said that it uses no area
        self._idle_timer = False
        self._pages: dict[int, FlagPage] = {}
        self._halves: dict[tuple[int, int], Tensor] = {}
        self._waits = SerialThread(f"multiworld-area-{self.rank}")
        memory.on_unused = self._unused_by
        memory.agreement.add_callback(lambda _: self._grant())

    def reserve(self, turn: Turn) -> None:
        """Give a call its place in the row. The order must be the same on all ranks: that of the calls' numbers."""
        with self._lock:
            if self._error is not None:
                turn.operation.fail(self._error)
            else:
                self._turns.append(turn)

    def take(self, turn: Turn) -> Operation[bool]:
        """Wait for a turn that was reserved."""
        turn.is_wanted = True
        if not self._memory.agreement.done:
            self._loop.call_soon(self._memory.take_part)  # on the thread that no interrupt ends
        self._grant()
        return turn.operation

    def _grant(self) -> None:
        """Let the first in the row have the area, or all of them know that there is none."""
        agreement = self._memory.agreement
        if not agreement.done or agreement.error is not None:
            return
        agreed = agreement.result()
        with self._lock:
            while agreed and self._turns and self._turns[0].is_over:
                self._end(self._turns.popleft())
            granted = [turn for turn in list(self._turns)[: 1 if agreed else None] if turn.is_wanted]
            if not agreed:
                self._turns = deque(turn for turn in self._turns if not turn.is_wanted)
        for turn in granted:
            turn.operation.succeed(agreed)

    def leave(self, turn: Turn, *, failed: bool) -> None:
        """A call has ended, or wants no turn. If it failed in it, the others are told when its turn comes."""
        starts_timer = False
        with self._lock:
            if turn not in self._turns:
                return
            if turn.is_wanted:
                turn.is_over, turn.has_failed = True, failed
                starts_timer, self._idle_timer = not self._idle_timer, True
            else:
                self._turns.remove(turn)
        if starts_timer:
            self._loop.call_later(FORGET_S, weakly(self._check_idle, turn.seq))
        self._grant()

    def _end(self, turn: Turn) -> None:
        """With the lock held: its turn is over, or has come too late."""
        self._last_seq = turn.seq
        own = None if not turn.has_failed or self._error is not None else self._all_pages().get(self.rank)
        if own is not None:
            self.gave_up = turn.seq
            own.give_up(turn.seq)

    def _check_idle(self, seq: int) -> None:
        """On the progress thread, while the area is used now and then: is it still?"""
        with self._lock:
            if self._error is not None:
                return
            last_seq = self._last_seq
            self._idle_timer = bool(self._turns) or seq != last_seq
            is_used = self._idle_timer
        if is_used:
            self._loop.call_later(FORGET_S, weakly(self._check_idle, last_seq))
        else:
            self._memory.say_unused(last_seq)
            self._forget_if_unused()

    def _unused_by(self, rank: int, seq: int) -> None:
        """A peer has used no area for a while, since the call of that number."""
        with self._lock:
            self._unused_after[rank] = seq
        self._forget_if_unused()

    def _forget_if_unused(self) -> None:
        """Give the area's pages back, once nobody can be reading them."""
        with self._lock:
            if self._turns or self._idle_timer:
                return
            others = [rank for rank in range(self.size) if rank != self.rank]
            if all(self._unused_after.get(rank) == self._last_seq for rank in others):
                self._memory.forget(self._memory.area_offset + PAGE_BYTES, 2 * HALF_BYTES)

    @property
    def pages(self) -> Mapping[int, FlagPage]:
        with self._lock:
            self.check()
            return self._all_pages()

    def _all_pages(self) -> dict[int, FlagPage]:
        if not self._pages:
            offset = self._memory.area_offset
            regions = ((rank, self._memory.region(rank)) for rank in range(self.size))
            self._pages = {rank: FlagPage(region, region.address + offset) for rank, region in regions if region}
        return self._pages

    def area(self, rank: int, half: int, like: Tensor, offset_bytes: int = 0) -> Tensor:
        whole = self._halves.get((rank, half))
        if whole is None:
            with self._lock:
                self.check()
                whole = self._halves[rank, half] = self._half_of(rank, half)
        return whole[offset_bytes : offset_bytes + like.numel() * like.element_size()].view(like.dtype)

    def _half_of(self, rank: int, half: int) -> Tensor:
        region = self._memory.region(rank)
        assert region is not None, "the ranks have agreed that all have mapped the memory of all"
        return region.tensor(self._memory.area_offset + PAGE_BYTES + half * HALF_BYTES, HALF_BYTES)

    def block(self, wait: Callable[[], None]) -> bool:
        return self._waits.put(wait)

    def why_not(self) -> Exception:
        return self._error or RuntimeError("no thread can be started for collectives; see the log")

    def on_own_thread(self) -> Operation[None]:
        """Return an operation for steps to await: they go on where they may block."""
        return Move(self._hand_over)

    def _hand_over(self, move: Operation[None]) -> None:
        if not self.block(settler(move)):
            move.fail(self.why_not())

    def check(self) -> None:
        """Raise what ended the world, if anything did."""
        if self._error is not None:
            raise again(self._error)

    def close(self, error: Exception) -> None:
        """The world has ended."""
        with self._lock:
            self._error = error
            turns = list(self._turns)
            self._turns.clear()
            self._pages, self._halves = {}, {}
        self._memory.close(error)
        for turn in turns:
            turn.operation.fail(error)
        self._waits.stop()
