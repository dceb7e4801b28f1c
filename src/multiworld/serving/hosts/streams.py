"""The standard streams of a process that forks: what they hold is written before, not by the child once more."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

__all__ = ["flush_streams"]


def flush_streams() -> None:
    """Write what they hold; a stream that is closed, or that the process was started without, has nothing."""
    streams: Sequence[object] = (sys.stdout, sys.stderr)
    for stream in streams:
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()  # type: ignore[attr-defined]
