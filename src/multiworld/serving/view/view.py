"""What shows a deployment in a terminal, and which of its kinds suits a stream."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Protocol, TextIO

from ..page.series import Point
from ..page.snapshot import Shown
from ..page.stories import Story
from .live import LiveView
from .plain import PlainView


class View(Protocol):
    """Told what a ``Recorder`` knows, several times a second; ``close`` comes last."""

    def note(self, story: Story) -> None:
        """Tell one thing that happened."""

    def update(self, shown: Shown, points: Sequence[Point]) -> None:
        """Show the moment; ``points``: the last minutes, the oldest first."""

    def close(self) -> None:
        """Give the terminal back; idempotent."""


def choose_view(stream: TextIO | None = None) -> View:
    """Return the live view if the stream is a terminal that can be redrawn, and there is rich; else the plain one."""
    stream = sys.stdout if stream is None else stream
    can_redraw = os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    if stream.isatty() and can_redraw and find_spec("rich") is not None:
        return LiveView(stream)
    return PlainView(stream)
