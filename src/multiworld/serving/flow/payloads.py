"""What is done to every tensor of a payload, whatever its structure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ...channel.base import Payload
from ...channel.payload.tensors import describe, memory_of, parse_layout, payload_segments

DIGEST_BYTES: Final = 16


class Packed:
    """A copy of a small contiguous CPU tensor: its description and its bytes. It is made faster than a tensor is."""

    __slots__ = ("memory", "meta")

    def __init__(self, tensor: Tensor) -> None:
        self.meta, self.memory = describe(tensor), bytes(memory_of(tensor))

    @property
    def tensor(self) -> Tensor:
        """Again as a tensor, of memory of its own."""
        size_bytes = len(self.memory)
        memory = torch.empty(0, dtype=torch.uint8)
        if size_bytes:
            memory = torch.frombuffer(bytearray(self.memory), dtype=torch.uint8)
        tensor = parse_layout(self.meta, size_bytes).build(memory)
        assert isinstance(tensor, Tensor)
        return tensor


def tensors_of(payload: Payload) -> list[Tensor]:
    if isinstance(payload, Tensor):
        return [payload]
    return list(payload.values()) if isinstance(payload, dict) else payload


def digest_of(payload: Payload) -> bytes:
    """Return what two payloads of contiguous CPU tensors have in common only if they are the same, bit by bit."""
    meta, segments, _ = payload_segments(payload)
    digest = hashlib.blake2b(meta, digest_size=DIGEST_BYTES)
    for segment in segments:
        digest.update(segment)
    return digest.digest()


def map_tensors(payload: Payload, function: Callable[[Tensor], Tensor]) -> Payload:
    """Return a payload of the same structure with what the function makes of each tensor."""
    if isinstance(payload, Tensor):
        return function(payload)
    if isinstance(payload, dict):
        return {name: function(tensor) for name, tensor in payload.items()}
    return [function(tensor) for tensor in payload]
