"""What a process that becomes a member is given before its program runs."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os

from ..replica.black_box import BlackBox, carry

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of the GNU C library
LARGEST_IN_HEAP = 32 * 1024 * 1024  # the most that it takes
KEPT_BYTES = 256 * 1024 * 1024


def set_up(box: int) -> None:
    """``box`` is the descriptor of the member's black box."""
    carry(BlackBox.at(box))
    os.close(box)
    faulthandler.enable(file=2)
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Have the C library keep buffers of some megabytes for the next ones: fresh pages cost more than copying to them.

    A chain of three hops with 4 MB took 6.5 ms without and 4.2 ms with this.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGEST_IN_HEAP)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
