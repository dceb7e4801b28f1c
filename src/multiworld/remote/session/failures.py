"""What failed on a node: one error for each command, with the line that issued it, and whether somebody saw it."""

from __future__ import annotations

import threading
from typing import Final, TypeAlias

from ..errors import NodeMemoryError, RemoteError, RemoteOperationError
from ..protocol.messages import OUT_OF_MEMORY, Failed
from . import large_origins
from .command_queue import CommandQueue
from .step_name import StepName

MAX_FAILURES: Final = 10_000
"""Failures of one node whose lines are kept, and which are told at the end if nobody saw them."""

Place: TypeAlias = tuple[int, int | None]
"""The position of a record that failed, and which of its calls if it runs a graph."""


_seen_groups: Final[dict[int, None]] = {}
"""Failures of several nodes that somebody got from one of them."""


class Failures:
    """``unseen``: by place, until somebody gets them. ``total``: how many there were. Any thread."""

    def __init__(self, number: int, queue: CommandQueue) -> None:
        self.unseen: dict[Place, RemoteError] = {}
        self.total = 0
        self._number, self._queue = number, queue
        self._by_place: dict[Place, RemoteError] = {}
        self._groups: dict[Place, int] = {}  # of failures that several nodes tell
        self._lock = threading.Lock()  # guards the lines above

    def note(self, failed: Failed) -> RemoteError:
        """Return the error of a failure, the same for all who ask. Its command must not be confirmed yet."""
        with self._lock:
            place = failed.position, failed.call
            error = self._by_place.get(place)
            if error is None:
                operation, line = self.find(failed)
                cls = NodeMemoryError if failed.kind == OUT_OF_MEMORY else RemoteOperationError
                error = cls(self._number, operation, line, failed.kind, _text_of(failed))
                self._by_place[place] = self.unseen[place] = error
                if failed.group:
                    self._groups[place] = failed.group
                self.total += 1
                self._forget_oldest()
        return error

    def find(self, failed: Failed) -> tuple[str, str]:
        """Return the operation that failed, and its line. Its command must not be confirmed yet."""
        operation, line = self._queue.find(failed.position)
        if isinstance(operation, StepName) and failed.call is not None:
            return operation.inside(failed.call, line)
        return operation, line

    def seen(self, failed: Failed) -> RemoteError:
        """Return the error that somebody gets now."""
        error = self.note(failed)
        with self._lock:
            self.unseen.pop((failed.position, failed.call), None)
        if failed.group:
            _seen_groups[failed.group] = None
            if len(_seen_groups) > MAX_FAILURES:
                del _seen_groups[next(iter(_seen_groups))]
        return error

    def unseen_errors(self) -> list[RemoteError]:
        """Return what nobody got, here or of another node that failed with this one."""
        with self._lock:
            return [error for place, error in self.unseen.items() if self._groups.get(place, 0) not in _seen_groups]

    def clear(self) -> None:
        """The node is lost: no failure is told any more. Those that nobody saw stay."""
        with self._lock:
            self._by_place.clear()

    def _forget_oldest(self) -> None:
        if len(self._by_place) > MAX_FAILURES:
            oldest = next(iter(self._by_place))
            del self._by_place[oldest]
            self.unseen.pop(oldest, None)
            self._groups.pop(oldest, None)


def _text_of(failed: Failed) -> str:
    """Return what the node says, with the lines that made what fills its memory."""
    if not failed.live:
        return failed.text
    return f"{failed.text}\n  these were made at {', '.join(large_origins.lines_of(failed.live))}"
