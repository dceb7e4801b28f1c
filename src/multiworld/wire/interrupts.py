"""Give locks back although an interrupt can be raised between any two steps of the main thread.

``with lock:`` is safe. A lock that is only tried is not: KeyboardInterrupt can come after ``acquire`` has taken it and
before the ``try`` that gives it back has begun, or in what that calls. Such a lock is an RLock, which knows who holds
it, and a handler around all of it asks that.
"""

from __future__ import annotations

import threading

__all__ = ["is_owned"]


def is_owned(lock: threading.RLock) -> bool:
    """Whether the calling thread holds the lock."""
    return lock._is_owned()  # type: ignore[attr-defined, no-any-return]  # threading.Condition builds on it too
