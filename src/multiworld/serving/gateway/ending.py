"""What becomes of the requests that are open when a gateway begins to end, for those who wait for that end. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Protocol


class Outcome(Enum):
    """Of a request."""

    OPEN = "open"
    ANSWERED = "answered"
    GIVEN_UP = "given up"
    """Answered 503, or a stream that was broken off."""
    GONE = "gone"
    """Its client went."""


class HasOutcome(Protocol):
    """A request."""

    outcome: Outcome


class Ending:
    """``requests``: those that are open now, each of which sets its outcome later."""

    def __init__(self, requests: Iterable[HasOutcome]) -> None:
        self._requests = list(requests)

    def beginning(self) -> str:
        """Return what is waited for, as a sentence without a full stop."""
        num = len(self._requests)
        return f"waits for {_open(num)} to be answered" if num else "no request is open"

    def end(self) -> str:
        """Return what has become of them; nothing where none was open."""
        outcomes = [request.outcome for request in self._requests]
        num, num_gone = len(outcomes), outcomes.count(Outcome.GONE)
        num_answered = outcomes.count(Outcome.ANSWERED)
        if not num:
            return ""
        if num_answered == num:
            return f"{_open(num)}: answered"
        parts = [
            f"{num_answered} answered",
            f"{num - num_answered - num_gone} given up (503)",
            *([f"{num_gone} whose clients have gone"] if num_gone else []),
        ]
        return f"{_open(num)}: {', '.join(parts)}"


def _open(num: int) -> str:
    return f"{num} open request{'' if num == 1 else 's'}"
