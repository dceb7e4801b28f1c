"""Copies of remote tensors as Python makes them: ``copy.deepcopy``, ``pickle`` and ``torch.save``."""

from __future__ import annotations

import copy
import io
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch
from torch import nn

from .moving import values_of


def deepcopy(tensor: Any, memo: dict[int, object]) -> Any:
    """Return a copy on the same node; its gradient comes along. Nothing waits."""
    if not tensor.is_leaf:
        raise RuntimeError("only a tensor that no operation made can be copied by copy.deepcopy: detach it first")
    known = memo.get(id(tensor))
    if known is not None:
        return known
    with torch.no_grad():
        copied = tensor.clone()
        if isinstance(tensor, nn.Parameter):
            copied = nn.Parameter(copied, requires_grad=tensor.requires_grad)
        else:
            copied.requires_grad_(tensor.requires_grad)
    memo[id(tensor)] = copied
    if tensor.grad is not None:
        copied.grad = copy.deepcopy(tensor.grad, memo)
    return copied


def reduced(tensor: Any, protocol: int) -> Any:
    """Return what pickles it as a local tensor with the same values: a sync point."""
    local = values_of(tensor, "save")
    if isinstance(tensor, nn.Parameter):
        local = nn.Parameter(local, requires_grad=tensor.requires_grad)
    else:
        local.requires_grad_(tensor.requires_grad)
    if get_spawning_popen() is None:
        return local.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]
    # An argument of a process that starts: PyTorch would pass shared memory, which nobody keeps open until then.
    file = io.BytesIO()
    torch.save(local, file)
    return _loaded, (file.getvalue(),)


def _loaded(saved: bytes) -> Any:
    return torch.load(io.BytesIO(saved), weights_only=True)
