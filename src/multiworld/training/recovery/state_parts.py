"""Take a nested state apart into its tensors and the rest, and put it together again."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..engine.gradients import like, local
from ..state import StateDict

_MARK = "multiworld tensor"


@dataclass(frozen=True)
class Part:
    """Bytes ``begin`` to ``end`` of tensor ``index``. One source sends them."""

    index: int
    begin: int
    end: int


def take_apart(state: Any) -> tuple[list[Tensor], Any]:
    """Return the tensors of a state, each once, and the rest with a mark in the place of each."""
    tensors: list[Tensor] = []
    places: dict[int, int] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in places:
                places[id(value)] = len(tensors)
                tensors.append(value)
            return (_MARK, places[id(value)])
        if isinstance(value, dict):
            return {key: walk(each) for key, each in value.items()}
        if isinstance(value, tuple) and value[:1] == (_MARK,):
            return (_MARK, None, [walk(each) for each in value])
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return type(value)(walk(each) for each in value)
        return value

    rest = walk(state)
    return tensors, rest


def put_together(rest: Any, tensors: Sequence[Tensor]) -> Any:
    """Return the state that ``take_apart`` was given, with these tensors."""
    if isinstance(rest, tuple) and rest[:1] == (_MARK,):
        return tensors[rest[1]] if len(rest) == 2 else tuple(put_together(each, tensors) for each in rest[2])
    if isinstance(rest, dict):
        return {key: put_together(each, tensors) for key, each in rest.items()}
    if isinstance(rest, (list, tuple)) and not hasattr(rest, "_fields"):
        return type(rest)(put_together(each, tensors) for each in rest)
    return rest


def pack(rest: Any) -> Tensor:
    """Return the rest as bytes ``[n]`` uint8. Only what ``torch.load(weights_only=True)`` reads may be in it."""
    stream = io.BytesIO()
    torch.save(rest, stream)
    return torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)


def unpack(packed: Tensor) -> Any:
    """Raises ``pickle.UnpicklingError`` for what could run code."""
    return torch.load(io.BytesIO(bytes(packed.numpy().tobytes())), weights_only=True)


def check_parts(parts: StateDict) -> None:
    """Raise TypeError that names a part whose state holds more than tensors and plain values, which cannot be sent."""
    for name, state in parts.items():
        _, rest = take_apart(state)
        try:
            unpack(pack(rest))
        except (pickle.UnpicklingError, pickle.PicklingError, AttributeError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise TypeError(
                f"{name}: its state_dict() holds what newcomers cannot be sent safely ({reason}). Tensors, numbers, "
                "text, lists, tuples and dicts can be; turn NumPy arrays and objects into these"
            ) from error


def share_out(sizes: Sequence[int], num_sources: int) -> list[list[Part]]:
    """Return which bytes each source sends, about the same number each."""
    total = sum(sizes)
    shares: list[list[Part]] = [[] for _ in range(num_sources)]
    position = 0
    for index, size in enumerate(sizes):
        begin = 0
        while begin < size:
            source = min(num_sources - 1, position * num_sources // max(total, 1))
            limit = total if source == num_sources - 1 else -(-total * (source + 1) // num_sources)
            end = min(size, begin + max(1, limit - position))
            shares[source].append(Part(index, begin, end))
            position += end - begin
            begin = end
    return shares


def bytes_of(tensor: Tensor) -> Tensor:
    """Return the memory of a tensor as ``[n]`` uint8; of a DTensor, this process's part."""
    return local(tensor).detach().contiguous().reshape(-1).view(torch.uint8)


def sharding_of(tensor: Tensor) -> str:
    """Return the whole shape of a DTensor and its placements, as text; empty for a tensor of one process.

    A DTensor of this process with the same text tells the mesh of another process's.
    """
    placements = getattr(tensor, "placements", None)
    return "" if placements is None else f"{tuple(tensor.shape)} by {placements}"


def empty_bytes(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)


def tensor_of(data: Tensor, dtype: torch.dtype, shape: Sequence[int], template: Tensor | None) -> Tensor:
    """Return bytes as a tensor; as a DTensor if the template is one."""
    tensor = data.view(dtype).reshape(list(shape)) if data.numel() else torch.empty(list(shape), dtype=dtype)
    return tensor if template is None else like(template, tensor)
