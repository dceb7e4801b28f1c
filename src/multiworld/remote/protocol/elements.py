"""How the elements of a tensor travel: in the order of its memory, so that its strides stay what they are.

Kernels choose their order of summation by strides: a copy with other strides would not give the same bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from .specs import Spec, describe

MAX_KEPT: Final = 4096
"""Specs of which it is known what they are when they arrive: a training loop has the same ones in each step."""


def elements_of(tensor: Tensor) -> tuple[Tensor, Spec]:
    """Return the elements of a tensor as ``[numel]`` on the CPU, and the spec that they have when they arrive.

    They share the memory of ``tensor`` if that is dense.
    """
    plain, spec = tensor.detach(), describe(tensor)
    was_dense = is_dense(spec)  # as who receives them judges: to resolve a bit may close the gaps
    if spec.conj or spec.neg or plain.device.type != "cpu" or not was_dense:
        plain = plain.resolve_conj().resolve_neg().cpu()
        if not was_dense:
            plain = plain.contiguous()
        spec = describe(plain)
    elements = plain.as_strided((plain.numel(),), (1,))
    return elements, Spec(spec.size, spec.stride, 0, spec.dtype)


def shares_memory(one: Tensor, other: Tensor) -> bool:
    return one.device == other.device and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def tensor_of(elements: Tensor, spec: Spec) -> Tensor:
    """Return elements that came, ``[numel]``, as a tensor of that spec."""
    if not elements.numel():
        return torch.empty_strided(spec.size, spec.stride, dtype=spec.dtype)
    return elements.as_strided(spec.size, spec.stride)


@lru_cache(MAX_KEPT)
def arrived_spec(spec: Spec) -> Spec:
    """Return the spec that a tensor of ``spec`` has when it arrives: without gaps."""
    stride = spec.stride if is_dense(spec) else contiguous_strides(spec.size)
    return Spec(spec.size, stride, 0, spec.dtype)


@lru_cache(MAX_KEPT)
def is_dense(spec: Spec) -> bool:
    """Whether the elements fill their memory without gaps, and none is there twice."""
    if 0 in spec.size:
        return spec.stride == contiguous_strides(spec.size)
    expected = 1
    for stride, length in sorted(pair for pair in zip(spec.stride, spec.size, strict=True) if pair[1] > 1):
        if stride != expected:
            return False
        expected *= length
    return True


def contiguous_strides(size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a tensor in the order of its dimensions."""
    strides: list[int] = []
    expected = 1
    for length in reversed(size):
        strides.append(expected)
        expected *= max(length, 1)
    return tuple(reversed(strides))
