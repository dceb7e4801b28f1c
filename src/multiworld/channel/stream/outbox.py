"""Decide when what we send to one peer may go. Pure: no socket, clock, thread or tensor.

Small messages travel at once (*eager*), within a window of bytes that the receiver has not yet consumed. A large one
waits until the receiver has given a *credit* on its tag, so that its payload is read straight into the caller's memory;
without one it is only *announced*. So is a small one that the window has no room for: it goes when there is room, or on
a credit if one comes sooner. Which credits there are is for the receiver's ``inbox`` to decide.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Final, Generic, TypeVar

WINDOW_BYTES: Final = 8 * 1024 * 1024

S = TypeVar("S")  # the shell's send


class Route(Enum):
    """How a message travels now."""

    EAGER = "at once, within the window"
    CREDITED = "at once, on a credit"
    ANNOUNCED = "its header first, its payload when a credit comes"


class Outbox(Generic[S]):
    """What we may send to one peer: eager window, credits by tag, and messages that wait for one."""

    def __init__(self, *, eager_bytes: int, window_bytes: int = WINDOW_BYTES) -> None:
        self._eager_bytes = eager_bytes
        self._window_bytes = window_bytes
        self._unconsumed_bytes = 0
        self._credits: dict[int, int] = {}
        # By number, in order. A plain dict is slow to find its first one when many before it were taken out.
        self._announced: dict[int, OrderedDict[int, S]] = {}  # by tag first
        self._small: OrderedDict[int, tuple[int, int]] = OrderedDict()  # tag, size of those that only need the window
        self._next_seq = 1

    def issue(self, tag: int, size_bytes: int, send: S) -> tuple[int, Route]:
        """Number a message and decide how it goes."""
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        if self.allows_eager(size_bytes):
            self._unconsumed_bytes += size_bytes
            return seq, Route.EAGER
        if not self._announced.get(tag) and self._take_credit(tag):
            return seq, Route.CREDITED
        self._announced.setdefault(tag, OrderedDict())[seq] = send
        if size_bytes <= self._eager_bytes:
            self._small[seq] = tag, size_bytes
        return seq, Route.ANNOUNCED

    @property
    def waits_for_window(self) -> bool:
        """Whether announced messages only need room in the window."""
        return bool(self._small)

    def allows_eager(self, size_bytes: int) -> bool:
        """Whether a message of that size may go at once."""
        return size_bytes <= self._eager_bytes and self._unconsumed_bytes + size_bytes <= self._window_bytes

    def issue_eager(self, size_bytes: int) -> int:
        """Number a message that goes at once, as the window allows."""
        self._unconsumed_bytes += size_bytes
        seq = self._next_seq
        self._next_seq = seq + 1
        return seq

    def credit(self, tag: int) -> S | None:
        """A credit came. Return the announced message that goes now; else it is kept for the next."""
        waiting = self._announced.get(tag)
        if not waiting:
            self._credits[tag] = self._credits.get(tag, 0) + 1
            return None
        return self._take(tag, next(iter(waiting)))

    def recall(self, tag: int) -> int:
        """The receiver wants the credits of this tag back. Return how many there are."""
        return self._credits.pop(tag, 0)

    def consumed(self, size_bytes: int) -> list[S]:
        """So many bytes have left the window. Return the announced messages that go now, as there is room for them."""
        self._unconsumed_bytes = max(0, self._unconsumed_bytes - size_bytes)
        going = []
        while self._small:
            seq, (tag, room) = next(iter(self._small.items()))
            if self._unconsumed_bytes + room > self._window_bytes:
                break
            self._unconsumed_bytes += room
            going.append(self._take(tag, seq))
        return going

    def withdraw(self, seq: int) -> S | None:
        """Take an announced message back, if its payload has not been called for."""
        for tag, waiting in self._announced.items():
            if seq in waiting:
                return self._take(tag, seq)
        return None

    def withdraw_all(self) -> list[S]:
        """Take all announced messages back."""
        sends = [send for waiting in self._announced.values() for send in waiting.values()]
        self._announced.clear()
        self._small.clear()
        return sends

    def _take(self, tag: int, seq: int) -> S:
        """It is no longer announced."""
        self._small.pop(seq, None)
        waiting = self._announced[tag]
        send = waiting.pop(seq)
        if not waiting:
            del self._announced[tag]
        return send

    def _take_credit(self, tag: int) -> bool:
        credits = self._credits.get(tag, 0)
        if not credits:
            return False
        if credits == 1:
            del self._credits[tag]
        else:
            self._credits[tag] = credits - 1
        return True
