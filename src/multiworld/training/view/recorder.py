"""The file of one member in a run's record: whole lines are appended to it, batch by batch, and it stays small."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...wire.rate_limited_log import RateLimitedLog
from ..events import TrainingEvent
from .lines import line_of, read_lines
from .thinning import halved

logger = logging.getLogger(__name__)

SUFFIX = ".jsonl"
MAX_BYTES = 2 * 1024 * 1024  # some 7,000 steps; more would keep the view's thread busy for too long at once


class Recorder:
    """Each batch is one ``write`` of whole lines, so what was written is safe when the process is killed.

    A disk that refuses a batch loses it; that is logged, and never ends the training. A file that has grown to
    ``max_bytes`` is thinned out (``thinning``), unless it has hardly anything but failures. One thread at a time.
    """

    def __init__(self, folder: str | os.PathLike[str], *, rank: int, member: str, max_bytes: int = MAX_BYTES) -> None:
        """Make the folder and the file; raises OSError. ``member``: an id that no other member of the run has."""
        if not member or os.sep in member or member.startswith("."):
            raise ValueError(f"member {member!r} cannot be part of a file's name")
        self.path = Path(folder) / f"{rank:05d}-{member}{SUFFIX}"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = _open(self.path)
        self._is_closed = False
        self._size_bytes = os.fstat(self._descriptor).st_size
        self._is_torn = self._size_bytes > 0  # the last line may have no end
        self._max_bytes = self._full_bytes = max_bytes
        self._warn = RateLimitedLog(logger.warning)
        self.num_lost = 0
        """Events that are not in the file, as no line can hold them or the disk refused them."""

    def take(self, events: Sequence[TrainingEvent]) -> None:
        """Write a batch."""
        lines: list[bytes] = []
        for event in events:
            try:
                lines.append(line_of(event))
            except (TypeError, ValueError) as error:
                self.num_lost += 1
                self._warn("an event is missing in the record %s: %s", self.path, error)
        if not lines:
            return
        data = memoryview((b"\n" if self._is_torn else b"") + b"".join(lines))
        try:
            while data:
                written = os.write(self._descriptor, data)
                self._size_bytes += written
                data = data[written:]
            self._is_torn = False
        except OSError as error:
            self._is_torn = True
            self.num_lost += len(lines)
            self._warn(
                "the record %s lacks %d events: %s. The training goes on; make room, or give another folder",
                self.path,
                len(lines),
                error.strerror or error,
            )
        if self._size_bytes > self._full_bytes:
            self._thin()

    def _thin(self) -> None:
        """Write a shorter file, and put it in the place of the old one at once: a kill leaves one of them whole."""
        shorter = self.path.with_suffix(".thinned")
        try:
            before = read_lines(self.path.read_bytes()).events
            shorter.write_bytes(b"".join(map(line_of, halved(before))))
            descriptor = _open(shorter)  # first: after the rename nobody could write to the old file
            try:
                shorter.replace(self.path)
            except OSError:
                os.close(descriptor)
                raise
        except OSError as error:
            self._warn("the record %s cannot be thinned out, and grows on: %s", self.path, error.strerror or error)
            with suppress(OSError):
                shorter.unlink()
        else:
            os.close(self._descriptor)
            self._descriptor, self._is_torn = descriptor, False
            self._size_bytes = os.fstat(descriptor).st_size
        self._full_bytes = max(self._max_bytes, 2 * self._size_bytes)  # it is read again only when that is worth it

    def close(self) -> None:
        """Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
