"""Decides how often a request is tried again, and how much of a stage's work at once. Pure."""

from __future__ import annotations

from typing import Final

MAX_ATTEMPTS: Final = 3
"""How often a gateway sends one request through the pipeline from the start, the first time included."""
MAX_DEATHS: Final = 2
"""A request is refused once so many replicas have died while they executed it."""
MAX_REPLAYS: Final = 8
"""How often a generation is started over for one token whose state was lost."""

REPLAY_SHARE: Final = 0.2
REPLAY_ALLOWANCE: Final = 16
HALVED_AT: Final = 4096
"""The counts of a budget are halved after so many items, so that it follows the present load."""


class ReplayBudget:
    """How many items one sender may try elsewhere while their replica is suspect: a share of those that it sends.

    Without a bound, a slow stage would get its work several times over, and become slower. The form is that of a retry
    budget (Google, "Site Reliability Engineering", chapter 21).
    """

    def __init__(self) -> None:
        self._num_sent = self._num_replayed = 0.0

    def sent(self) -> None:
        """An item went to a replica. Each item adds to what may be replayed."""
        self._num_sent += 1
        if self._num_sent > HALVED_AT:
            self._num_sent /= 2
            self._num_replayed /= 2

    def take(self) -> bool:
        """Take one replay from the budget; False: there is none left."""
        if self._num_replayed >= REPLAY_SHARE * self._num_sent + REPLAY_ALLOWANCE:
            return False
        self._num_replayed += 1
        return True


def check_max_replays(max_replays: int) -> int:
    """Return ``max_replays``. Raises ValueError for less than 0."""
    if max_replays < 0:
        raise ValueError(f"max_replays must be at least 0, got {max_replays!r}")
    return max_replays
