"""The log of one member on disk: only ever added to, and of bounded size."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ...wire.descriptors import is_scarcity

__all__ = ["LogFile"]

logger = logging.getLogger(__name__)

LARGEST_BYTES = 16 * 1024 * 1024


class LogFile:
    """At ``largest`` bytes it becomes ``NAME.1``, in the place of the one before. Only its owner may read it.

    A disk that is full costs lines, and one warning. Raises OSError if there are no descriptors left for now.
    """

    def __init__(self, path: Path, *, largest: int = LARGEST_BYTES) -> None:
        self._path, self._largest = path, largest
        self._fd, self._size, self._warned = -1, 0, False
        try:
            self._open()
        except OSError as error:
            if is_scarcity(error):
                raise
            self._warn(error)

    def write(self, data: bytes) -> None:
        if self._fd >= 0 and self._size + len(data) > self._largest and self._size:
            self._rotate()
        rest = memoryview(data)
        try:
            while rest and self._fd >= 0:
                written = os.write(self._fd, rest)
                self._size += written
                rest = rest[written:]
        except OSError as error:
            self._warn(error)

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        self.close()
        try:
            os.replace(self._path, f"{self._path}.1")
        except OSError as error:
            self._warn(error)
        try:
            self._open()
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("output of a member is lost: cannot write to %s: %s", self._path, error)
