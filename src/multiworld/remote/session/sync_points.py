"""Sync points: the places where the master waits for a node, counted by line, or forbidden for a while."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import SyncPointError
from .waits import Wait


class SyncPoints:
    """``by_line``: how often each line waited, by ``operation at file:line``."""

    def __init__(self) -> None:
        self.by_line: Counter[str] = Counter()
        self._lock = threading.Lock()  # guards the counter

    @property
    def total(self) -> int:
        return self.by_line.total()

    def wait(self, operation: str, line: str) -> Wait:
        """Count a sync point; return the context in which it waits.

        Raises SyncPointError inside ``no_sync``, and another error inside ``forbid_sync``.
        """
        if _forbidden.errors:
            raise _forbidden.errors[-1](operation, line)
        with self._lock:
            self.by_line[f"{operation} at {line}"] += 1
        return Wait(operation, line)


@contextmanager
def no_sync() -> Iterator[None]:
    """Inside, an operation of this thread that would wait for a node raises SyncPointError instead."""
    with forbid_sync(SyncPointError):
        yield


@contextmanager
def forbid_sync(error: Callable[[str, str], Exception]) -> Iterator[None]:
    """As ``no_sync``, with the error that is made of the operation and its line."""
    _forbidden.errors.append(error)
    try:
        yield
    finally:
        _forbidden.errors.pop()


class _Forbidden(threading.local):
    """``errors``: of this thread, the innermost last."""

    def __init__(self) -> None:
        self.errors: list[Callable[[str, str], Exception]] = []


_forbidden = _Forbidden()
