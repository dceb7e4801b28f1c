"""A small message of bytes, and how the next one is prepared for: messages of one peer mostly look alike.

A process that has just woken up makes neither memory nor a tensor quickly, so both are made before they are needed.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import torch
from torch import Tensor

from ...wire.memory.copying import aligned_memory
from .tensors import Layout, Payload

MAX_BYTES: Final = 64 * 1024  # of a message that is small


class Content:
    """The only tensor in a small message: at an offset, in bytes. ``in_inference``: it was asked for in that mode."""

    __slots__ = ("in_inference", "layout", "offset")

    def __init__(self, layout: Layout, offset: int, in_inference: bool) -> None:
        self.layout, self.offset, self.in_inference = layout, offset, in_inference

    def is_of(self, layout: Layout, offset: int, in_inference: bool) -> bool:
        return self.layout is layout and self.offset == offset and self.in_inference == in_inference


class Predictor:
    """What the last small messages of one peer were like, and one that is ready for the next."""

    __slots__ = ("_again", "_content", "_prepared", "_size_bytes")

    def __init__(self) -> None:
        self._size_bytes = 0
        self._again = False  # the last two were of that size
        self._content: Content | None = None
        self._prepared: SmallMessage | None = None

    @property
    def is_prepared(self) -> bool:
        return self._prepared is not None

    def prepare(self) -> None:
        """Have memory for a message like the last two, if they were alike. Any thread; call it when nobody waits."""
        if self._again and self._prepared is None:
            small_message = SmallMessage(aligned_memory(self._size_bytes))
            small_message.prepare(self._content)
            self._prepared = small_message

    def take(self, size_bytes: int) -> SmallMessage:
        """Return memory for a message that is here: what was prepared, if it is as large."""
        small_message, self._prepared = self._prepared, None
        if small_message is None or len(small_message.memory) != size_bytes:
            self._again = size_bytes == self._size_bytes
            if not self._again:
                self._size_bytes, self._content = size_bytes, None
            small_message = SmallMessage(aligned_memory(size_bytes))
        small_message.predictor = self  # from now on: one that waits here would refer to what refers to it
        return small_message

    def held(self, size_bytes: int, content: Content | None) -> None:
        """A small message of so many bytes held one tensor and no more; None: something else."""
        if size_bytes == self._size_bytes:  # else it is asked late for what is in it, and others have come since
            self._content = content


class SmallMessage:
    """``memory``: writable, begins at a multiple of ``ALIGNMENT``. ``predictor``: is told what is in it."""

    __slots__ = ("_content", "_tensor", "memory", "predictor")

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.predictor: Predictor | None = None
        self._content: Content | None = None
        self._tensor: Tensor | None = None

    def prepare(self, content: Content | None) -> None:
        """Make the tensor that will be asked for, if all is as it was."""
        if content is not None and content.offset + content.layout.size_bytes <= len(self.memory):
            with torch.inference_mode(content.in_inference):
                self._tensor = content.layout.of_memory(self.memory, content.offset)
            self._content = content

    def tensor(self, layout: Layout, offset: int, *, alone: bool = False) -> Tensor | None:
        """Return what is no more than one tensor, as a view of the memory from a byte on; None for all else.

        ``alone``: there is no other in this message, and the next one may be prepared for the same.
        """
        prepared, self._tensor = self._tensor, None  # given once: who gets it may give it another form
        content, predictor, in_inference = self._content, self.predictor, torch.is_inference_mode_enabled()
        was_expected = content is not None and content.is_of(layout, offset, in_inference)
        if predictor is not None and not (alone and was_expected):
            predictor.held(len(self.memory), Content(layout, offset, in_inference) if alone else None)
        return prepared if was_expected and prepared is not None else layout.of_memory(self.memory, offset)


Received: TypeAlias = Payload | SmallMessage
