"""Decides which of the requests that wait at a stage are executed together, and when. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from ..graph import Batch

T = TypeVar("T", bound=Hashable)


class _Entry:
    __slots__ = ("alone", "kind", "rows", "since", "urgent")

    def __init__(self, kind: Hashable, rows: int, since: float, urgent: bool, alone: bool) -> None:
        self.kind, self.rows, self.since, self.urgent, self.alone = kind, rows, since, urgent, alone


class _Lane(Generic[T]):
    """What waits of one kind, oldest first."""

    def __init__(self) -> None:
        self.entries: OrderedDict[T, _Entry] = OrderedDict()
        self.rows = 0
        self.urgent = 0
        """How many entries make the lane's batches go without waiting for more."""


class BatchQueue(Generic[T]):
    """Requests that wait for their execution, oldest first.

    A batch holds requests of one kind, in the order in which they came, of no more than ``max_size`` rows together; one
    request of more rows goes alone. It goes once that many rows wait, or once its oldest request has waited
    ``max_wait_s``. Of several that could go, the one with a request whose waiting is over comes first, so a steady
    stream of full batches of one kind starves no other kind.

    Each call takes constant time per request, however many requests and kinds wait.
    """

    def __init__(self, batch: Batch | None) -> None:
        """``batch`` None: one request at a time, at once."""
        self._batch = batch
        self._all: OrderedDict[T, _Entry] = OrderedDict()
        self._lanes: dict[Hashable, _Lane[T]] = {}
        self._ready: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, item: object) -> bool:
        return item in self._all

    @property
    def rows(self) -> int:
        """How many rows wait; an empty request counts as one row."""
        return sum(entry.rows for entry in self._all.values())

    @property
    def oldest(self) -> float | None:
        """Since when the oldest request has waited."""
        return next(iter(self._all.values())).since if self._all else None

    def put(self, item: T, rows: int, kind: Hashable, *, now: float, urgent: bool = False, alone: bool = False) -> None:
        """Add a request of ``rows`` rows that can be concatenated with others of its ``kind``.

        ``urgent``: its batch waits for nothing more. ``alone``: it is executed without others, at once, because it is
        suspected of killing who executes it. Raises ValueError for an item that waits already.
        """
        if item in self._all:
            raise ValueError(f"{item!r} waits already")
        entry = _Entry(kind, max(rows, 1), now, urgent, alone)
        self._all[item] = entry
        if self._batch is not None:
            self._put_in_lane(item, entry)

    def _put_in_lane(self, item: T, entry: _Entry) -> None:
        kind = entry.kind
        lane = self._lanes.setdefault(kind, _Lane())
        lane.entries[item] = entry
        lane.rows += entry.rows
        lane.urgent += entry.urgent or entry.alone
        self._mark(kind, lane)

    def take(self, *, now: float) -> list[T]:
        """Return the requests to execute now, none if nothing is to go yet. Call it again until it returns none."""
        if self._batch is None:
            return [self._all.popitem(last=False)[0]] if self._all else []
        kind = self._next_kind(now)
        if kind is None:
            return []
        batch = self._head(self._lanes[kind[0]])
        for item in batch:
            self._remove(item)
        return batch

    def due(self) -> float | None:
        """Return when ``take`` returns a batch if nothing else comes: the past for at once, None for never."""
        if not self._all:
            return None
        since = next(iter(self._all.values())).since
        return since if self._batch is None or self._ready else since + self._batch.max_wait_s

    def drop(self, item: T) -> bool:
        """Forget a request, cancelled or past its deadline; return whether it waited."""
        if item not in self._all:
            return False
        self._remove(item)
        return True

    def accompany(self, item: T) -> None:
        """It need not be executed alone any more."""
        entry = self._all.get(item)
        if entry is None or not entry.alone:
            return
        entry.alone = False
        if self._batch is not None and not entry.urgent:
            lane = self._lanes[entry.kind]
            lane.urgent -= 1
            self._mark(entry.kind, lane)

    def tune(self, batch: Batch | None) -> None:
        """Form batches by other bounds from now on, also of what waits already."""
        self._batch = batch
        self._ready.clear()
        self._lanes.clear()
        for item, entry in self._all.items() if batch is not None else ():
            self._put_in_lane(item, entry)

    def _next_kind(self, now: float) -> tuple[Hashable] | None:
        """Return a kind whose batch is to go, in a tuple because a kind may be None."""
        if not self._all:
            return None
        assert self._batch is not None
        oldest = next(iter(self._all.values()))
        if now >= oldest.since + self._batch.max_wait_s:
            return (oldest.kind,)
        return (next(iter(self._ready)),) if self._ready else None

    def _head(self, lane: _Lane[T]) -> list[T]:
        batch: list[T] = []
        assert self._batch is not None
        room = self._batch.max_size
        for item, entry in lane.entries.items():
            if batch and (entry.alone or entry.rows > room):
                break
            batch.append(item)
            room -= entry.rows
            if entry.alone or room <= 0:
                break
        return batch

    def _remove(self, item: T) -> None:
        entry = self._all.pop(item)
        if self._batch is None:
            return
        lane = self._lanes[entry.kind]
        del lane.entries[item]
        lane.rows -= entry.rows
        lane.urgent -= entry.urgent or entry.alone
        if not lane.entries:
            del self._lanes[entry.kind]
        self._mark(entry.kind, lane)

    def _mark(self, kind: Hashable, lane: _Lane[T]) -> None:
        """Keep the kinds whose next batch waits for nothing, those that came to that first in front."""
        assert self._batch is not None
        if lane.entries and (lane.urgent or lane.rows >= self._batch.max_size):
            self._ready.setdefault(kind)
        else:
            self._ready.pop(kind, None)
