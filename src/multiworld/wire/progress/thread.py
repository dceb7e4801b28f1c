"""The progress thread: it waits on every descriptor and timer of one manager, so that no user thread has to."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from .loop_reader import LoopReader

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)

MAX_READY = 256  # descriptors told of at once: whatever the number, memory is taken for as many
MAX_SLEEP_S = 3600.0  # epoll refuses more than 24 days, and a deadline may be infinite
PRUNE_AT = 256  # timers


class IOHandler(Protocol):
    """What is told that its descriptor is ready. Level-triggered: a handler that leaves data is called again."""

    def on_ready(self, events: int) -> None: ...

    def on_failure(self, error: BaseException) -> None:
        """``on_ready`` raised: give up this descriptor, and only this one."""

    def close_descriptor(self) -> None:
        """In a forked child: close the child's copy, which would keep the connection open for the peers."""


def weakly(method: Callable[..., None], *args: object) -> Callable[[], None]:
    """Return a call of a method that does not keep its object, for timers: it does nothing once that has gone."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        alive = reference()
        if alive is not None:
            alive(*args)

    return call


class Timer:
    """A scheduled call; ``cancel`` is idempotent and works from any thread."""

    __slots__ = ("at", "callback", "order")

    def __init__(self, at: float, order: int, callback: Callable[[], None]) -> None:
        self.at, self.order = at, order
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None

    def __lt__(self, other: Timer) -> bool:
        return (self.at, self.order) < (other.at, other.order)


class ProgressThread:
    """An epoll loop on a daemon thread. ``call_soon``, ``call_later`` and the registration methods are thread-safe."""

    def __init__(self, name: str, *, starts: bool = True) -> None:
        """``starts=False``: no thread is made. ``run`` makes the calling thread this one, as a host's only one."""
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._handlers: dict[int, IOHandler] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[Timer] = []
        self._timer_lock = threading.Lock()
        self._prune_at = PRUNE_AT
        self._orders = itertools.count()
        self._sleeping = False
        self._stopping = False
        self._loop_readers: dict[asyncio.AbstractEventLoop, LoopReader] = {}
        self._given_up: set[int] = set()  # descriptors, in this turn: events of theirs may still be in the hand
        self._thread = threading.current_thread()
        try:
            self._epoll.register(self._wake_fd, select.EPOLLIN)
            if starts:
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
        except (OSError, RuntimeError):  # there can be no more threads
            self._epoll.close()
            os.close(self._wake_fd)
            raise

    @property
    def on_thread(self) -> bool:
        return threading.current_thread() is self._thread

    @property
    def running(self) -> bool:
        return not self._stopping and self._thread.is_alive()

    @property
    def fd(self) -> int:
        """Readable when the thread has something to read."""
        return self._epoll.fileno()

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the progress thread, in the order of the calls. Dropped once the thread has stopped."""
        self._calls.append(callback)
        self._wake()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(time.monotonic() + delay_s, next(self._orders), callback)
        with self._timer_lock:
            if len(self._timers) >= self._prune_at:
                self._prune_timers()
            heapq.heappush(self._timers, timer)
            first = self._timers[0] is timer
        if first:
            self._wake()
        return timer

    def register(self, fd: int, events: int, handler: IOHandler) -> None:
        """Raises OSError if the descriptor cannot be watched; it is not ours to close then."""
        self._epoll.register(fd, events)  # first: what is ready before the handler is there, is told of again
        self._handlers[fd] = handler

    def modify(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        """Forget a descriptor; call it before closing that. Unknown descriptors are ignored."""
        if self._handlers.pop(fd, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fd)
            self._given_up.add(fd)

    def reader_for(self, loop: asyncio.AbstractEventLoop) -> LoopReader:
        """Return the reader through which this asyncio loop may read connections itself. On the loop's thread only."""
        reader = self._loop_readers.get(loop)
        if reader is None:
            for other in [other for other in self._loop_readers if other.is_closed()]:
                self._loop_readers.pop(other).close()
            reader = self._loop_readers[loop] = LoopReader(loop)
        return reader

    def close_readers(self) -> None:
        """Take the connections back from the asyncio loops, when no operation will be awaited any more."""
        while self._loop_readers:
            _, reader = self._loop_readers.popitem()
            reader.close()

    def run(self) -> None:
        """Be the progress thread until ``stop``. Call ``close`` in the end: until then descriptors stay registered."""
        self._thread = threading.current_thread()
        while not (self._stopping and not self._calls):
            self._turn()

    def stop(self) -> None:
        """Run the calls that were already queued, then end the thread and close its descriptors. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        self._wake(always=True)
        if not self.on_thread:
            self._thread.join()

    def abandon_after_fork(self) -> None:
        """In a forked child: the thread does not exist here; close the child's copies of the descriptors."""
        self._sleeping = False  # nobody is to be woken through a descriptor that may be another file's by then
        self.close()

    def close(self) -> None:
        """Close what is still registered, once ``run`` has returned. Idempotent."""
        self._stopping = True
        handlers, self._handlers = self._handlers, {}  # else one that unregisters, in a child, does so for the parent
        for handler in handlers.values():
            handler.close_descriptor()
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._wake_fd)

    def _wake(self, *, always: bool = False) -> None:
        if (self._sleeping or always) and threading.current_thread() is not self._thread:
            try:
                os.eventfd_write(self._wake_fd, 1)
            except (OSError, ValueError):  # the thread ended between the look and the write; nothing is left to wake
                logger.debug("wake-up of the stopped progress thread %s ignored", self._thread.name)

    def _run(self) -> None:
        try:
            self.run()
        finally:
            self.close()
            self._timers.clear()

    def _turn(self) -> None:
        self._sleeping = True
        timeout = 0.0 if self._calls or self._stopping else self._until_next_timer()
        ready = self._epoll.poll(timeout, MAX_READY)
        self._sleeping = False
        if self._given_up:
            self._given_up.clear()
        for fd, events in ready:
            if fd == self._wake_fd:
                self._clear_wake()
                continue
            if self._given_up and fd in self._given_up:  # its number may be another's by now, who is told again
                continue
            handler = self._handlers.get(fd)
            if handler is not None:
                self._handle(handler, events)
        for _ in range(len(self._calls)):
            self._call(self._calls.popleft())
        self._run_timers()

    def _clear_wake(self) -> None:
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            logger.debug("spurious wake-up")

    def _until_next_timer(self) -> float:
        with self._timer_lock:
            while self._timers and self._timers[0].callback is None:
                heapq.heappop(self._timers)
            return min(max(0.0, self._timers[0].at - time.monotonic()), MAX_SLEEP_S) if self._timers else -1.0

    def _prune_timers(self) -> None:
        """Drop the cancelled ones: most deadlines never come, and long ones would pile up by the million."""
        self._timers = [timer for timer in self._timers if timer.callback is not None]
        heapq.heapify(self._timers)
        self._prune_at = max(PRUNE_AT, 2 * len(self._timers))

    def _run_timers(self) -> None:
        if not self._timers:
            return
        now = time.monotonic()
        while True:
            with self._timer_lock:
                if not self._timers or self._timers[0].at > now:
                    return
                callback = heapq.heappop(self._timers).callback
            if callback is not None:
                self._call(callback)

    def _handle(self, handler: IOHandler, events: int) -> None:
        try:
            handler.on_ready(events)
        except Exception as error:  # one connection's defect must not end the thread that serves all worlds
            logger.exception("connection handler %r failed; it is closed", handler)
            self._call(partial(handler.on_failure, error))

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:  # as above
            logger.exception("callback %r on the progress thread failed", callback)
