"""Check the tensors of a collective before any node hears of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch.distributed as dist

from ...channel.collectives.validate import check_reduce_op
from ..between.worlds import Between, between_of
from ..errors import UnsupportedOperationError
from ..protocol.specs import Spec
from ..session.session import Session
from ..tensor.remote_tensor import RemoteTensor

OPERATIONS: Final = ("SUM", "AVG", "PRODUCT", "MIN", "MAX")


def op_of(op: Any, tensor: RemoteTensor) -> str:
    """Return the name of a reduce operation. Raises ValueError; TypeError for one that the dtype does not have."""
    name = op.upper() if isinstance(op, str) else next((each for each in OPERATIONS if _is_op(op, each)), "")
    if name not in OPERATIONS:
        known = ", ".join(f'"{each.lower()}"' for each in OPERATIONS)
        raise ValueError(f"op={op!r}: expected one of {known}, or the ReduceOp of torch.distributed")
    check_reduce_op(getattr(dist.ReduceOp, name), tensor.dtype)
    return name


def nodes_of(name: str, tensors: Sequence[Any]) -> tuple[list[Session], Between]:
    """Return the session of each tensor: one tensor for each node. Raises TypeError, ValueError."""
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise TypeError(f"{name}: expected a list of remote tensors, one for each node, got {_shown(tensors)}")
    for place, tensor in enumerate(tensors):
        if not isinstance(tensor, RemoteTensor):
            raise TypeError(f"{name}: tensor {place} is {_shown(tensor)}, which is on no node. Send it first")
    sessions = [tensor._session for tensor in tensors]
    for place, session in enumerate(sessions):
        first = sessions.index(session)
        if first != place:
            raise ValueError(
                f"{name}: tensors {first} and {place} are both on node {session.number}; a node takes part once. "
                "Combine them there first, or move one with to_node()"
            )
    between = between_of(sessions[0], sessions[-1])
    if between is None or any(between_of(sessions[0], each) is not between for each in sessions):
        raise UnsupportedOperationError(
            name,
            "the tensors are on nodes of several connections, or on nodes that are recoverable",
            "Copy them to one node with to_node(), and compute there",
        )
    return sessions, between


def check_alike(name: str, tensors: Sequence[RemoteTensor], what: str = "tensor") -> None:
    """Raises ValueError for tensors of several shapes or dtypes."""
    first = tensors[0]
    for place, tensor in enumerate(tensors):
        if (tensor.shape, tensor.dtype) != (first.shape, first.dtype):
            raise ValueError(
                f"{name}: {what} {place} is {tensor.dtype}{list(tensor.shape)}, and {what} 0 is "
                f"{first.dtype}{list(first.shape)}: all must be alike"
            )


def check_written(name: str, tensors: Sequence[RemoteTensor]) -> None:
    """Raises ValueError for a tensor whose elements share memory: it can't be written."""
    for place, tensor in enumerate(tensors):
        if _overlaps(tensor.spec):
            raise ValueError(f"{name}: elements of tensor {place} share memory (it was expanded, perhaps): clone() it")


def check_rank(name: str, rank: int, label: str, num_members: int) -> None:
    if type(rank) is not int or not 0 <= rank < num_members:
        raise ValueError(f"{name}: {label}={rank!r}: expected the place of a tensor, from 0 to {num_members - 1}")


def check_lists(name: str, lists: Sequence[Sequence[Any]]) -> list[RemoteTensor]:
    """Return the first tensor of each list. List i has one tensor for each member, all on one node. Raises ValueError,
    TypeError.
    """
    if not isinstance(lists, (list, tuple)) or not all(isinstance(each, (list, tuple)) for each in lists):
        raise TypeError(f"{name}: expected a list of lists of remote tensors, one list for each node")
    for place, each in enumerate(lists):
        if len(each) != len(lists):
            raise ValueError(f"{name}: list {place} has {len(each)} tensors for {len(lists)} nodes: one for each")
        check_together(name, each, f"list {place}")
    return [each[0] for each in lists]


def check_together(name: str, tensors: Sequence[Any], label: str) -> None:
    """Raises TypeError, ValueError for tensors that are not all on one node."""
    for tensor in tensors:
        if not isinstance(tensor, RemoteTensor):
            raise TypeError(f"{name}: {label} has {_shown(tensor)}, which is on no node. Send it first")
    numbers = sorted({tensor.get_node() for tensor in tensors})
    if len(numbers) > 1 or len({id(tensor._session) for tensor in tensors}) > 1:
        raise ValueError(f"{name}: the tensors of {label} are on the nodes {numbers}: all must be on one")


def _overlaps(spec: Spec) -> bool:
    inner = 0  # how far the dimensions that were looked at reach
    for stride, length in sorted(zip(spec.stride, spec.size, strict=True)):
        if length > 1 and stride <= inner:
            return True
        inner += (length - 1) * stride if length else 0
    return False


def _is_op(op: Any, name: str) -> bool:
    return bool(op == getattr(dist.ReduceOp, name))


def _shown(value: object) -> str:
    return f"a {type(value).__name__}"
