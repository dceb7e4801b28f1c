"""What one replica holds of one sender, what credit it has left, and how quick it has been lately. Pure."""

from __future__ import annotations

import math
from typing import Final

SMOOTHING: Final = 0.1  # of the latency, per answer
FIRST_LATENCY_S: Final = 0.01  # before the first answer


class Held:
    """One item there. ``rank``: how many it had to do then, this one counted."""

    __slots__ = ("rank", "sent_at", "size_bytes")

    def __init__(self, sent_at: float, size_bytes: int, rank: int) -> None:
        self.sent_at, self.size_bytes, self.rank = sent_at, size_bytes, rank


class Holder:
    """``held``: by key, in the order in which they were sent; ``executed``: what of that it has done, and still keeps.

    ``started``: what it says that it executes alone. ``closed``: it is offered nothing new.
    """

    __slots__ = (
        "closed", "executed", "held", "held_bytes", "latency_s", "name", "progress_at", "started", "suspect", "window",
    )  # fmt: skip

    def __init__(self, name: str, window: int, now: float) -> None:
        self.name, self.window = name, window
        self.held: dict[bytes, Held] = {}
        self.held_bytes = 0
        self.executed: set[bytes] = set()
        self.started: set[bytes] = set()
        self.latency_s = FIRST_LATENCY_S
        self.progress_at = now
        self.closed = False
        self.suspect = False

    @property
    def in_flight(self) -> int:
        """How many it has still to do."""
        return len(self.held) - len(self.executed)

    @property
    def oldest_at(self) -> float:
        """When the oldest item that it holds was sent; inf if it holds none."""
        return next(iter(self.held.values())).sent_at if self.held else math.inf

    def has_credit(self, size_bytes: int, max_bytes: int) -> bool:
        """Return whether it may have one item more; a single one may be larger than all its credit."""
        return len(self.held) < self.window and (not self.held or self.held_bytes + size_bytes <= max_bytes)

    def hold(self, key: bytes, size_bytes: int, now: float) -> None:
        """It is sent an item, or the same once more, which is the last then."""
        self.drop(key)
        self.held[key] = Held(now, size_bytes, self.in_flight + 1)
        self.held_bytes += size_bytes

    def drop(self, key: bytes) -> Held | None:
        """It has an item no more; return what it was, unless it did not hold it."""
        held = self.held.pop(key, None)
        if held is not None:
            self.held_bytes -= held.size_bytes
            self.started.discard(key)
            self.executed.discard(key)
        return held

    def done(self, key: bytes, now: float) -> float | None:
        """It has executed an item. Return how long after that was sent; None: that was known, or is of no item here."""
        held = self.held.get(key)
        if held is None or key in self.executed:
            return None
        self.executed.add(key)
        self.progress_at = now
        latency_s = now - held.sent_at
        self.latency_s += SMOOTHING * (latency_s / held.rank - self.latency_s)
        return latency_s

    def statistics(self) -> dict[str, float]:
        """Return what is known of it."""
        return {
            "in_flight": len(self.held),
            "executed": len(self.executed),
            "window": self.window,
            "latency_s": self.latency_s,
            "suspect": self.suspect,
        }
