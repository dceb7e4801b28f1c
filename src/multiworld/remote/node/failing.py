"""How a failure on a node is told to the master."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..protocol.messages import OUT_OF_MEMORY
from .table import Table, memory_id

_SHOWN_CHARACTERS = 1000
_SHOWN_TENSORS = 5


class Described(NamedTuple):
    """``live``: for too little memory, the ids of the largest tensors that are live; ``text`` shows them."""

    kind: str
    text: str
    live: tuple[int, ...] = ()


def describe_failure(error: BaseException, table: Table) -> Described:
    """Return the kind and the text: for too little memory, with the largest tensors that are live."""
    text = str(error).partition("\n\n")[0][:_SHOWN_CHARACTERS] or "no text"  # PyTorch's lists of kernels come behind
    if not _is_out_of_memory(error):
        return Described(type(error).__name__, text)
    live = sorted(_one_of_each_memory(table).items(), key=lambda item: _num_bytes(item[1]), reverse=True)
    total = sum(_num_bytes(tensor) for _, tensor in live)
    shown = live[:_SHOWN_TENSORS]
    largest = ", ".join(f"{tuple(each.shape)} {each.dtype} ({_num_bytes(each):,} B)" for _, each in shown)
    told = f"{text.splitlines()[0]} [{len(live)} tensors are live, {total:,} B; the largest: {largest or 'none'}]"
    return Described(OUT_OF_MEMORY, told, tuple(id_ for id_, _ in shown))


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # PyTorch has no type of its own for the CPU's allocator.
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def _one_of_each_memory(table: Table) -> dict[int, Tensor]:
    """Return a tensor for each memory that is in use, by id, the first that has it: views have none of their own."""
    by_memory: dict[int, tuple[int, Tensor]] = {}
    for id_, entry in table.copy().items():  # other streams go on
        if isinstance(entry, Tensor):
            by_memory.setdefault(memory_id(entry), (id_, entry))
    return dict(by_memory.values())


def _num_bytes(tensor: Tensor) -> int:
    """Return how many bytes its memory has, also where it is a view of a part."""
    try:
        return tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):  # sparse
        return tensor.numel() * tensor.element_size()
