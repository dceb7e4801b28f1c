"""Holds the keys and values of sequences, token by token and layer by layer, in memory that grows with them."""

from __future__ import annotations

import torch
from torch import Tensor


class KeyValues:
    """The state of one sequence: per layer, keys and values of shape ``[num_tokens, *any]``.

    What is written at a position replaces what stood there. Memory grows by doubling: up to twice what is in use.
    """

    __slots__ = ("_layers",)

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def put(self, layer: int, position: int, keys: Tensor, values: Tensor) -> None:
        """Write the keys and values ``[n, *any]`` of the tokens from ``position`` on."""
        end = position + keys.shape[0]
        held = self._layers.get(layer)
        if held is None or held[0].shape[0] < end:
            held = self._layers[layer] = (_grown(held, 0, keys, end), _grown(held, 1, values, end))
        held[0][position:end] = keys
        held[1][position:end] = values

    def up_to(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Return views of the keys and the values of the first ``length`` tokens, each ``[length, *any]``."""
        keys, values = self._layers[layer]
        return keys[:length], values[:length]

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for pair in self._layers.values() for tensor in pair)


def _grown(held: tuple[Tensor, Tensor] | None, which: int, like: Tensor, num_tokens: int) -> Tensor:
    room = 1 << (num_tokens - 1).bit_length()
    grown = torch.zeros((room, *like.shape[1:]), dtype=like.dtype, device=like.device)
    if held is not None:
        grown[: held[which].shape[0]] = held[which]
    return grown
