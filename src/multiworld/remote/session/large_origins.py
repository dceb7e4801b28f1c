"""Which lines made the large tensors: an error for lack of memory names them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from .origins import UNKNOWN, Origin, line_of

LARGE_BYTES: Final = 1024 * 1024
MAX_KEPT: Final = 10_000
_lock: Final = threading.Lock()  # guards the line below
_origins: Final[dict[int, Origin]] = {}  # by id, the oldest first; ids are never used twice in a process


def note(ids: Iterable[int], place: Origin) -> None:
    """Large tensors are made by that line."""
    with _lock:
        for id_ in ids:
            _origins[id_] = place
        while len(_origins) > MAX_KEPT:
            del _origins[next(iter(_origins))]


def lines_of(ids: Iterable[int]) -> list[str]:
    """Return the line that made each of them, as far as it is known."""
    with _lock:
        return [line_of(_origins[id_]) if id_ in _origins else UNKNOWN for id_ in ids]
