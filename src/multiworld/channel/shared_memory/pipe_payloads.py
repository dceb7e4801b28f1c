"""The payloads that wait at the two ends of a pipe, and how long each end goes on before others get their turn.

A turn of an asyncio loop, or of the thread that serves all worlds, moves ``TURN_BYTES``, a fraction of a millisecond. A
thread that blocks in the call has nothing better to do.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from ...errors import ProtocolError
from ...wire.memory.copying import address_of, copied
from ...wire.progress.waiting import is_blocked_here
from .pipe import WINDOW_BYTES, PipeEnd

T = TypeVar("T")

TURN_BYTES = 4 * 1024 * 1024
BLOCKED_TURN_BYTES = 4 * TURN_BYTES
MIN_PUSH_BYTES = 256 * 1024  # of a turn that is over, but must go on
TURN_S, BLOCKED_TURN_S = 5e-3, 20e-3  # however little that was
MAX_SPIN_S = 100e-6  # the other end copies a piece in a fifth of that
MIN_SPIN_S = 5e-6
PAST_CACHES_BYTES = 2 * 1024 * 1024  # measured: what is larger gains more on its way than who uses it at once loses


class Spin:
    """How long to look for what the other end does before resting: long while that pays. Pure."""

    def __init__(self) -> None:
        self.seconds = MAX_SPIN_S

    def moved(self, size_bytes: int) -> None:
        if size_bytes >= WINDOW_BYTES:
            self.seconds = min(2 * self.seconds, MAX_SPIN_S)

    def rested(self) -> None:
        self.seconds = max(self.seconds / 2, MIN_SPIN_S)


class Payload(Generic[T]):
    """A payload on its way out; ``owner`` None: it was cancelled, and goes on from a copy."""

    __slots__ = ("detached", "owner", "segments")

    def __init__(self, owner: T | None, segments: Sequence[memoryview]) -> None:
        self.owner = owner
        self.segments = deque(copied(segment) if segment.readonly else segment for segment in segments if len(segment))
        self.detached: threading.Event | None = None
        """Set when the rest is copied, of which nothing is written before."""


class PipeWrites(Generic[T]):
    """The writer's end with all that waits for it. One thread at a time.

    ``ring`` sends the bell; ``written`` is called with the owner of each payload that is in the window whole; ``again``
    when a turn is over: ``write`` is to be called again, soon, or else by a bell if its argument says that this end
    rests. ``memory`` keeps that of the pipe mapped.
    """

    def __init__(
        self,
        end: PipeEnd,
        *,
        ring: Callable[[], None],
        written: Callable[[T | None], None],
        again: Callable[[bool], None],
        memory: object,
    ) -> None:
        self._end, self._ring, self._written, self._again, self._memory = end, ring, written, again, memory
        self._over = False
        self._spin = Spin()
        self.waiting: deque[Payload[T]] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, here or in the window."""
        return not self.waiting and self._end.is_level()

    def close(self) -> None:
        """Nothing more is written, from inside ``write``, too."""
        self._over = True
        self.waiting.clear()

    def write(self) -> None:
        """Write what waits until there is no room, or for a turn."""
        end, waiting = self._end, self.waiting
        end.wake()
        left, over_at = turn()
        spin_s = self._spin.seconds
        while waiting and waiting[0].detached is None and not self._over:
            segments = waiting[0].segments
            if not segments:
                self._written(waiting.popleft().owner)
                spin_s = 0.0  # who waits for it is to hear of it first
                continue
            segment = segments[0]
            size_bytes = min(len(segment), max(left, MIN_PUSH_BYTES))
            moved = end.push(address_of(segment), size_bytes, spin_s)
            self._spin.moved(moved)
            left -= moved
            if moved == len(segment):
                segments.popleft()
            else:
                segments[0] = segment[moved:]
            if end.bell:
                self._ring()
            elif moved < size_bytes:
                if self._rest(early=False):
                    self._spin.rested()
                    return
            elif left <= 0 and segments and self._rest(early=True):
                self._again(True)
                return
            if segments and time.perf_counter() > over_at:  # else it is written: who reads the end of it may not ring
                self._again(self._rest(early=True))
                return

    def _rest(self, *, early: bool) -> bool:
        rests = self._end.rest_writing(early=early)
        if rests and self._end.bell:
            self._ring()
        return rests


