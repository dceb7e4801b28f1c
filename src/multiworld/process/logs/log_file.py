"""A log file: only ever added to, and of bounded size where that is wanted."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ...wire.descriptors import is_scarcity

logger = logging.getLogger(__name__)


class LogFile:
    """At ``largest`` bytes it becomes ``NAME.1``, in the place of the one before; None: it grows without a bound.

    ``is_private``: only its owner may read it and look into its folder, if that is new. A disk that is full costs lines
    and one warning, and the process goes on. Raises OSError if there are no descriptors left for now.
    """

    def __init__(self, path: Path, *, largest: int | None = None, is_private: bool = False) -> None:
        self._path, self._largest, self._is_private = path, largest, is_private
        self._fd, self._size, self._warned = -1, 0, False
        try:
            self._open()
        except OSError as error:
            if is_scarcity(error):
                raise
            self._warn(error)

    def write(self, data: bytes) -> None:
        is_full = self._largest is not None and self._size + len(data) > self._largest
        if self._fd >= 0 and is_full and self._size:
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
        folder_mode, mode = (0o700, 0o600) if self._is_private else (0o777, 0o644)
        self._path.parent.mkdir(mode=folder_mode, parents=True, exist_ok=True)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, mode)
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
            logger.warning("output is lost: cannot write to %s: %s", self._path, error)
