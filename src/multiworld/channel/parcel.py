"""A small message of bytes, and how the next one is prepared for: messages of one peer mostly look alike.

A process that has just woken up makes neither memory nor a tensor quickly, so both are made before they are needed.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from torch import Tensor

from ..wire.copying import aligned_memory
from .base import Payload
from .tensors import Layout

__all__ = ["MAX_PREPARED_BYTES", "Habit", "Parcel", "Received"]

MAX_PREPARED_BYTES: Final = 64 * 1024


class Habit:
    """What came last in a parcel: so many bytes, with one tensor at that offset if there is a layout."""

    __slots__ = ("_again", "_prepared", "_size_bytes", "layout", "offset")

    def __init__(self) -> None:
        self._size_bytes = self.offset = 0
        self._again = False  # the last two were of that size
        self._prepared: Parcel | None = None
        self.layout: Layout | None = None

    @property
    def is_prepared(self) -> bool:
        return self._prepared is not None

    def prepare(self) -> None:
        """Have a parcel for a message like the last two, if they were alike. Any thread; call it when nobody waits."""
        if self._again and self._prepared is None:
            parcel = Parcel(aligned_memory(self._size_bytes), self)
            layout = self.layout
            if layout is not None:
                parcel.prepare(layout, self.offset)
            self._prepared = parcel

    def parcel(self, size_bytes: int) -> Parcel:
        """Return memory for a message that is here: what was prepared, if it is as large."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None and len(prepared.memory) == size_bytes:
            return prepared
        self._again = size_bytes == self._size_bytes and size_bytes <= MAX_PREPARED_BYTES
        if not self._again:
            self._size_bytes, self.layout = size_bytes, None
        return Parcel(aligned_memory(size_bytes), self)


class Parcel:
    """``memory``: of a message, writable; it begins at a multiple of ``ALIGNMENT``."""

    __slots__ = ("_habit", "_layout", "_offset", "_tensor", "memory")

    def __init__(self, memory: memoryview, habit: Habit | None = None) -> None:
        self.memory, self._habit = memory, habit
        self._layout: Layout | None = None
        self._offset = 0
        self._tensor: Tensor | None = None

    def prepare(self, layout: Layout, offset: int) -> None:
        """Make the tensor that will be asked for, if all is as it was."""
        self._layout, self._offset, self._tensor = layout, offset, layout.of_memory(self.memory, offset)

    def tensor(self, layout: Layout, offset: int, *, alone: bool = False) -> Tensor | None:
        """Return what is no more than one tensor, as a view of the memory from a byte on; None for all else.

        ``alone``: there is no other in this parcel, and the next one may be prepared for the same.
        """
        prepared, self._tensor = self._tensor, None  # given once: who gets it may ask whether anybody else has it
        if self._habit is not None:
            self._habit.layout, self._habit.offset = layout if alone else None, offset
        if prepared is not None and self._layout is layout and self._offset == offset:
            return prepared
        return layout.of_memory(self.memory, offset)


Received: TypeAlias = Payload | Parcel
