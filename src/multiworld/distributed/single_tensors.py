"""Collectives whose lists are single tensors, cut along their first dimension, as ``torch.distributed`` has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..channel.base import ReduceOp
from ..errors import InvalidValueError
from ..world.request import Request
from .collectives import all_gather, all_to_all, reduce_scatter
from .default import find_group
from .process_group import AnyGroup

__all__ = ["all_gather_into_tensor", "all_to_all_single", "reduce_scatter_tensor"]


def all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout_s: float | None = None,
) -> Request[None] | Tensor:
    """Gather every member's ``[n, ...]`` into ``[world_size * n, ...]`` or ``[world_size, n, ...]``."""
    size = find_group(group).world.world_size
    parts = _parts(output_tensor, input_tensor, size, "output_tensor", "input_tensor")
    done = all_gather(parts, input_tensor, group, async_op, timeout_s=timeout_s)
    return done if isinstance(done, Request) else output_tensor


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,  # noqa: A002
    op: Any = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout_s: float | None = None,
) -> Request[None] | Tensor:
    """Reduce ``[world_size * n, ...]`` or ``[world_size, n, ...]``; each member gets its part ``[n, ...]``."""
    size = find_group(group).world.world_size
    parts = _parts(input, output, size, "input", "output")
    done = reduce_scatter(output, parts, op, group, async_op, timeout_s=timeout_s)
    return done if isinstance(done, Request) else output


def all_to_all_single(
    output: Tensor,
    input: Tensor,  # noqa: A002
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout_s: float | None = None,
) -> Request[None] | Tensor:
    """Send each member its part of ``input``, and receive its part of ``output``: equal parts, or of given sizes."""
    size = find_group(group).world.world_size
    theirs = _split(input, input_split_sizes, size, "input")
    ours = _split(output, output_split_sizes, size, "output")
    done = all_to_all(ours, theirs, group, async_op, timeout_s=timeout_s)
    return done if isinstance(done, Request) else output


def _parts(whole: Tensor, part: Tensor, size: int, whole_name: str, part_name: str) -> list[Tensor]:
    """Return the ``size`` parts of ``whole``, which share its memory."""
    shape = tuple(part.shape)
    if tuple(whole.shape) == (size, *shape):
        return list(whole.unbind(0))
    if shape and tuple(whole.shape) == (size * shape[0], *shape[1:]):
        return list(torch.split(whole, shape[0])) if shape[0] else [whole] * size
    joined = [size * shape[0], *shape[1:]] if shape else [size]
    raise InvalidValueError(
        f"{whole_name} has the shape {list(whole.shape)}, expected {joined} or {[size, *shape]}: {size} members times "
        f"the {list(shape)} of {part_name}"
    )


def _split(tensor: Tensor, sizes: Sequence[int] | None, size: int, name: str) -> list[Tensor]:
    length = tensor.shape[0] if tensor.dim() else 0
    if not sizes:
        if tensor.dim() == 0 or length % size:
            raise InvalidValueError(
                f"{name} has the shape {list(tensor.shape)}: its first dimension has no {size} equal parts"
            )
        return list(torch.split(tensor, length // size)) if length else [tensor] * size
    if len(sizes) != size or sum(sizes) != length or min(sizes) < 0:
        raise InvalidValueError(
            f"{name}_split_sizes={list(sizes)}: expected {size} sizes whose sum is {length}, "
            f"got {len(sizes)} whose sum is {sum(sizes)}"
        )
    return list(torch.split(tensor, list(sizes)))
