"""A memory as it was when a snapshot was begun: it is copied before somebody writes it, or when its turn has come."""

from __future__ import annotations

import threading
from typing import Final

from torch import Tensor

from ...wire.progress.operation import Operation

MIN_BYTES: Final = 256 * 1024
"""Smaller memories are copied at once: that takes less time than to look after them."""


class HeldMemory:
    """``copied``: done once nobody needs to wait before a write. ``error``: why there is no copy. Any thread."""

    def __init__(self, memory: Tensor) -> None:
        """``memory``: all bytes of it, ``[num_bytes]`` uint8."""
        self.num_bytes = len(memory)
        self.copied: Operation[None] = Operation()
        self.error: Exception | None = None
        self._lock = threading.Lock()  # guards the lines below and ``error``
        self._memory: Tensor | None = memory
        self._copy: Tensor | None = None

    def copy(self) -> None:
        """Copy it if it was not yet. Who wants to write it calls this before."""
        with self._lock:
            if self._memory is None:
                return
            try:
                self._copy = self._memory.clone()
            except Exception as error:  # no memory: there is no snapshot, and the write goes on
                self.error = error
            self._memory = None
        self.copied.succeed(None)

    def take(self, begin: int, end: int) -> Tensor:
        """Return these bytes on the CPU, as they were. Raises ``error``."""
        self.copy()
        if self._copy is None:
            raise self.error or RuntimeError("a memory is asked for after its end")
        return self._copy[begin:end].cpu()

    def drop(self) -> None:
        """It was sent, or is not needed any more."""
        with self._lock:
            self._memory = self._copy = None
        self.copied.succeed(None)
