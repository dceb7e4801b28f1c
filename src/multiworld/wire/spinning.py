"""Whether to look again and again for a moment instead of going to sleep. Pure: no clock.

Going to sleep and being woken costs two processes that answer each other at once several times what their messages do.
So who waits looks for up to ``SPIN_S`` first, but only while the last waits were that short: a peer that computes, and
cores that are scarcer than busy processes, make waits long, and end it.
"""

from __future__ import annotations

__all__ = ["SPIN_S", "QuickWaits"]

SPIN_S = 100e-6
QUICK_S = 200e-6  # with the wake-ups of both sides, while they still sleep
MIN_STREAK = 4


class QuickWaits:
    """How the last waits for one peer went."""

    __slots__ = ("_streak",)

    def __init__(self) -> None:
        self._streak = 0

    @property
    def pay(self) -> bool:
        """Whether the next wait is likely to end before it would have been worth a sleep."""
        return self._streak >= MIN_STREAK

    def waited(self, seconds: float) -> None:
        self._streak = self._streak + 1 if seconds < QUICK_S else 0
