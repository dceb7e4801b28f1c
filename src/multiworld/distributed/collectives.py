"""Operations of all members of a group, called by all in the same order. Roots are ranks in the whole program.

With ``async_op`` they return a ``Request`` at once, else what they filled (where this process gets a result) when they
are done: ``result = all_reduce(tensor)`` is the same tensor. ``timeout_s`` is the deadline of the
operation; None: the group's, ``math.inf``: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..channel.base import ReduceOp
from ..errors import InvalidValueError
from ..world.operations.request import Request
from .default import find_group
from .process_group import AnyGroup

T = TypeVar("T")


def broadcast(
    tensor: Tensor, src: int, group: AnyGroup = None, async_op: bool = False, *, timeout_s: float | None = None
) -> Request[None] | Tensor:
    """Copy the tensor of ``src`` into that of every member."""
    members = find_group(group)
    root, deadline = members.member(src, "src"), members.deadline(timeout_s)
    return _settle(members.world.blocking.ibroadcast(tensor, root, deadline), async_op, tensor)


def all_reduce(
    tensor: Tensor,
    op: Any = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout_s: float | None = None,
) -> Request[None] | Tensor:
    """Reduce over all members, in place; every member gets the same bits."""
    members = find_group(group)
    return _settle(members.world.blocking.iall_reduce(tensor, op, members.deadline(timeout_s)), async_op, tensor)


def reduce(
    tensor: Tensor,
    dst: int,
    op: Any = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout_s: float | None = None,
) -> Request[None] | Tensor:
    """Reduce into the tensor of ``dst``; the others' stay as they are."""
    members = find_group(group)
    root, deadline = members.member(dst, "dst"), members.deadline(timeout_s)
    return _settle(members.world.blocking.ireduce(tensor, root, op, deadline), async_op, tensor)


def all_gather(
    tensor_list: list[Tensor],
    tensor: Tensor,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout_s: float | None = None,
) -> Request[None] | list[Tensor]:
    """Gather every member's tensor into ``tensor_list``, in the order of the ranks."""
    members = find_group(group)
    return _settle(
        members.world.blocking.iall_gather(tensor_list, tensor, members.deadline(timeout_s)), async_op, tensor_list
    )


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int = 0,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout_s: float | None = None,
) -> Request[None] | list[Tensor] | None:
    """Gather every member's tensor into ``gather_list`` of ``dst`` (None elsewhere)."""
    members = find_group(group)
    root, deadline = members.member(dst, "dst"), members.deadline(timeout_s)
    return _settle(members.world.blocking.igather(tensor, gather_list, root, deadline), async_op, gather_list)


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int = 0,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout_s: float | None = None,
) -> Request[None] | Tensor:
    """Fill each member's tensor with its part of ``scatter_list`` of ``src`` (None elsewhere)."""
    members = find_group(group)
    root, deadline = members.member(src, "src"), members.deadline(timeout_s)
    return _settle(members.world.blocking.iscatter(tensor, scatter_list, root, deadline), async_op, tensor)


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: Any = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout_s: float | None = None,
) -> Request[None] | Tensor:
    """Reduce the lists element by element over all members; each gets the element of its place."""
    members = find_group(group)
    deadline = members.deadline(timeout_s)
    return _settle(members.world.blocking.ireduce_scatter(output, input_list, op, deadline), async_op, output)


def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout_s: float | None = None,
) -> Request[None] | list[Tensor]:
    """Send each member its element of ``input_tensor_list``, and receive from it into ``output_tensor_list``."""
    members = find_group(group)
    deadline = members.deadline(timeout_s)
    return _settle(
        members.world.blocking.iall_to_all(output_tensor_list, input_tensor_list, deadline),
        async_op,
        output_tensor_list,
    )


def barrier(group: AnyGroup = None, async_op: bool = False, *, timeout_s: float | None = None) -> Request[None] | None:
    """Wait until every member has come here."""
    members = find_group(group)
    return _settle(members.world.blocking.ibarrier(members.deadline(timeout_s)), async_op, None)


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


# The spelling of the original ``torch.distributed`` design (THD), for programs that were written in it.
allGather = all_gather  # noqa: N816
allReduce = all_reduce  # noqa: N816
allToAll = all_to_all  # noqa: N816
reduceScatter = reduce_scatter  # noqa: N816


def _settle(request: Request[None], async_op: bool, filled: T) -> Request[None] | T:
    if async_op:
        return request
    try:
        request.wait()
    except BaseException:  # an interrupt: nobody has the request, and the tensors must be left alone from now on
        request.cancel()
        raise
    return filled


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
