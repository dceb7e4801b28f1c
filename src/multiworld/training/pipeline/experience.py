"""What a member has seen of the changes of its training: how often they come, and what they take. Pure."""

from __future__ import annotations

BYTES_PER_S = 1e9
"""Between two members, before any state was moved."""
FORM_S = 0.1
"""Until members can compute again, besides moves, before any change was seen."""
EXPECTED_S = 3600.0
"""Until the next change, before any was seen. It weighs as much as one change that was seen."""
FORMING = frozenset({"detect", "agree", "form"})
"""The phases of a recovery that any plan takes."""


class Experience:
    """Of one member, since it came. Members differ in it, and only the one that proposes a plan uses its own.

    ``now``: seconds of any clock that does not go back.
    """

    def __init__(self, *, now: float) -> None:
        self._began = now
        self._num_changes = 0
        self._forming_s = self._pending_s = 0.0
        self._bytes_per_s = 0.0

    def took(self, phase: str, seconds: float) -> None:
        """A phase took so long: of a change, or of this member's start: ``formed`` tells which."""
        if phase in FORMING:
            self._pending_s += seconds

    def formed(self, *, is_change: bool) -> None:
        """Other members than before form the training, or this member has come: a start waits for much more."""
        if is_change:
            self._num_changes += 1
            self._forming_s += self._pending_s
        self._pending_s = 0.0

    def moved(self, size_bytes: int, took_s: float) -> None:
        """State came in this time, in which this member may also have waited for others."""
        if took_s > 0:
            self._bytes_per_s = max(self._bytes_per_s, size_bytes / took_s)

    @property
    def bytes_per_s(self) -> float:
        """The fastest move: waits for others can only make one slower than the link."""
        return self._bytes_per_s or BYTES_PER_S

    @property
    def form_s(self) -> float:
        """The mean over all changes."""
        return self._forming_s / self._num_changes if self._num_changes else FORM_S

    def expected_s(self, *, now: float) -> float:
        """Return the time until the next change: the mean so far, with one change that took ``EXPECTED_S``."""
        return (EXPECTED_S + now - self._began) / (1 + self._num_changes)
