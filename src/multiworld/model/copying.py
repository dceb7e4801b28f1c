"""Copies a model so that no use of the copy changes it, and keeps random states."""

from __future__ import annotations

import copy
import random
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def private_copy(module: M) -> M:
    """Return a copy in evaluation mode that shares only the parameters with the model.

    Buffers, other tensors, attributes and hooks are copied, except for what Python cannot copy, such as a lock or an
    open file. A module that ``Module.compile`` compiled is not compiled in the copy.
    """
    originals = list(module.modules())
    copies = [object.__new__(type(original)) for original in originals]  # a GraphModule's own __new__ makes a class
    memo: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    memo.update(zip(map(id, originals), copies, strict=True))
    for original, made in zip(originals, copies, strict=True):
        vars(made).update({name: _copied(value, memo) for name, value in vars(original).items()})
        vars(made)["_compiled_call_impl"] = None
    result: M = memo[id(module)]
    return result.eval()


@contextmanager
def random_states_kept(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Restore the random states of Python, NumPy and PyTorch at the end, on the CPU and the GPUs of ``tensors``."""
    gpus = sorted({tensor.device.index for tensor in tensors if tensor.is_cuda})
    numpy = sys.modules.get("numpy")
    of_python, of_numpy = random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        with torch.random.fork_rng(gpus):
            yield
    finally:
        random.setstate(of_python)
        if numpy is not None:
            numpy.random.set_state(of_numpy)


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    made: Any
    if isinstance(value, torch.Tensor) and not value.is_leaf:  # deepcopy refuses it
        made = value.detach().clone()
    elif type(value) in (dict, OrderedDict):
        made = memo[id(value)] = type(value)()
        made.update({key: _copied(item, memo) for key, item in value.items()})
    elif type(value) is list:
        made = memo[id(value)] = []
        made += [_copied(item, memo) for item in value]
    else:
        try:
            made = copy.deepcopy(value, memo)
        except Exception:  # the value may be of any type and raise anything
            made = value
    memo[id(value)] = made
    return made
