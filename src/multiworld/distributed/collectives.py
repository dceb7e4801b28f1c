"""Operations of all members of a group, called by all in the same order. Roots are ranks in the whole program.

With ``async_op`` they return a ``Request`` at once, else what they filled (where this process gets a result) when they
are done: ``result = all_reduce(tensor)`` is the same tensor. ``timeout_s`` is the deadline of the
operation; None: the group's, ``math.inf``: none.
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor

from ..channel.base import ReduceOp
from ..world.request import Request
from .default import find_group
from .process_group import AnyGroup

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]


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


def _settle(request: Request[None], async_op: bool, filled: T) -> Request[None] | T:
    if async_op:
        return request
    try:
        request.wait()
    except BaseException:  # an interrupt: nobody has the request, and the tensors must be left alone from now on
        request.cancel()
        raise
    return filled
