"""Number the requests of the main job, and count the answers of each. Pure: no clock or IO."""

from __future__ import annotations

from collections import Counter


class RequestLedger:
    """Ids count up from 0. What is open at the end is lost."""

    def __init__(self) -> None:
        self.num_sent = 0
        self._answers: Counter[int] = Counter()

    @property
    def num_answered(self) -> int:
        """How many requests were answered, at least once."""
        return len(self._answers)

    @property
    def num_open(self) -> int:
        """How many have no answer."""
        return self.num_sent - len(self._answers)

    @property
    def num_duplicated(self) -> int:
        """How many answers came beyond the first of each request."""
        return self._answers.total() - len(self._answers)

    def open(self) -> int:
        """Return the id of a new request."""
        request = self.num_sent
        self.num_sent += 1
        return request

    def answer(self, request: int) -> None:
        """Count an answer; to a request that was never sent, ValueError."""
        if not 0 <= request < self.num_sent:
            raise ValueError(f"request {request} was never sent; {self.num_sent} were")
        self._answers[request] += 1
