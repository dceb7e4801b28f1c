"""What the page shows, taken on the agent's progress thread now and then, and kept for all who look at it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...wire.progress import ProgressThread

__all__ = ["Snapshot", "Snapshots"]

MAX_AGE_S = 0.25  # so that many who look cost the agent no more than one
TAKE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The job at one moment. ``events``: the last ones; ``last_number``: the number of the last one that there was."""

    status: Mapping[str, Any]
    events: tuple[Mapping[str, Any], ...]
    last_number: int
    counts: Mapping[str, int]
    status_json: str = ""
    version: int = 0
    """How many changes were known before it was taken."""

    def events_since(self, number: int) -> tuple[Mapping[str, Any], ...]:
        """Return those with higher numbers, as far as they are kept."""
        return tuple(event for event in self.events if event["number"] > number)


class Snapshots:
    """``take`` is called on the progress thread, and returns None once there is nothing to show any more."""

    def __init__(self, loop: ProgressThread, take: Callable[[], Snapshot | None]) -> None:
        self._loop, self._take = loop, take
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._num_changes = 0
        self._last: Snapshot | None = None
        self._taken_at = -1.0
        self._closed = False

    def latest(self) -> Snapshot | None:
        """Return one that is hardly old; None if there is none any more. Any thread but the progress thread."""
        with self._lock:
            if self._closed:
                return None
            if time.monotonic() - self._taken_at < MAX_AGE_S:
                return self._last
            taken: list[Snapshot | None] = []
            version = self._num_changes
            done = threading.Event()

            def take() -> None:
                try:
                    taken.append(self._take())
                finally:
                    done.set()

            self._loop.call_soon(take)
            if done.wait(TAKE_S) and taken:
                snapshot = taken[0]
                if snapshot is not None:
                    text = json.dumps(snapshot.status, separators=(",", ":"))
                    snapshot = replace(snapshot, status_json=text, version=version)
                self._last, self._taken_at = snapshot, time.monotonic()
            return None if self._closed else self._last  # closed while this one was taken, perhaps

    def wait_for_change(self, version: int, timeout_s: float) -> None:
        """Wait until more has happened than a snapshot of that version shows, or for so long; then look again."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_changes != version or self._closed, timeout_s)
            fresh_s = self._taken_at + MAX_AGE_S - time.monotonic()
            self._changed.wait_for(lambda: self._closed, max(0.0, fresh_s))

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

    @property
    def closed(self) -> bool:
        return self._closed
