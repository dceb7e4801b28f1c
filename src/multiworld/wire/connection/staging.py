"""Where a thread that reads from connections puts what came, before it is known whose it is."""

from __future__ import annotations

import threading

STAGING_BYTES = 64 * 1024


class _Staging(threading.local):
    """Each reading thread's buffer."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(STAGING_BYTES))


staging = _Staging()
