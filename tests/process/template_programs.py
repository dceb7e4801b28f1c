"""Programs that a template process forks in tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path


def write_and_wait(arguments: Sequence[str]) -> int:
    """Write this process's id and parent to the file of the first argument, then wait until it is killed."""
    Path(arguments[0]).write_text(f"{os.getpid()} {os.getppid()}")
    signal.pause()
    return 0
