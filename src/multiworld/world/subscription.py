"""Hand events to subscribers: asyncio iterators, each on its own loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from typing import Generic, TypeVar

E = TypeVar("E")
Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]
MAX_UNREAD = 10_000


class Subscription(Generic[E]):
    """An async iterator over what is published after it was made; it ends when the broadcaster closes.

    A reader that falls more than ``MAX_UNREAD`` behind loses the oldest.
    """

    def __init__(self, broadcaster: Broadcaster[E]) -> None:
        self._broadcaster = broadcaster
        self._unread: deque[E] = deque(maxlen=MAX_UNREAD)
        self._closed = False
        self._waiters: list[Waiter] = []
        self._lock = threading.Lock()

    def __aiter__(self) -> Subscription[E]:
        return self

    async def __anext__(self) -> E:
        while True:
            with self._lock:
                if self._unread:
                    return self._unread.popleft()
                if self._closed:
                    raise StopAsyncIteration
                loop = asyncio.get_running_loop()
                waiter = (loop, loop.create_future())
                self._waiters.append(waiter)
                self._broadcaster.keep(self)  # a task that waits is held by what will wake it alone
            try:
                await waiter[1]
            finally:
                self._stop_waiting(waiter)

    def _stop_waiting(self, waiter: Waiter) -> None:
        with self._lock:
            if waiter in self._waiters:  # it was cancelled
                self._waiters.remove(waiter)
            if not self._waiters:
                self._broadcaster.keep(self, keep=False)

    async def aclose(self) -> None:
        """Stop listening."""
        self._broadcaster.remove(self)
        self.close()

    def publish(self, event: E) -> None:
        with self._lock:
            self._unread.append(event)
            waiters, self._waiters = self._waiters, []
        _wake(waiters)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            waiters, self._waiters = self._waiters, []
        _wake(waiters)


class Broadcaster(Generic[E]):
    """Publishes from any thread."""

    def __init__(self) -> None:
        self._subscriptions: weakref.WeakSet[Subscription[E]] = weakref.WeakSet()  # nobody need close what they drop
        self._awaited: set[Subscription[E]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def subscribe(self) -> Subscription[E]:
        subscription = Subscription(self)
        with self._lock:
            is_late = self._closed
            if not is_late:
                self._subscriptions.add(subscription)
        if is_late:
            subscription.close()
        return subscription

    def remove(self, subscription: Subscription[E]) -> None:
        with self._lock:
            self._subscriptions.discard(subscription)
            self._awaited.discard(subscription)

    def keep(self, subscription: Subscription[E], *, keep: bool = True) -> None:
        """Hold it, or only as long as others do."""
        with self._lock:
            if keep and not self._closed:
                self._awaited.add(subscription)
            else:
                self._awaited.discard(subscription)

    def publish(self, event: E) -> None:
        with self._lock:
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.publish(event)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            subscriptions = list(self._subscriptions)
            self._subscriptions.clear()
            self._awaited.clear()
        for subscription in subscriptions:
            subscription.close()


def _wake(waiters: list[Waiter]) -> None:
    for loop, future in waiters:
        with contextlib.suppress(RuntimeError):  # the loop was closed with its readers
            loop.call_soon_threadsafe(_set, future)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
