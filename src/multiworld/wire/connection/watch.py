"""Who reads a connection: the progress thread, unless a thread or an asyncio loop that waits for a message does.

See ``docs/decisions/005-who-reads.md``.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ..progress.interest import READ_EVENTS, Interest
from ..progress.loop_reader import HOT_S, KEPT_PATROL_S, KEPT_S, MAX_PATROL_S, PATROL_S, LoopReader, LoopWatched
from ..progress.operation import Operation
from ..progress.polling import Poller
from ..progress.spinning import LOOK_S, QuickWaits
from ..progress.thread import ProgressThread
from .waiter import waiter

logger = logging.getLogger(__name__)

MAX_POLL_S = 3600.0
LARGE_BYTES = 1024 * 1024  # a payload above this is the progress thread's work
GLANCE_S = 20e-6  # a round of a loop takes almost as long
LOOP_FAIR_BYTES = 256 * 1024  # what a loop reads at a turn before its tasks get theirs
GUARD = "the progress thread, for a moment"


class _Looks(QuickWaits):
    """How waits for a connection went, and what they may do meanwhile."""

    __slots__ = ("_watch",)

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def look(self) -> None:
        self._watch.look()


class Watched(LoopWatched, Protocol):
    """What a watch needs of its connection."""

    is_awaited: Callable[[], bool]
    is_receiving: Callable[[], bool]

    def read_available(self, fair_bytes: int = 0, /) -> None: ...


class _Ended:
    """In the place of a connection that has ended."""

    def __init__(self) -> None:
        self.is_awaited = self.is_receiving = lambda: False

    def read_available(self, fair_bytes: int = 0, /) -> None: ...

    def read_for_loop(self) -> None: ...

    def on_failure(self, error: BaseException) -> None: ...


class Watch:
    """Lets one thread, or one loop, read a connection in the place of the progress thread."""

    def __init__(self, connection: Watched, loop: ProgressThread, fd: int, interest: Interest) -> None:
        self.quick_waits: QuickWaits = _Looks(self)
        self._connection, self._loop, self._fd, self._interest = connection, loop, fd, interest
        self._heard_at = -math.inf  # when a small piece came last
        self._large = False  # the payload that it began, or that was coming
        self._loop_read_at = -math.inf
        self._kept = False  # that loop always listens
        self._poller: Poller | None = None
        # These are guarded by the interest's lock.
        self._watcher: object = None  # who waits on the socket instead of the progress thread: a thread's ident, a loop
        self._loop_reader: LoopReader | None = None  # the loop, if it is one
        self._guard_s = PATROL_S  # until the next time
        self._guarded = False  # the progress thread looks after what a thread reads
        self._patrolled = False  # or what a loop reads

    def forget(self) -> None:
        """The connection has ended, and been told of it."""
        self.quick_waits, self._connection = QuickWaits(), _Ended()

    def look(self) -> None:
        """On the thread of an asyncio loop that reads: look again and again for a moment, without the loop.

        All tasks that wait on the loop take half of its time for that at most.
        """
        reader = self._loop_reader
        began = time.perf_counter()
        if reader is None or reader.thread != threading.get_ident() or began < reader.look_from:
            return
        if self._poller is None:
            self._poller = Poller(self._fd)
        try:
            if self._poller.look(GLANCE_S):
                self.read_for_loop()
        finally:
            reader.look_from = time.perf_counter() + GLANCE_S

    def heard(self, payload_bytes: int) -> None:
        """A small piece came: headers, small messages, the beginning of a payload of so many bytes (else 0)."""
        self._heard_at = time.monotonic()
        self._large = payload_bytes > LARGE_BYTES

    def read_until(self, operation: Operation[object], timeout_s: float | None) -> None:
        """Let the calling thread read this connection until ``operation`` is done or the time is over.

        It saves the hand-over from the progress thread. If another thread does so already, this returns at once. When
        the progress thread has something left to write, and no receive waits, this returns, too: that thread reads
        itself what it may send next. The caller has to wait for the operation then.
        """
        if self._loop.on_thread:
            return
        thread = threading.get_ident()
        leaves = self.only_sends
        try:
            if not leaves and self._claim(thread):
                leaves = _read_until((self,), operation, timeout_s, self.quick_waits, may_leave=True)
        finally:  # an interrupt can come at any of these steps
            self._end_reading(thread)
        if leaves:
            self._leave_reading(thread)

    @property
    def only_sends(self) -> bool:
        """Whether the progress thread has something left to write, and nobody waits for a message."""
        return self._interest.writing and not self._connection.is_receiving()

    def _leave_reading(self, thread: int) -> None:
        """The calling thread sleeps from now on: let the progress thread read at once, unless others do."""
        reader = self._loop_reader
        if reader is not None and reader.thread == thread:  # a loop that this call blocks
            self.end_loop_reading()
        with self._interest.lock:
            if self._watcher is None or self._watcher is GUARD:
                self._interest.reading = READ_EVENTS
                self._interest.update()

    def _claim(self, thread: int) -> bool:
        with self._interest.lock:
            reader = self._loop_reader
            if reader is not None and reader.thread == thread:  # a loop that this call blocks, so it does not read
                self._watcher = thread
                reader.unwatch(self._fd)
                self._loop_reader = None
                self._kept = False
                return True
            if self._watcher is not None:
                return False
            self._watcher = thread
            return True

    def _end_reading(self, thread: int) -> None:
        """A thread reads no more, if it did."""
        with self._interest.lock:
            if self._watcher != thread:
                return
            if not self._is_hot():
                self._interest.reading = READ_EVENTS
                self._interest.update()
            elif not self._guarded:  # this thread will be back in a moment
                self._guard_s = PATROL_S
                self._loop.call_later(PATROL_S, self._guard)
                self._guarded = True
            self._watcher = None

    def _guard(self) -> None:
        """On the progress thread, now and then while a thread comes back again and again to read.

        More rarely while that leaves nothing lying: each time takes the interpreter lock from it, and a processor.
        """
        heard_at = self._heard_at
        self._guard_s = min(2 * self._guard_s, MAX_PATROL_S)
        again = self._is_hot() and not self._large and not self._interest.over
        with self._interest.lock:  # a thread that stops reading meanwhile must know whether anybody looks after it
            free = self._watcher is None
            self._guarded = again
            if free and not again:
                self._interest.reading = READ_EVENTS
                self._interest.update()
            elif free:
                self._watcher = GUARD
        if free and again:
            try:
                if self._connection.is_awaited():
                    self._connection.read_available()  # what has come while the thread is busy elsewhere
            finally:
                with self._interest.lock:
                    self._watcher = None
                if self._heard_at != heard_at:
                    self._guard_s = PATROL_S
                self._loop.call_later(self._guard_s, self._guard)
        elif again:
            self._loop.call_later(self._guard_s, self._guard)

    def watch_from(self, reader: LoopReader) -> QuickWaits | None:
        """On an asyncio loop's thread that will await a message: let that loop read, if messages come quickly.

        Return how the last waits for this peer went, if the loop reads.
        """
        if self._watcher is None and not self._large and self._is_hot():
            self._watch_from(reader)
        if self._loop_reader is not reader:
            return None
        self.read_for_loop()  # what is there already need not go through the loop's selector
        return self.quick_waits

    def keep_with(self, reader: LoopReader) -> None:
        """On an asyncio loop's thread that always listens: let that loop read from the next message on.

        The progress thread takes the connection back only when nothing has come for long, or for a large payload; and
        it looks after it more rarely: nobody but that loop waits for what comes.
        """
        self._kept = True
        if self._watcher is None and not self._large and self._is_hot():
            self._watch_from(reader)

    def _is_hot(self) -> bool:
        return time.monotonic() - self._heard_at < (KEPT_S if self._kept else HOT_S)

    @property
    def _patrol_s(self) -> float:
        return KEPT_PATROL_S if self._kept else PATROL_S

    def _watch_from(self, reader: LoopReader) -> None:
        with self._interest.lock:
            if self._watcher is not None or self._interest.over:
                return
            if not self._patrolled:
                self._loop.call_later(self._patrol_s, self._patrol)  # first: an interrupt can come at any step
                self._patrolled = True
            self._watcher = self._loop_reader = reader
            self._interest.reading = 0
            self._interest.update()
            reader.watch(self._fd, self._connection)

    def read_for_loop(self) -> None:
        """On the asyncio loop's thread: the socket is readable."""
        reader = self._loop_reader
        if reader is not None:
            reader.lingers = self._kept
        self._connection.read_available(LOOP_FAIR_BYTES)
        self._loop_read_at = time.monotonic()
        if self._large:
            self.end_loop_reading()

    def _patrol(self) -> None:
        """On the progress thread, now and then while a loop reads."""
        with self._interest.lock:  # whoever hands it to a loop holds it until that is done
            reader = self._loop_reader
            if reader is None or self._interest.over:
                self._patrolled = False
                return
        again = False
        try:
            hot = self._is_hot()
            if (
                hot
                and time.monotonic() - self._loop_read_at > self._patrol_s
                and (self._kept or self._connection.is_awaited())
            ):
                self._connection.read_available()  # what the loop was too busy to read
            again = hot and not self._large and not reader.loop.is_closed()
        finally:
            if again:
                self._loop.call_later(self._patrol_s, self._patrol)
            else:
                with self._interest.lock:  # before the loop may read again
                    self._patrolled = False
                self.end_loop_reading()

    def end_loop_reading(self) -> None:
        with self._interest.lock:
            if self._loop_reader is None:
                return
            self._loop_reader.unwatch(self._fd)
            self._interest.reading = READ_EVENTS
            self._interest.update()
            self._kept = False  # until it says so again
            self._loop_reader = self._watcher = None  # last: if an interrupt comes before, the patrol does it again


