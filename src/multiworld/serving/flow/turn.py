"""A turn in which what came is dealt with whole: what is to follow at its end need not be planned on the event loop.

To plan a call and to take it back takes as long as to send a small message, and wakes the loop once more in vain.
"""

from __future__ import annotations

from collections.abc import Callable


class Turn:
    """``is_on``: whoever set it looks, before this turn of the loop ends, after all that is due by then.

    ``flush`` sends what is due by then earlier: as soon as there is no more to come.
    """

    __slots__ = ("_flush", "is_on")

    def __init__(self, flush: Callable[[], None] | None = None) -> None:
        self._flush = flush
        self.is_on = False

    def flush(self) -> None:
        if self.is_on and self._flush is not None:
            self._flush()
