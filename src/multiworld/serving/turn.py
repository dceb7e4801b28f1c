"""A turn in which what came is dealt with whole: what is to follow at its end need not be planned on the event loop.

To plan a call and to take it back takes as long as to send a small message, and wakes the loop once more in vain.
"""

from __future__ import annotations

__all__ = ["Turn"]


class Turn:
    """``is_on``: whoever set it looks, before this turn of the loop ends, after all that is due by then."""

    __slots__ = ("is_on",)

    def __init__(self) -> None:
        self.is_on = False
