"""What a node has under each id: a tensor, a tensor that is still to arrive, or the failure that took its place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from torch import Tensor

from ..protocol.messages import Failed


class Lost:
    """Stands for a tensor that does not exist, because of ``failure``."""

    __slots__ = ("failure",)

    def __init__(self, failure: Failed) -> None:
        self.failure = failure


class Arriving:
    """Stands for a tensor until it has come. Any stream may wait for it."""

    __slots__ = ("_arrived", "_lock", "_wait")

    def __init__(self, wait: Callable[[], Tensor | Lost]) -> None:
        """``wait`` blocks until it has come, and returns it, or why it is lost where it was to come from."""
        self._wait = wait
        self._lock = threading.Lock()
        self._arrived: Tensor | Lost | None = None

    def wait(self) -> Tensor | Lost:
        """Block until it has come, and return it: the same tensor to all who wait."""
        with self._lock:
            if self._arrived is None:
                self._arrived = self._wait()
            return self._arrived


class Recorded:
    """Stands under the id of an event once it was recorded."""

    __slots__ = ()


RECORDED: Final = Recorded()
Entry: TypeAlias = Tensor | Lost | Arriving | Recorded
Table: TypeAlias = dict[int, Entry]


def first_lost(entries: Iterable[Entry]) -> Lost | None:
    return next((entry for entry in entries if type(entry) is Lost), None)


def lose_written(table: Table, ids: Iterable[int], lost: Lost) -> None:
    """Mark tensors that an operation should have written as lost, with all that share memory with them.

    What is in that memory now is neither the old value nor the new one.
    """
    storages = {memory_id(entry) for entry in (table.get(id_) for id_ in ids) if isinstance(entry, Tensor)}
    if storages:  # else all were lost before
        for id_, entry in table.copy().items():  # other streams go on
            if isinstance(entry, Tensor) and memory_id(entry) in storages:
                table[id_] = lost
    for id_ in ids:
        table[id_] = lost


def memory_id(tensor: Tensor) -> int:
    """Return a number that all tensors have which share one memory."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse: it has none
        return id(tensor)
