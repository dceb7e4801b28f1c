"""Hand events to whoever subscribed: asyncio iterators, each on its own loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Generic, TypeVar

__all__ = ["Broadcaster", "Subscription"]

E = TypeVar("E")
MAX_UNREAD = 10_000


class Subscription(Generic[E]):
    """An async iterator over what is published after it was made; it ends when the broadcaster closes.

    A reader that falls more than ``MAX_UNREAD`` behind loses the oldest.
    """

    def __init__(self, broadcaster: Broadcaster[E]) -> None:
        self._broadcaster = broadcaster
        self._unread: deque[E] = deque(maxlen=MAX_UNREAD)
        self._closed = False
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
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
                future: asyncio.Future[None] = loop.create_future()
                self._waiter = (loop, future)
            await future

    async def aclose(self) -> None:
        """Stop listening."""
        self._broadcaster.remove(self)
        self.close()

    def publish(self, event: E) -> None:
        with self._lock:
            self._unread.append(event)
            waiter, self._waiter = self._waiter, None
        _wake(waiter)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            waiter, self._waiter = self._waiter, None
        _wake(waiter)


class Broadcaster(Generic[E]):
    """Publishes from any thread."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription[E]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def subscribe(self) -> Subscription[E]:
        subscription = Subscription(self)
        with self._lock:
            if self._closed:
                subscription.close()
            else:
                self._subscriptions.add(subscription)
        return subscription

    def remove(self, subscription: Subscription[E]) -> None:
        with self._lock:
            self._subscriptions.discard(subscription)

    def publish(self, event: E) -> None:
        with self._lock:
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.publish(event)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            subscriptions, self._subscriptions = self._subscriptions, set()
        for subscription in subscriptions:
            subscription.close()


def _wake(waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None) -> None:
    if waiter is None:
        return
    loop, future = waiter
    try:
        loop.call_soon_threadsafe(_set, future)
    except RuntimeError:
        return  # the loop was closed with its readers


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
