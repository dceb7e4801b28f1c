"""Whether requests that wait are a queue that stands or one that passes, and so whether more are taken in. Pure.

As CoDel tells the two apart (RFC 8289): by how long the wait has been above a target without a break, not by how long
it is. While one of a stage's replicas is silent until it is replaced, the others have too much to do for some seconds,
and what waits is answered soon after. Of an overload there is no end, and each moment of patience makes it longer for
all who come after: so patience has to be earned again once it has come to nothing.
"""

from __future__ import annotations

import math
from typing import Final

LONG_S: Final = 4.0
"""To notice that a replica stands still (2 s), to replace it, and to catch up."""
LONGEST: Final = 4.0
"""A newcomer waits for no more than so many times the target."""
CALM_S: Final = 10.0
"""So long after the last refusal there is patience again."""


class Patience:
    """Of one gateway. ``target_s``: a wait that nobody need excuse."""

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._above_since: float | None = None
        self._refused_at = -math.inf

    def allows(self, waited_s: float, *, ahead: int, per_s: float | None, now: float) -> bool:
        """Return whether one more may wait.

        ``waited_s``: how long the first that waits has waited. ``ahead``: how many are to be answered before a
        newcomer, and ``per_s`` how quickly, None if nobody knows.
        """
        if waited_s <= self._target_s:
            self._above_since = None
            return True
        if self._above_since is None:
            self._above_since = now - (waited_s - self._target_s)
        is_short = now - self._above_since <= LONG_S and now - self._refused_at > CALM_S
        if is_short and per_s is not None and ahead <= LONGEST * self._target_s * per_s:
            return True
        self._refused_at = now
        return False
