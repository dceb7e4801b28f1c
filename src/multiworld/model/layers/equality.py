"""Compares what layers compute, in a chain, with what the whole model computes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from ..comparing import is_close, leaves, same
from ..structure import taken_apart
from .trial import Trial


def difference_between(
    whole: Trial, chain: Trial, names: Mapping[int, str], buffers: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
) -> str | None:
    """Return what differs by more than rounding explains, or None.

    ``names``: of parameters, by their ids. ``buffers``: after both runs.
    """
    ones, others = taken_apart(whole.output), taken_apart(chain.output)
    if ones[1].differs(others[1]) or not all(map(_agree, ones[0], others[0])):
        return "the output differs from the whole model's"
    largest = max((float(value.abs().max()) for value in whole.gradients.values() if value.numel()), default=0.0)
    for key, name in names.items():
        one, other = whole.gradients.get(key), chain.gradients.get(key)
        if (one is None) != (other is None):
            return f"the gradient of {name} is missing in {'the whole model' if one is None else 'the layers'}"
        if one is not None and other is not None and not _agree(one, other, largest):
            return f"the gradient of {name} differs from the whole model's"
    for name, (first, second) in buffers.items():
        if not _agree(first, second):
            return f"the buffer {name} gets another value than in the whole model"
    return None


def outputs_agree(one: object, other: object) -> bool:
    """Return whether two outputs are the same within rounding."""
    ones, others = leaves(one), leaves(other)
    return len(ones) == len(others) and all(map(_agree, ones, others))


def _agree(one: torch.Tensor, other: torch.Tensor, largest: float = 0.0) -> bool:
    """``largest``: of all gradients. One that is zero but for rounding may differ by as much as they round."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if same(one, other) or is_close(one, other):
        return True
    if not one.is_floating_point():
        return False
    return bool((one - other).abs().max() <= largest * 8 * torch.finfo(one.dtype).eps * math.sqrt(one.numel()))
