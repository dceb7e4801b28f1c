"""Decide which requests are tried again, how often, and how much of a stage's work at once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar

from .latencies import Latencies

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


class Attempted(Protocol):
    """A request without its answer. ``attempt`` counts from 1; ``sent_at``: when the last one began."""

    id: bytes
    attempt: int
    sent_at: float


R = TypeVar("R", bound=Attempted)


class Retries(Generic[R]):
    """Which of a gateway's ``open`` requests it sends again from the start, as they were lost on their way."""

    def __init__(self, open_: Mapping[bytes, R], latencies: Latencies, *, may_lose_held: bool = False) -> None:
        """``may_lose_held``: what the first stage has still in hand for one branch may be lost in another one."""
        self._open, self._latencies, self._may_lose_held = open_, latencies, may_lose_held
        self.num_retried = 0
        self._recheck: list[tuple[float, float]] = []  # when, and for what was opened before
        self._waiting: set[bytes] = set()
        """What was at the entry when it was looked at last because of a loss."""

    def replica_lost(self, *, now: float) -> None:
        """A replica is gone. Two at once may have taken the only copies of a result with them: look again soon."""
        self._recheck.append((now + self._latencies.patience_s, now))

    def to_retry(self, *, now: float, held: Callable[[bytes], bool] = lambda _: False) -> list[R]:
        """Return the requests that should have been answered since a loss, and are to be sent again from the start.

        ``held``: says of an id whether the request is still in flight at the entry, so that nothing of it can be lost,
        unless the first stage feeds several: then it is looked at again until a while after it has gone on from there.
        """
        due = [before for at, before in self._recheck if at <= now]
        if not due:
            return []
        self._recheck = [(at, before) for at, before in self._recheck if at > now]
        before = max(due)
        late = [request for request in self._open.values() if request.sent_at <= before]
        waiting = {request.id for request in late if held(request.id)}
        if self._may_lose_held:
            waiting_before, self._waiting = self._waiting, waiting
            waiting = waiting.union(request.id for request in late if request.id in waiting_before)
            if waiting:
                self._recheck.append((now + self._latencies.patience_s, before))
        return [request for request in late if request.id not in waiting and self.may_retry(request, now=now)]

    def may_retry(self, request: R, *, now: float) -> bool:
        """Count another attempt, and return whether it may be made."""
        if request.attempt >= MAX_ATTEMPTS:
            return False
        request.attempt += 1
        request.sent_at = now
        self.num_retried += 1
        return True


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
