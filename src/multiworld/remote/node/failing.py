"""How a failure on a node is told to the master."""

from __future__ import annotations

import torch
from torch import Tensor

from ..protocol.messages import OUT_OF_MEMORY
from .table import Table, memory_id

_SHOWN_CHARACTERS = 1000
_SHOWN_TENSORS = 5


def describe_failure(error: BaseException, table: Table) -> tuple[str, str]:
    """Return the kind and the text: for too little memory, with the largest tensors that are live."""
    text = str(error).partition("\n\n")[0][:_SHOWN_CHARACTERS] or "no text"  # PyTorch's lists of kernels come behind
    if not _is_out_of_memory(error):
        return type(error).__name__, text
    live = sorted(_one_of_each_memory(table), key=_num_bytes, reverse=True)
    total = sum(_num_bytes(tensor) for tensor in live)
    largest = ", ".join(f"{tuple(each.shape)} {each.dtype} ({_num_bytes(each):,} B)" for each in live[:_SHOWN_TENSORS])
    first = text.splitlines()[0]
    return OUT_OF_MEMORY, f"{first} [{len(live)} tensors are live, {total:,} B; the largest: {largest or 'none'}]"


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # PyTorch has no type of its own for the CPU's allocator.
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def _one_of_each_memory(table: Table) -> list[Tensor]:
    """Return a tensor for each memory that is in use: views have none of their own."""
    by_memory: dict[int, Tensor] = {}
    for entry in table.copy().values():  # other streams go on
        if isinstance(entry, Tensor):
            by_memory.setdefault(memory_id(entry), entry)
    return list(by_memory.values())


def _num_bytes(tensor: Tensor) -> int:
    """Return how many bytes its memory has, also where it is a view of a part."""
    try:
        return tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):  # sparse
        return tensor.numel() * tensor.element_size()
