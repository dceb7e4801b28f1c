"""Counts the memory that autograd holds from a forward to its backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def saved_bytes_counted(others: Iterable[torch.Tensor]) -> Iterator[Callable[[], int]]:
    """Count the bytes of the memory that operations save for their backward, each memory once.

    ``others``: tensors whose memory does not count, for it is held anyway: parameters and buffers.
    """
    held = {_memory(value) for value in others}
    found: dict[int, torch.UntypedStorage] = {}  # held, so that no later one has the same address

    def pack(value: torch.Tensor) -> torch.Tensor:
        if value.layout is torch.strided and _memory(value) not in held:
            found.setdefault(_memory(value), value.untyped_storage())
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        yield lambda: sum(storage.nbytes() for storage in found.values())


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()
