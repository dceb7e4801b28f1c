"""Whether the memory of a work's result is nobody's else, so that it need not be copied.

It goes by counts of references, which differ in a compiled module: this one stays as it is (``native.compiled``).
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor


def is_nobodys_else(result: Any) -> bool:
    """Return whether nothing but the caller's one variable refers to the result and its memory, as far as one can see.

    Call it with that variable.
    """
    if isinstance(result, Tensor):
        return sys.getrefcount(result) <= _OF_ONE and _owns_memory(result)
    if not isinstance(result, (dict, list, tuple)) or sys.getrefcount(result) > _OF_ONE:
        return False
    values = list(result.values() if isinstance(result, dict) else result)
    return all(
        isinstance(value, Tensor) and sys.getrefcount(value) <= _IN_LIST + 1 and _owns_memory(value) for value in values
    )


def _owns_memory(tensor: Tensor) -> bool:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return True  # what is sent is a copy
    storage = tensor.untyped_storage()
    return storage.resizable() and _count(storage) <= _OF_STORAGE


def _count(storage: torch.UntypedStorage) -> int:
    """How often a storage is used: by tensors, and by the object that stands for it here."""
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count


def _references_of_one() -> int:
    """What a reference count says of a tensor that only one variable of the caller holds: interpreters differ."""

    def count(value: Tensor) -> int:
        return sys.getrefcount(value)

    result = torch.empty(1)
    return count(result)


def _references_in_list() -> int:
    return max([sys.getrefcount(value) for value in [torch.empty(1)]])


_OF_ONE = _references_of_one()
_IN_LIST = _references_in_list()
_OF_STORAGE = _count(torch.empty(1).untyped_storage()) + 1