def watch_together(
    watches: Sequence[Watch], operation: Operation[object], timeout_s: float | None, quick_waits: QuickWaits
) -> None:
    """Let the calling thread read all of these that nobody else reads, until the operation is done or the time over."""
    if not watches or watches[0]._loop.on_thread:
        return
    thread = threading.get_ident()
    claimed: list[Watch] = []
    try:
        claimed.extend(watch for watch in watches if watch._claim(thread))
        if len(claimed) == len(watches):  # else one that is read elsewhere may be the one that it depends on
            _read_until(claimed, operation, timeout_s, quick_waits)
    finally:  # an interrupt can come at any of these steps
        for watch in watches:
            watch._end_reading(thread)


def _read_until(
    watches: Sequence[Watch],
    operation: Operation[object],
    timeout_s: float | None,
    quick_waits: QuickWaits,
    *,
    may_leave: bool = False,
) -> bool:
    """Read until the operation is done, or the time over. True: the rest is left to the progress thread."""
    waker = waiter.waker
    if waker is None:
        return True
    waker.clear()
    operation.add_callback(waker.wake)
    for watch in watches:
        if watch._interest.reading:
            watch._interest.set_reading(0)
    poller = waiter.poller(waker, [watch._fd for watch in watches])
    timeout_ms = None if timeout_s is None else int(min(timeout_s, MAX_POLL_S) * 1000)
    try:
        while not operation.done and not _any_over(watches):
            ready = _wait_readable(poller, timeout_ms, quick_waits)
            if not ready:
                return False
            waker.clear()
            fds = None if len(watches) == 1 else {fd for fd, _ in ready}
            for watch in watches:
                if operation.done:
                    return False
                if fds is None or watch._fd in fds:
                    watch._connection.read_available()
            if may_leave and not operation.done and watches[0].only_sends:
                return True
        return False
    finally:
        if not operation.done:  # who waits for it may come back many times
            operation.discard_callback(waker.wake)


def _any_over(watches: Sequence[Watch]) -> bool:
    return watches[0]._interest.over if len(watches) == 1 else any(watch._interest.over for watch in watches)


def _wait_readable(poller: Poller, timeout_ms: int | None, quick_waits: QuickWaits) -> list[tuple[int, int]]:
    began = quick_waits.since(threading.get_ident(), time.perf_counter())
    ready: list[tuple[int, int]] = []
    if quick_waits.pay:
        look_s = began + LOOK_S - time.perf_counter()
        ready = poller.look(look_s if timeout_ms is None else min(look_s, timeout_ms / 1000))
    if not ready:
        ready = poller.poll(timeout_ms)
    quick_waits.waited(time.perf_counter() - began)
    return ready
