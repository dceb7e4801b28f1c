"""What a process takes of its host: processor time and memory, as the kernel counts them."""

from __future__ import annotations

import os
import time

__all__ = ["Vitals", "parse_pss", "parse_rss"]

PSS_EVERY_S = 10.0
PSS_SHARE = 0.001  # of one processor: to add a large process's pages up takes the kernel a while


class Vitals:
    """Of this process. ``read`` is to be called now and then, by one thread, and ``look`` when ``is_due``."""

    def __init__(self) -> None:
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._at, self._cpu_s = time.monotonic(), time.process_time()
        self._pss: int | None = None
        self._pss_at = 0.0

    def read(self) -> dict[str, float | int | None]:
        """Return ``cpu_s`` since the start, ``cpu`` (processors that were busy with it since the last call),
        ``rss_bytes``, and ``pss_bytes``: pages that several processes have are shared out; None where it is not told.
        """
        now, cpu_s = time.monotonic(), time.process_time()
        cpu = (cpu_s - self._cpu_s) / max(now - self._at, 1e-3)
        self._at, self._cpu_s = now, cpu_s
        return {
            "cpu_s": round(cpu_s, 3),
            "cpu": round(cpu, 4),
            "rss_bytes": parse_rss(_text("/proc/self/statm"), self._page_bytes),
            "pss_bytes": self._pss,
        }

    @property
    def is_due(self) -> bool:
        """Whether it is time for ``look``."""
        return time.monotonic() >= self._pss_at

    def look(self) -> None:
        """Have the kernel add the pages up; for a large process this blocks, for a tenth of a second or more."""
        began = time.monotonic()
        self._pss = parse_pss(_text("/proc/self/smaps_rollup"))
        ended = time.monotonic()
        self._pss_at = ended + max(PSS_EVERY_S, (ended - began) / PSS_SHARE)


def parse_rss(statm: str, page_bytes: int) -> int | None:
    """Return the bytes that ``/proc/…/statm`` tells of; None if it could not be read."""
    fields = statm.split()
    return int(fields[1]) * page_bytes if len(fields) > 1 else None


def parse_pss(rollup: str) -> int | None:
    """Return the bytes that ``/proc/…/smaps_rollup`` tells of; None if it could not be read."""
    for line in rollup.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None


def _text(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # not on every system, nor in every container
        return ""
    try:
        return os.read(fd, 4096).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
