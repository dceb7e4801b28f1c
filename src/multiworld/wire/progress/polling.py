"""Look whether descriptors are readable, again and again, without going to sleep."""

from __future__ import annotations

import ctypes
import os
import select
import time

from ... import native

EVENTS = select.POLLIN | select.POLLRDHUP
YIELD_AFTER_S = 20e-6


class _Descriptor(ctypes.Structure):
    """As ``struct pollfd``."""

    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


if native.core is not None:
    _look_at = native.core.multiworld_look_at
    _look_at.restype, _look_at.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)


class Poller:
    """Says which of some descriptors are readable, or closed at the other end. One thread at a time."""

    __slots__ = ("_at", "_descriptors", "_poll")

    def __init__(self, *fds: int) -> None:
        self._poll = select.poll()
        for fd in fds:
            self._poll.register(fd, EVENTS)
        self._descriptors = (_Descriptor * len(fds))(*(_Descriptor(fd, EVENTS, 0) for fd in fds))
        self._at = ctypes.addressof(self._descriptors)

    def poll(self, timeout_ms: int | None) -> list[tuple[int, int]]:
        """Sleep until some are ready, for so long at most. Return each that is, with its events."""
        return self._poll.poll(timeout_ms)

    def look(self, spin_s: float) -> list[tuple[int, int]]:
        """As ``poll``, without a sleep; nothing if the time is over already.

        The native core gives up the interpreter lock once, not at each look. Else a thread that waits for that lock
        is woken by each, and finds it taken again.
        """
        if spin_s <= 0:
            return []
        if native.core is None:
            return self._look_from_python(spin_s)
        return self._poll.poll(0) if _look_at(self._at, len(self._descriptors), int(spin_s * 1e9)) else []

    def _look_from_python(self, spin_s: float) -> list[tuple[int, int]]:
        began, waited = time.perf_counter(), 0.0
        while waited < spin_s:
            ready = self._poll.poll(0)
            if ready:
                return ready
            if waited > YIELD_AFTER_S:
                os.sched_yield()
            waited = time.perf_counter() - began
        return []
