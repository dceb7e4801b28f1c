"""Folders in ``/tmp`` that are there for as long as somebody needs them, however long nobody looks at them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WORKS_PREFIX = "multiworld-serving-"


@contextmanager
def works_folder() -> Iterator[Path]:
    """Give a new folder for what the processes of a deployment are to run; it is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=WORKS_PREFIX))
    try:
        with kept(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
