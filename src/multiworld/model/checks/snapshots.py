"""Records all values that a module and its parts hold, and compares two records."""

from __future__ import annotations

import enum
import itertools
import random
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..comparing import is_close, same

Snapshot = dict[str, Any]
INTERNAL = frozenset(vars(nn.Module())) - {"training"}
PLAIN = (bool, int, float, complex, str, bytes, enum.Enum, type(None))
COUNTERS = (itertools.count, itertools.cycle)
NOT_STATE = (type, types.FunctionType, types.ModuleType, torch.dtype, torch.device)
MAX_DEPTH = 8


def tensors_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the names and tensors that a module holds, registered or not."""
    return ((name, value) for name, value in _held(module) if isinstance(value, torch.Tensor))


def snapshot(module: nn.Module) -> Snapshot:
    """Return by name the values that a module holds. Tensors are copied, except for parameters."""
    return {name: _taken(value) for name, value in _held(module)}


def difference(one: Snapshot, other: Snapshot) -> str | None:
    """Return the name of the first value that differs between two snapshots of one module; None if none does."""
    for name, value in other.items():
        if name not in one or not _equal(one[name], value):
            return name
    return next((name for name in one if name not in other), None)


def _held(module: nn.Module) -> Iterator[tuple[str, Any]]:
    seen: set[int] = {id(part) for part in module.modules()}
    for prefix, part in module.named_modules():
        start = f"{prefix}." if prefix else ""
        for name, parameter in part._parameters.items():
            yield f"parameter '{start}{name}'", parameter
        for name, buffer in part._buffers.items():
            yield f"buffer '{start}{name}'", buffer
        for name, value in vars(part).items():
            if name not in INTERNAL:
                for place, leaf in _leaves(value, f"{start}{name}", seen, MAX_DEPTH):
                    yield f"attribute '{place}'", leaf


def _leaves(value: Any, name: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """Walk containers and objects, each once, and name each value by its path. A set counts by its length."""
    if isinstance(value, (*PLAIN, *NOT_STATE, torch.Tensor)):
        yield name, value
        return
    if id(value) in seen or depth == 0:
        return
    seen.add(id(value))
    items: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        items = [(f"{name}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple, deque)):
        items = [(f"{name}[{place}]", item) for place, item in enumerate(value)]
    elif isinstance(value, (set, frozenset)):
        items = [(name, len(value))]
    elif _is_users_object(value):
        items = [(f"{name}.{key}", item) for key, item in vars(value).items()]
    else:
        yield name, value
    for place, item in items:
        yield from _leaves(item, place, seen, depth - 1)


def _is_users_object(value: Any) -> bool:
    """Return whether to look into an object. Objects of Python and torch, such as a logger, lead to everything."""
    origin = type(value).__module__.partition(".")[0]
    is_foreign = origin == "torch" or origin in sys.stdlib_module_names
    return hasattr(value, "__dict__") and (isinstance(value, (nn.Module, types.SimpleNamespace)) or not is_foreign)


def _taken(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        return value.detach().clone()
    if isinstance(value, torch.Generator):
        return tuple(value.get_state().tolist())
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, COUNTERS):
        return repr(value)
    if hasattr(value, "tobytes"):  # a NumPy array
        return value.tobytes()
    return value


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, nn.Parameter) or isinstance(other, nn.Parameter):
        return one is other
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return same(one, other) or (one.is_cuda and is_close(one, other))
    if type(one) is not type(other):
        return False
    if isinstance(one, (*PLAIN, tuple)):
        return bool(one == other) or one != one
    return True
