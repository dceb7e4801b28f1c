"""The last snapshot of something, taken on a progress thread now and then, and kept for all who look at it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from ..wire.progress.thread import ProgressThread

MAX_AGE_S = 0.25  # so that many who look cost the progress thread no more than one
TAKE_S = 2.0

T = TypeVar("T")


class Snapshots(Generic[T]):
    """``take`` is called on the progress thread, and returns None once there is nothing to show any more."""

    def __init__(self, loop: ProgressThread, take: Callable[[], T | None]) -> None:
        self._loop, self._take = loop, take
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._num_changes = 0
        self._last: T | None = None
        self._version = 0
        self._taken_at = -1.0
        self._closed = False

    def latest(self) -> T | None:
        """Return one that is hardly old; None if there is none any more. Any thread but the progress thread."""
        return self._look()[0]

    def follow(self, look_s: float) -> Iterator[T]:
        """Yield one now, one after each change, and one each ``look_s`` seconds, until there is none any more."""
        snapshot, version = self._look()
        while snapshot is not None:
            yield snapshot
            self._wait_for_change(version, look_s)
            snapshot, version = self._look()

    def changed(self) -> None:
        """Something has happened. Any thread."""
        with self._changed:
            self._num_changes += 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._last = None
            self._changed.notify_all()

    def _look(self) -> tuple[T | None, int]:
        """Return a snapshot, and how many changes were known before it was taken."""
        with self._lock:
            if self._closed:
                return None, 0
            if time.monotonic() - self._taken_at < MAX_AGE_S:
                return self._last, self._version
            taken: list[T | None] = []
            version = self._num_changes
            done = threading.Event()

            def take() -> None:
                try:
                    taken.append(self._take())
                finally:
                    done.set()

            self._loop.call_soon(take)
            if done.wait(TAKE_S) and taken:
                self._last, self._version, self._taken_at = taken[0], version, time.monotonic()
            last = None if self._closed else self._last  # closed while this one was taken, perhaps
            return last, self._version

    def _wait_for_change(self, version: int, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._num_changes != version or self._closed, timeout_s)
            fresh_s = self._taken_at + MAX_AGE_S - time.monotonic()
            self._changed.wait_for(lambda: self._closed, max(0.0, fresh_s))
