"""The streams of a node among each other: one waits for a tensor that another makes, and frees wait for all."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from ..protocol.records import Passed
from .table import Table


class Stream(Protocol):
    """``position``: how many of its records were executed."""

    @property
    def position(self) -> int: ...


class Release(NamedTuple):
    """Ids that are freed once each of the streams is where ``passed`` says."""

    ids: tuple[int, ...]
    passed: tuple[Passed, ...]


class Streams:
    """``awaited``: ids that a stream waits for. Each stream looks at it behind each record, so it is never replaced.

    ``beginning``: held by a stream that must remain the only one; each new stream takes it before its first record.

    No wait goes round in a circle: who is waited for was issued by the master before the one that waits.
    """

    def __init__(self, table: Table) -> None:
        self.awaited: list[int] = []
        self.releases: list[Release] = []
        self.beginning = threading.Lock()
        self._table = table
        self._changed = threading.Condition()  # guards the lines above and below
        self._open: dict[int, Stream] = {}
        self._freed: set[int] = set()  # of those that are awaited
        self._num_ended = 0
        self._is_over = False

    @property
    def is_only_one(self) -> bool:
        """Whether one stream is open, or none."""
        with self._changed:
            return len(self._open) < 2

    @property
    def num_executed(self) -> int:
        """How many records all streams have executed."""
        with self._changed:
            return self._num_ended + sum(stream.position for stream in self._open.values())

    def begin(self, number: int, stream: Stream) -> None:
        with self._changed:
            self._open[number] = stream

    def end(self, number: int) -> None:
        """A stream has executed all that it will get."""
        with self._changed:
            self._num_ended += self._open.pop(number).position
            self._free_passed()
            self._changed.notify_all()

    def end_all(self) -> None:
        """Nothing is executed any more: nobody waits for it."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait_made(self, id_: int) -> bool:
        """Block until an id is in the table. False: it will not be, as no other stream is left, or all has ended."""
        with self._changed:
            self.awaited.append(id_)  # before the look into the table: the stream that makes it looks in this order
            try:
                while id_ not in self._table:
                    if self._is_over or len(self._open) < 2 or id_ in self._freed:
                        return False
                    self._changed.wait()
            finally:
                self.awaited.remove(id_)
                if id_ not in self.awaited:
                    self._freed.discard(id_)
        return True

    def tell_made(self) -> None:
        """Wake those who wait for what is in the table now."""
        with self._changed:
            if any(id_ in self._table for id_ in self.awaited):
                self._changed.notify_all()

    def free(self, ids: Iterable[int]) -> None:
        for id_ in ids:
            self._table.pop(id_, None)
            if id_ in self.awaited:  # the master must not do this
                with self._changed:
                    self._freed.add(id_)
                    self._changed.notify_all()

    def release(self, ids: tuple[int, ...], passed: tuple[Passed, ...]) -> None:
        """Free ids once the other streams that may use them are so far."""
        with self._changed:
            self.releases.append(Release(ids, passed))
            self._free_passed()

    def free_passed(self) -> None:
        """A stream has executed a batch."""
        with self._changed:
            self._free_passed()

    def _free_passed(self) -> None:
        still = []
        for release in self.releases:
            if all(self._has_passed(each) for each in release.passed):
                self.free(release.ids)
            else:
                still.append(release)
        self.releases[:] = still

    def _has_passed(self, passed: Passed) -> bool:
        stream = self._open.get(passed.stream)
        return stream is None or stream.position >= passed.position
