"""Folders in ``/tmp`` that are there for as long as somebody needs them, however long nobody looks at them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["kept"]


@contextmanager
def kept(folder: Path) -> Iterator[Path]:
    """Hold a lock on a folder: systemd-tmpfiles, which removes what was not used for days, leaves locked ones alone.

    Processes that are forked meanwhile hold it, too.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield folder
    finally:
        os.close(descriptor)
