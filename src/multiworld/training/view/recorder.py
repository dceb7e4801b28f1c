"""The file of one member in a run's record: whole lines are appended to it, batch by batch."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from ...wire.rate_limited_log import RateLimitedLog
from ..events import TrainingEvent
from .lines import line_of

logger = logging.getLogger(__name__)

SUFFIX = ".jsonl"


class Recorder:
    """Each batch is one ``write`` of whole lines, so what was written is safe when the process is killed.

    A disk that refuses a batch loses it; that is logged, and never ends the training. One thread at a time.
    """

    def __init__(self, folder: str | os.PathLike[str], *, rank: int, member: str) -> None:
        """Make the folder and the file; raises OSError. ``member``: an id that no other member of the run has."""
        if not member or os.sep in member or member.startswith("."):
            raise ValueError(f"member {member!r} cannot be part of a file's name")
        self.path = Path(folder) / f"{rank:05d}-{member}{SUFFIX}"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._is_closed = False
        self._is_torn = os.fstat(self._descriptor).st_size > 0  # the last line may have no end
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
                data = data[os.write(self._descriptor, data) :]
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

    def close(self) -> None:
        """Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._descriptor)
