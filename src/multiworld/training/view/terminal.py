"""Writes the progress line of a training to a stream: in place on a terminal, else a line every few seconds."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TextIO

from ..events import TrainingEvent
from .progress import WIDTH, ProgressLine

logger = logging.getLogger(__name__)


class Terminal:
    """A stream that is gone ends the line, and nothing else. One thread at a time."""

    def __init__(self, stream: TextIO) -> None:
        in_place = not stream.closed and stream.isatty()
        self._line = ProgressLine(in_place=in_place, width=_width_of(stream) if in_place else WIDTH)
        self._stream: TextIO | None = stream

    def take(self, events: Sequence[TrainingEvent]) -> None:
        """Follow events, and write what is to be seen of them."""
        text = "".join(self._line.take(event, now=event.at) for event in events)
        if not text or self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError) as error:  # the reader has gone, or the program has closed it
            logger.info("the progress of the training is not shown any more: %s", error)
            self._stream = None


def _width_of(stream: TextIO) -> int:
    """Return how much of a line fits in front of the last column, which some terminals wrap at."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return WIDTH
    return max(20, columns - 1) if columns else WIDTH  # some terminals do not say
