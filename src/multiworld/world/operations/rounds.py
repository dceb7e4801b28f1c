"""Count the collectives of one world: how many were started here, and when the first so many have ended."""

from __future__ import annotations

import threading

from ...wire.progress.operation import Operation


class CollectiveRounds:
    """A rank that leaves says how many collectives it has started; the others may still end those. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_started = 0
        self._open: set[int] = set()
        self._waiting: list[tuple[int, Operation[None]]] = []

    @property
    def num_started(self) -> int:
        return self._num_started

    def start(self) -> int:
        """Count one more and return its number, from 1."""
        with self._lock:
            self._num_started += 1
            self._open.add(self._num_started)
            return self._num_started

    def end(self, number: int) -> None:
        """That one has ended, however it ended."""
        with self._lock:
            self._open.discard(number)
            ready = [operation for until, operation in self._waiting if self._are_over(until)]
            self._waiting = [entry for entry in self._waiting if entry[1] not in ready]
        for operation in ready:
            operation.succeed(None)

    def over(self, number: int) -> Operation[None]:
        """Return an operation that is done once the first ``number`` collectives were started here and have ended."""
        operation: Operation[None] = Operation()
        with self._lock:
            if not self._are_over(number):
                self._waiting.append((number, operation))
                return operation
        operation.succeed(None)
        return operation

    def _are_over(self, number: int) -> bool:
        return self._num_started >= number and all(started > number for started in self._open)
