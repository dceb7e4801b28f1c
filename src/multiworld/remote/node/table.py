"""What a node has under each id: a tensor, a tensor that is still to arrive, or the failure that took its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from torch import Tensor

from ..protocol.messages import Failed


class Lost:
    """Stands for a tensor that does not exist, because of ``failure``."""

    __slots__ = ("failure",)

    def __init__(self, failure: Failed) -> None:
        self.failure = failure


class Arriving:
    """Stands for a large tensor until it has come; ``wait`` blocks until then and returns it."""

    __slots__ = ("wait",)

    def __init__(self, wait: Callable[[], Tensor]) -> None:
        self.wait = wait


Entry: TypeAlias = Tensor | Lost | Arriving
Table: TypeAlias = dict[int, Entry]


def first_lost(entries: Iterable[Entry]) -> Lost | None:
    return next((entry for entry in entries if type(entry) is Lost), None)


def lose_written(table: Table, ids: Iterable[int], lost: Lost) -> None:
    """Mark tensors that an operation should have written as lost, with all that share memory with them.

    What is in that memory now is neither the old value nor the new one.
    """
    storages = {memory_id(entry) for entry in (table.get(id_) for id_ in ids) if isinstance(entry, Tensor)}
    if storages:  # else all were lost before
        for id_, entry in list(table.items()):
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