class Incoming:
    """A payload that comes; ``target`` None drops it."""

    __slots__ = ("received", "seq", "size_bytes", "target")

    def __init__(self, seq: int, size_bytes: int, target: memoryview | None) -> None:
        self.seq, self.size_bytes, self.target, self.received = seq, size_bytes, target, 0


class PipeReads:
    """The reader's end with all that is to come through it. One thread at a time.

    ``ring`` sends the bell; ``came`` is called with the number of each payload that is in its target; ``again`` and
    ``memory`` are as those of ``PipeWrites``.
    """

    def __init__(
        self,
        end: PipeEnd,
        *,
        ring: Callable[[], None],
        came: Callable[[int], None],
        again: Callable[[bool], None],
        memory: object,
    ) -> None:
        self._end, self._ring, self._came, self._again, self._memory = end, ring, came, again, memory
        self._over = False
        self._spin = Spin()
        self._expected: deque[Incoming] = deque()

    def __iter__(self) -> Iterator[Incoming]:
        return iter(self._expected)

    def expect(self, seq: int, size_bytes: int, target: memoryview | None) -> None:
        """A payload comes behind all that were expected before."""
        if target is not None and len(target) != size_bytes:
            raise ProtocolError(f"a payload of {size_bytes} bytes for {len(target)} bytes of memory")
        self._expected.append(Incoming(seq, size_bytes, target))
        if len(self._expected) == 1:
            self.read()

    def close(self) -> None:
        """Nothing more is read, from inside ``read``, too."""
        self._over = True
        self._expected.clear()

    def find(self, seq: int) -> Incoming | None:
        return next((incoming for incoming in self._expected if incoming.seq == seq), None)

    def read(self, *, to_the_end: bool = False) -> None:
        """Read what comes until nothing comes for a moment, or for a turn; or all, which must have been written."""
        end, expected = self._end, self._expected
        end.wake()
        left, over_at = turn()
        spin_s = self._spin.seconds
        while expected:
            incoming = expected[0]
            wanted = incoming.size_bytes - incoming.received
            if to_the_end or left <= 0:
                size_bytes, spin_s = wanted, 0.0
            else:
                size_bytes = min(wanted, left)
            target = None  # as an empty payload's memory has no address
            if incoming.target is not None and wanted:
                target = address_of(incoming.target) + incoming.received
            moved = end.pull(
                target, size_bytes, spin_s, past_caches=incoming.size_bytes >= PAST_CACHES_BYTES, not_yet=left <= 0
            )
            if self._over:  # closed by a signal handler
                return
            self._spin.moved(moved)
            incoming.received += moved
            left -= moved
            if end.bell:
                self._ring()
            if moved == wanted:
                expected.popleft()
                self._came(incoming.seq)
                left = min(left, WINDOW_BYTES // 2)  # who waits for it is to hear of it soon
            elif moved < size_bytes and not end.bell:
                if to_the_end and not moved:
                    raise ProtocolError(f"the end of message {incoming.seq} is missing")
                if not to_the_end and self._rest(early=False, end=0):
                    self._spin.rested()
                    return
            is_late = time.perf_counter() > over_at
            if (left <= 0 or is_late) and expected and not to_the_end:
                first = expected[0]
                rest_ends = end.position + first.size_bytes - first.received
                rests = first.size_bytes > 0 and self._rest(early=True, end=rest_ends)  # nobody rings for an empty one
                if rests or is_late:
                    self._again(rests)
                    return

    def _rest(self, *, early: bool, end: int) -> bool:
        rests = self._end.rest_reading(early=early, end=end)
        if rests and self._end.bell:
            self._ring()
        return rests


def turn() -> tuple[int, float]:
    """Return how much the calling thread may move before it looks after something else, and until when."""
    if is_blocked_here():
        return BLOCKED_TURN_BYTES, time.perf_counter() + BLOCKED_TURN_S
    return TURN_BYTES, time.perf_counter() + TURN_S
