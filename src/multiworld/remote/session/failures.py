"""What failed on a node: one error for each command, with the line that issued it, and whether somebody saw it."""

from __future__ import annotations

import threading
from typing import Final, TypeAlias

from ..errors import NodeMemoryError, RemoteError, RemoteOperationError
from ..protocol.messages import OUT_OF_MEMORY, Failed
from .command_queue import CommandQueue
from .step_name import StepName

MAX_FAILURES: Final = 10_000
"""Failures of one node whose lines are kept, and which are told at the end if nobody saw them."""

Place: TypeAlias = tuple[int, int | None]
"""The position of a record that failed, and which of its calls if it runs a graph."""


class Failures:
    """``unseen``: by place, until somebody gets them. ``total``: how many there were. Any thread."""

    def __init__(self, number: int, queue: CommandQueue) -> None:
        self.unseen: dict[Place, RemoteError] = {}
        self.total = 0
        self._number, self._queue = number, queue
        self._by_place: dict[Place, RemoteError] = {}
        self._lock = threading.Lock()  # guards the lines above

    def note(self, failed: Failed) -> RemoteError:
        """Return the error of a failure, the same for all who ask. Its command must not be confirmed yet."""
        with self._lock:
            place = failed.position, failed.call
            error = self._by_place.get(place)
            if error is None:
                operation, line = self._queue.find(failed.position)
                if isinstance(operation, StepName) and failed.call is not None:
                    operation, line = operation.inside(failed.call, line)
                cls = NodeMemoryError if failed.kind == OUT_OF_MEMORY else RemoteOperationError
                error = cls(self._number, operation, line, failed.kind, failed.text)
                self._by_place[place] = self.unseen[place] = error
                self.total += 1
                self._forget_oldest()
        return error

    def seen(self, failed: Failed) -> RemoteError:
        """Return the error that somebody gets now."""
        error = self.note(failed)
        with self._lock:
            self.unseen.pop((failed.position, failed.call), None)
        return error

    def clear(self) -> None:
        """The node is lost: no failure is told any more. Those that nobody saw stay."""
        with self._lock:
            self._by_place.clear()

    def _forget_oldest(self) -> None:
        if len(self._by_place) > MAX_FAILURES:
            oldest = next(iter(self._by_place))
            del self._by_place[oldest]
            self.unseen.pop(oldest, None)
