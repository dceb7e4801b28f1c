"""Whether to look again and again for a moment instead of going to sleep. Pure: no clock.

Going to sleep and being woken costs two processes that answer each other at once several times what their messages do.
So who waits looks for up to ``LOOK_S`` first, but only while the last waits were short: a peer that computes, and
cores that are scarcer than busy processes, make waits long, and end it. Short is what may well be shorter without the
wake-ups: that can only be tried, so a row of tries in vain ends it too, for a while.

``SPIN_S`` is for those who look in Python: other threads of the process would have to wait for them.
"""

from __future__ import annotations

from ... import native

SPIN_S = 200e-6  # on an idle machine a peer that still sleeps is awake and has answered before that
LOOK_S = SPIN_S if native.core is None else 1e-3  # and on a busy one before that
QUICK = 2.5  # times as long as it is looked: with the wake-ups of both sides, while they still sleep
MIN_STREAK = 4
MAX_MISSES = 8  # the peer may be asleep at the first of them, and has to find out itself
REST = 100  # quick waits until it is tried again


class QuickWaits:
    """How the last waits for one peer went."""

    __slots__ = ("_looked", "_misses", "_quick_s", "_spin_s", "_streak")

    def __init__(self, spin_s: float = LOOK_S, quick_s: float | None = None) -> None:
        """``spin_s``: for how long it is looked. ``quick_s``: waits up to that are short, wake-ups included.

        Default: ``QUICK`` times that.
        """
        self._spin_s, self._quick_s = spin_s, QUICK * spin_s if quick_s is None else quick_s
        self._streak = 0
        self._misses = 0
        self._looked: tuple[int, float] | None = None  # who did in vain, and when that began

    @property
    def pay(self) -> bool:
        """Whether the next wait is likely to end before it would have been worth a sleep."""
        return self._streak >= MIN_STREAK

    def look(self) -> None:
        """Read what has come, if the calling thread may and can do so faster than by going round its loop."""

    def looked_in_vain(self, who: int, began: float) -> None:
        """A thread looked elsewhere in vain, and is about to wait here: ``since`` says since when."""
        if self._looked is not None:
            self.waited(self._spin_s)  # that one waited elsewhere, nobody knows for how long
        self._looked = who, began

    def since(self, who: int, now: float) -> float:
        """Return when the wait began that this thread goes on with."""
        looked = self._looked
        if looked is None or looked[0] != who:
            return now
        self._looked = None
        if now - looked[1] < self._quick_s:
            return looked[1]
        self.waited(self._spin_s)  # that one went on elsewhere
        return now

    def waited(self, seconds: float, spin_s: float | None = None) -> None:
        """``spin_s``: for how long it was looked. Default: as the constructor was told."""
        if self.pay:
            self._misses = 0 if seconds < (self._spin_s if spin_s is None else spin_s) else self._misses + 1
        if self._misses >= MAX_MISSES:  # threads may have counted at once
            self._misses, self._streak = 0, -REST
        elif seconds < self._quick_s:
            self._streak += 1
        else:
            self._streak = min(0, self._streak)
