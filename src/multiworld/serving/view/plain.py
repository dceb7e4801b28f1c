"""Lines for logs and pipes: what happens, and now and then how all stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TextIO

from ..page.series import Point
from ..page.snapshot import Shown
from ..page.stories import Story
from .words import MARKS, clock, condition, summary

EVERY_S = 10.0
LEFT_OUT = ("world",)


class PlainView:
    """``clock_s``: a monotonic clock."""

    def __init__(self, stream: TextIO, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock_s = stream, clock_s
        self._next_at = 0.0
        self._condition = ""

    def note(self, story: Story) -> None:
        """Write one line."""
        if story.category not in LEFT_OUT:
            self._write(f"{clock(story.at)}  {MARKS.get(story.tone, '○')} {story.text}")

    def update(self, shown: Shown, points: Sequence[Point]) -> None:
        """Write a line when the deployment's condition changes, and every ten seconds."""
        now, is_now = self._clock_s(), condition(shown)[0]
        if now < self._next_at and is_now == self._condition:
            return
        self._next_at, self._condition = now + EVERY_S, is_now
        at = points[-1].at if points else 0.0
        self._write(f"{clock(at)}  {summary(shown)}")

    def close(self) -> None:
        """Write out what is buffered."""
        self._stream.flush()

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()
