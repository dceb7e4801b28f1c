"""How a payload is written for the wire: smaller numbers than it is computed with."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

BLOCK = 256
"""Elements that share one scale in int8: one outlier spoils the precision of its block only."""

Compression = Literal["bfloat16", "int8"]


class Codec(Protocol):
    def encode(self, flat: Tensor) -> Tensor:
        """Return ``flat`` (float32 or float64, its length a multiple of ``BLOCK``) as bytes: a new uint8 tensor."""

    def decode(self, packed: Tensor) -> Tensor:
        """Return float32. All members get the same bits from the same bytes."""


class Bfloat16:
    """Two bytes an element, with the range of float32 and a relative error of at most 1/256."""

    def encode(self, flat: Tensor) -> Tensor:
        return flat.to(torch.bfloat16).view(torch.uint8)

    def decode(self, packed: Tensor) -> Tensor:
        return packed.view(torch.bfloat16).to(torch.float32)


class Int8:
    """One byte an element, and a scale for each block. The error is at most 1/254 of a block's largest element.

    A block with an element that is not finite comes back as NaN, so a bad step is still seen.
    """

    def encode(self, flat: Tensor) -> Tensor:
        blocks = flat.to(torch.float32).view(-1, BLOCK)
        scales = blocks.abs().amax(1) / 127
        scaled = blocks / torch.where(scales > 0, scales, 1.0).unsqueeze(1)
        steps = torch.nan_to_num(scaled).round().clamp(-127, 127).to(torch.int8)
        scales = torch.where(scales.isfinite(), scales, torch.nan)
        return torch.cat([scales.view(torch.uint8), steps.view(-1).view(torch.uint8)])

    def decode(self, packed: Tensor) -> Tensor:
        num_blocks = packed.numel() // (BLOCK + 4)
        scales = packed[: 4 * num_blocks].clone().view(torch.float32)  # cloned: a part may not be aligned
        steps = packed[4 * num_blocks :].view(torch.int8).view(num_blocks, BLOCK)
        return (steps.to(torch.float32) * scales.unsqueeze(1)).view(-1)


def codec_of(compression: Compression) -> Codec:
    return Int8() if compression == "int8" else Bfloat16()
