"""Hide the launcher from libraries that would form a default process group of all ranks when they see it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

LAUNCHERS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PMI_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
)


@contextmanager
def alone() -> Iterator[None]:
    """Inside of the block, libraries find a process that trains by itself. The variables come back at its end.

    A default process group is one fault domain of all ranks: after a death its replacement could not join, and would
    wait for it. Set-up code only, on the main thread: other threads see the same environment.
    """
    hidden = {name: os.environ.pop(name) for name in LAUNCHERS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
