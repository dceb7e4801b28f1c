"""Tensors whose content is known by position, so that what arrived can be told from what was there before.

A factor tells the tensors of one measurement apart. Values are small whole numbers: as long as factors are too, or are
such times one power of two, float32 sums of them are exact in whichever order they are added.
"""

from __future__ import annotations

import torch
from torch import Tensor

PERIOD = 251  # a prime: no segment of a collective and no buffer of a channel begins at the same value as the next
LARGEST = PERIOD
STRIDE = 509  # elements between those that are looked at: more than one on each page, and over time at each value
SPOILED = -1.0


def fill(tensor: Tensor, factor: float = 1.0) -> None:
    """Write the known content, ``factor`` times 1, 2, …, 251, 1, 2, …, into a float tensor [numel]."""
    values = _values(torch.arange(PERIOD), factor)
    whole = tensor.numel() // PERIOD * PERIOD
    tensor[:whole].view(-1, PERIOD).copy_(values)
    tensor[whole:].copy_(values[: tensor.numel() - whole])


def spoil(tensor: Tensor) -> None:
    """Overwrite the elements that ``holds`` looks at."""
    tensor[::STRIDE] = SPOILED
    tensor[-1] = SPOILED


def holds(tensor: Tensor, factor: float = 1.0) -> bool:
    """Whether a tensor has the known content, by its last element and one of every 509: a fraction of the time."""
    positions = torch.cat([torch.arange(0, tensor.numel(), STRIDE), torch.tensor([tensor.numel() - 1])])
    return torch.equal(tensor[positions], _values(positions, factor))


def _values(positions: Tensor, factor: float) -> Tensor:
    return (positions % PERIOD + 1).to(torch.float32) * factor
