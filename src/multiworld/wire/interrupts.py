"""Give locks back although an interrupt can be raised between any two steps of the main thread; and signal handlers.

``with lock:`` is safe. A lock that is only tried is not: KeyboardInterrupt can come after ``acquire`` has taken it and
before the ``try`` that gives it back has begun, or in what that calls. Such a lock is an RLock, which knows who holds
it, and a handler around all of it asks that.
"""

from __future__ import annotations

import sys
import threading

LOCKING = ("multiworld.wire.", "multiworld.channel.", "multiworld.world.")
"""The modules whose functions may hold a lock, which a signal handler that has interrupted them cannot wait for."""


def is_owned(lock: threading.RLock) -> bool:
    """Whether the calling thread holds the lock."""
    return lock._is_owned()  # type: ignore[attr-defined, no-any-return]  # threading.Condition builds on it too


def has_interrupted_us() -> bool:
    """Whether a function of ours was called by a signal handler that has interrupted another one: only the main thread
    runs them.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    frame = sys._getframe(1).f_back  # behind the function that asks
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(LOCKING):
            return True
        frame = frame.f_back
    return False
