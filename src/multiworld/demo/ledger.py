"""Decide which requests are unanswered, which replica holds each one, and what to send again. Pure: no clock or IO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Assignment", "ReplicaLedger", "RequestLedger"]


class RequestLedger:
    """The front's book: numbers the requests, bounds how many are open, and lets each be answered once."""

    def __init__(self, *, window: int, deadline_s: float) -> None:
        if window < 1:
            raise ValueError(f"the window must hold at least one request, got {window}")
        if deadline_s <= 0:
            raise ValueError(f"deadline_s must be positive, got {deadline_s}")
        self._window, self._deadline_s = window, deadline_s
        self._due: dict[int, float] = {}  # all deadlines are equally long, so insertion order is deadline order
        self.num_sent = 0
        self.num_answered = 0
        self.num_replayed = 0
        self.num_discarded = 0

    @property
    def unanswered(self) -> frozenset[int]:
        """The ids of the open requests."""
        return frozenset(self._due)

    @property
    def has_room(self) -> bool:
        """Whether the window lets one more request out."""
        return len(self._due) < self._window

    def open(self, *, now: float) -> int:
        """Return the id of a new request; ids count up from 0."""
        if not self.has_room:
            raise ValueError(f"the window is full: {len(self._due)} of {self._window} requests are open")
        request = self.num_sent
        self.num_sent += 1
        self._due[request] = now + self._deadline_s
        return request

    def answer(self, request: int) -> bool:
        """Return whether this is the first answer; a later one, the echo of a replay, is to be discarded."""
        if not 0 <= request < self.num_sent:
            raise ValueError(f"request {request} was never sent; {self.num_sent} were")
        if request not in self._due:
            self.num_discarded += 1
            return False
        del self._due[request]
        self.num_answered += 1
        return True

    def next_deadline(self) -> float | None:
        """Return when the oldest open request becomes overdue, or None without one."""
        return next(iter(self._due.values()), None)

    def take_overdue(self, *, now: float) -> list[int]:
        """Return the requests whose deadline has passed; each gets a new one and is to be sent again."""
        overdue = [request for request, due in self._due.items() if due <= now]
        for request in overdue:
            del self._due[request]
            self._due[request] = now + self._deadline_s
        self.num_replayed += len(overdue)
        return overdue


@dataclass(frozen=True)
class Assignment:
    """Send this request to that replica now."""

    request: int
    replica: str


class ReplicaLedger:
    """The splitter's book: which replica holds which unanswered request, and where those of a lost replica go."""

    def __init__(self, replicas: Sequence[str]) -> None:
        if not replicas or len(set(replicas)) != len(replicas):
            raise ValueError(f"replicas must be distinct and at least one, got {list(replicas)}")
        self._held: dict[str, dict[int, None]] = {
            replica: {} for replica in replicas
        }  # dicts keep the order of arrival
        self._up: set[str] = set()
        self._waiting: dict[int, None] = {}  # no replica was up to take these
        self.num_replayed = 0

    def holder(self, request: int) -> str | None:
        """Return the replica that holds the request, or None if it waits for one or has been answered."""
        return next((replica for replica, held in self._held.items() if request in held), None)

    def is_open(self, request: int) -> bool:
        """Return whether the request is still unanswered, as far as this side has heard."""
        return request in self._waiting or self.holder(request) is not None

    def assign(self, request: int) -> Assignment | None:
        """Give the request to the replica that holds fewest; None while no replica is up.

        A request that is held already was replayed by the front: it moves to another replica if one is up.
        """
        holder = self.holder(request)
        if holder is not None:
            self.num_replayed += 1
            del self._held[holder][request]
        self._waiting.pop(request, None)
        candidates = [replica for replica in self._held if replica in self._up]
        if not candidates:
            self._waiting[request] = None
            return None
        replica = min(candidates, key=lambda name: (name == holder, len(self._held[name])))
        self._held[replica][request] = None
        return Assignment(request, replica)

    def answered(self, requests: Iterable[int]) -> None:
        """Forget requests that reached the front; unknown ones were forgotten before."""
        for request in requests:
            self._waiting.pop(request, None)
            for held in self._held.values():
                held.pop(request, None)

    def up(self, replica: str) -> list[Assignment]:
        """Let a replica take load from now on; return what waited for one."""
        self._check(replica)
        self._up.add(replica)
        return list(self._assign_all(list(self._waiting)))

    def down(self, replica: str) -> list[Assignment]:
        """Take a lost replica's requests away from it; return where they go instead, oldest first."""
        self._check(replica)
        self._up.discard(replica)
        orphans = list(self._held[replica])
        self._held[replica].clear()
        self._waiting.update(dict.fromkeys(orphans))
        self.num_replayed += len(orphans)
        return list(self._assign_all(orphans))

    def _assign_all(self, requests: list[int]) -> Iterator[Assignment]:
        for request in requests:
            assignment = self.assign(request)
            if assignment is not None:
                yield assignment

    def _check(self, replica: str) -> None:
        if replica not in self._held:
            raise ValueError(f"unknown replica {replica!r}; there are {list(self._held)}")
