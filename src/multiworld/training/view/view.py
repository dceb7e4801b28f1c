"""What one member shows of its training: its record, the progress line, and the news for its launcher.

All of that is done on a thread of its own, so an event costs the training an append to a queue.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TextIO

from ...wire.rate_limited_log import RateLimitedLog
from ...world.launcher.news import News
from ..events import StepCommitted, TrainingEvent
from .recorder import Recorder
from .teller import Teller
from .terminal import Terminal

logger = logging.getLogger(__name__)

BATCH_S = 0.25  # a member that is killed loses the committed steps of so long; the others have recorded them, too
MAX_WAITING = 100_000  # events, while a disk or a terminal does not take them
CLOSE_S = 5.0


class View:
    """``record``: the folder of the run's record; ``stream``: where the progress is shown; ``tell``: to the launcher.

    Raises OSError where the record cannot be made.
    """

    def __init__(
        self,
        *,
        rank: int,
        member: str,
        record: str | None = None,
        stream: TextIO | None = None,
        tell: Callable[[News], None] | None = None,
        batch_s: float = BATCH_S,
    ) -> None:
        self._recorder = None if record is None else Recorder(record, rank=rank, member=member)
        terminal = None if stream is None else Terminal(stream)
        self._takers: list[Callable[[Sequence[TrainingEvent]], None]] = [
            *([self._recorder.take] if self._recorder is not None else []),
            *([terminal.take] if terminal is not None else []),
            *([_Telling(tell).take] if tell is not None else []),
        ]
        self._batch_s = batch_s
        self._waiting: deque[TrainingEvent] = deque(maxlen=MAX_WAITING)  # appended by any thread, taken by ours
        self._has_news, self._is_urgent = threading.Event(), threading.Event()
        self._closing = False
        self._warn = RateLimitedLog(logger.exception)
        self._thread: threading.Thread | None = None
        if self._takers:
            self._thread = threading.Thread(target=self._run, name="multiworld-training-view", daemon=True)
            self._thread.start()

    def take(self, event: TrainingEvent) -> None:
        """Show an event: a committed step within ``batch_s``, any other at once. From any thread."""
        if self._thread is None:
            return
        self._waiting.append(event)
        if not isinstance(event, StepCommitted):
            self._is_urgent.set()
        if not self._has_news.is_set():
            self._has_news.set()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Show what is left, and release everything. Idempotent."""
        self._closing = True
        self._is_urgent.set()
        self._has_news.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._has_news.wait()
                self._is_urgent.wait(self._batch_s)
                self._has_news.clear()  # before the queue is emptied: what comes after it wakes us again
                self._is_urgent.clear()
                self._show()
            self._show()
        finally:
            if self._recorder is not None:
                self._recorder.close()

    def _show(self) -> None:
        events: list[TrainingEvent] = []
        while self._waiting:
            events.append(self._waiting.popleft())
        if not events:
            return
        for take in self._takers:
            try:
                take(events)
            except Exception:  # the training and what else is shown of it do not depend on this
                self._warn("what happens to the training cannot be shown")


class _Telling:
    def __init__(self, tell: Callable[[News], None]) -> None:
        self._teller, self._tell = Teller(), tell

    def take(self, events: Sequence[TrainingEvent]) -> None:
        for event in events:
            for news in self._teller.take(event, now=event.at):
                self._tell(news)
