"""End the work on one request from outside it: its client has gone or is too slow, or the gateway stops."""

from __future__ import annotations

import asyncio

from ..error_body import HttpError


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


class Interruption:
    """Cancels the task that made it, for a reason, until ``end``; the first reason holds."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._has_ended = False
        self.reason: HttpError | ClientGoneError | None = None

    def __call__(self, reason: HttpError | ClientGoneError) -> None:
        """Cancel what the task awaits. Nothing, after ``end``."""
        if self._has_ended or self.reason is not None:
            return
        self.reason = reason
        self._task.cancel()

    def end(self) -> None:
        """From now on the task is left alone: what it awaits next is the sending of its answer."""
        self._has_ended = True

    def translate(self) -> HttpError | ClientGoneError | None:
        """Return the reason for a CancelledError that the task has just caught; None if it was not ours."""
        self._has_ended = True
        if self.reason is not None and hasattr(self._task, "uncancel"):  # Python 3.11
            self._task.uncancel()
        return self.reason
