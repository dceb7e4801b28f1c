"""Which members of a world lack an input of a collective, as they have told. Any thread."""

from __future__ import annotations

import threading

from ..protocol.messages import Failed


class Lacking:
    """Collectives end in the order of their numbers. News of one that has ended here are forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the lines below
        self._next = 0
        self._told: dict[int, dict[int, Failed]] = {}  # by collective, by rank

    def note(self, sequence: int, rank: int, failed: Failed) -> None:
        with self._lock:
            if sequence >= self._next:
                self._told.setdefault(sequence, {})[rank] = failed

    def ended(self, sequence: int) -> dict[int, Failed]:
        """Return what was told of a collective, by rank. It and all before it have ended here."""
        with self._lock:
            self._next = max(self._next, sequence + 1)
            told = self._told.pop(sequence, {})
            for each in [each for each in self._told if each < self._next]:
                del self._told[each]
        return told
