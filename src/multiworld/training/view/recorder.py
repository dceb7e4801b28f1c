"""Writes the events of one member to its own file of a run's record, in batches, on a thread of its own."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from pathlib import Path

from ...wire.rate_limited_log import RateLimitedLog
from ..events import StepCommitted, TrainingEvent
from .lines import line_of

logger = logging.getLogger(__name__)

SUFFIX = ".jsonl"
BATCH_S = 0.25  # a member that is killed loses the committed steps of so long; the others have recorded them, too
MAX_WAITING = 100_000  # events, while the disk does not take them
CLOSE_S = 5.0


class Recorder:
    """``take`` costs the training about a microsecond: it only appends to a queue.

    Each batch is one ``write`` of whole lines to a file that is opened for appending. What was written is safe when the
    process is killed. A disk that refuses a batch loses it; that is logged, and never ends the training.
    """

    def __init__(self, folder: str | os.PathLike[str], *, rank: int, member: str, batch_s: float = BATCH_S) -> None:
        """Make the folder and the file; raises OSError. ``member``: an id that no other member of the run has."""
        if not member or os.sep in member or member.startswith("."):
            raise ValueError(f"member {member!r} cannot be part of a file's name")
        self.path = Path(folder) / f"{rank:05d}-{member}{SUFFIX}"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._batch_s = batch_s
        self._waiting: deque[TrainingEvent] = deque(maxlen=MAX_WAITING)  # appended by any thread, taken by ours
        self._has_news = threading.Event()
        self._is_urgent = threading.Event()
        self._closing = False
        self._is_torn = os.fstat(self._descriptor).st_size > 0  # the last line may have no end
        self._warn = RateLimitedLog(logger.warning)
        self.num_lost = 0
        """Events that are not in the file, as no line can hold them or the disk refused them."""
        self._thread = threading.Thread(target=self._run, name="multiworld-training-record", daemon=True)
        self._thread.start()

    def take(self, event: TrainingEvent) -> None:
        """Have the event written: a committed step within ``batch_s``, any other at once. From any thread."""
        self._waiting.append(event)
        if not isinstance(event, StepCommitted):
            self._is_urgent.set()
        if not self._has_news.is_set():
            self._has_news.set()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write what is left, and close the file. Idempotent."""
        self._closing = True
        self._is_urgent.set()
        self._has_news.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._has_news.wait()
                self._is_urgent.wait(self._batch_s)
                self._has_news.clear()  # before the queue is emptied: what comes after it wakes us again
                self._is_urgent.clear()
                self._write()
            self._write()
        finally:
            os.close(self._descriptor)

    def _write(self) -> None:
        lines: list[bytes] = []
        while self._waiting:
            event = self._waiting.popleft()
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
