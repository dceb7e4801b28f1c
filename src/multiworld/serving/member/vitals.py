"""What a process takes of its host: processor time and memory, as the kernel counts them."""

from __future__ import annotations

import time

from ...process.facts import pss_bytes, rss_bytes
from .reports import Usage

PSS_EVERY_S = 10.0
PSS_SHARE = 0.001  # of one processor: to add a large process's pages up takes the kernel a while


class Vitals:
    """Of this process. ``read`` is to be called now and then, by one thread, and ``look`` when ``is_due``."""

    def __init__(self) -> None:
        self._at, self._cpu_s = time.monotonic(), time.process_time()
        self._pss: int | None = None
        self._pss_at = 0.0

    def read(self) -> Usage:
        """Return what it takes; ``cpu``: since the last call."""
        now, cpu_s = time.monotonic(), time.process_time()
        cpu = (cpu_s - self._cpu_s) / max(now - self._at, 1e-3)
        self._at, self._cpu_s = now, cpu_s
        return Usage(cpu_s=round(cpu_s, 3), cpu=round(cpu, 4), rss_bytes=rss_bytes(), pss_bytes=self._pss)

    @property
    def is_due(self) -> bool:
        """Whether it is time for ``look``."""
        return time.monotonic() >= self._pss_at

    def look(self) -> None:
        """Have the kernel add the pages up; for a large process this blocks, for a tenth of a second or more."""
        began = time.monotonic()
        self._pss = pss_bytes()
        ended = time.monotonic()
        self._pss_at = ended + max(PSS_EVERY_S, (ended - began) / PSS_SHARE)
