"""Read how long this thread has waited for a processor that others had: the kernel counts it for each thread."""

from __future__ import annotations

import contextlib
import os
from typing import Final

SCHEDSTAT: Final = "/proc/thread-self/schedstat"
"""Of Linux: nanoseconds on a processor, nanoseconds on a run queue, and how many turns it had."""
_MAX_BYTES: Final = 80


class RunQueue:
    """Call it for the seconds so far. Of the thread that made it; any other may call. A call takes 2 µs.

    Where the kernel does not tell (no Linux, or no ``CONFIG_SCHED_INFO``), it is 0. What a hypervisor gave to other
    guests is not in it, nor what other threads waited, for which this one waits.
    """

    def __init__(self, path: str = SCHEDSTAT) -> None:
        self._descriptor = -1
        self._last_s = 0.0
        with contextlib.suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __call__(self) -> float:
        if self._descriptor >= 0:
            try:
                self._last_s = int(os.pread(self._descriptor, _MAX_BYTES, 0).split()[1]) * 1e-9
            except (OSError, ValueError, IndexError):  # the thread has ended, or this is no such kernel
                self.close()
        return self._last_s

    def close(self) -> None:
        """Idempotent. From then on the time stands still."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
