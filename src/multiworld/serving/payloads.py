"""What is done to every tensor of a payload, whatever its structure."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..channel.base import Payload

__all__ = ["map_tensors", "tensors_of"]


def tensors_of(payload: Payload) -> list[Tensor]:
    if isinstance(payload, Tensor):
        return [payload]
    return list(payload.values()) if isinstance(payload, dict) else payload


def map_tensors(payload: Payload, function: Callable[[Tensor], Tensor]) -> Payload:
    """Return a payload of the same structure with what the function makes of each tensor."""
    if isinstance(payload, Tensor):
        return function(payload)
    if isinstance(payload, dict):
        return {name: function(tensor) for name, tensor in payload.items()}
    return [function(tensor) for tensor in payload]
