"""The memory that this process holds, and the most that it held during something. Linux: from ``/proc/self``."""

from __future__ import annotations

import threading

from ..process.facts import proportional_bytes

__all__ = ["Peak", "held_bytes"]

HOLDS = ("Pss_Anon", "Pss_Shmem")  # not files: whether others run the same libraries is not about this process
SAMPLE_EVERY_S = 0.0005


def held_bytes() -> int:
    """Return anonymous and shared memory, of what k processes share the k-th part: their sum counts everything once."""
    return proportional_bytes(*HOLDS)


class Peak:
    """Look at ``held_bytes`` over and over, from a thread, while the ``with`` block runs."""

    def __init__(self) -> None:
        self._first = self._most = 0
        self._looked, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._look, name="bench-peak", daemon=True)

    @property
    def growth_bytes(self) -> int:
        """The most beyond what was held as the block began."""
        return self._most - self._first

    def __enter__(self) -> Peak:
        self._thread.start()
        self._looked.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        held_bytes()  # what looking itself takes is there before it counts
        self._first = self._most = held_bytes()
        self._looked.set()
        while not self._stop.wait(SAMPLE_EVERY_S):
            self._most = max(self._most, held_bytes())
        self._most = max(self._most, held_bytes())
