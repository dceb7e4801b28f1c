"""Several sends and receives that are started together, as ``torch.distributed.batch_isend_irecv`` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import InvalidTypeError, InvalidValueError
from ..world.request import Request
from .messages import irecv, isend
from .process_group import AnyGroup

__all__ = ["P2POp", "batch_isend_irecv"]


@dataclass(frozen=True)
class P2POp:
    """One of a batch. ``op``: ``isend`` or ``irecv`` of this package; ``peer``: a rank in the whole program."""

    op: Callable[..., Request[Any]]
    tensor: Tensor
    peer: int
    group: AnyGroup = None
    tag: int = 0

    def __post_init__(self) -> None:
        if self.op not in (isend, irecv):
            raise InvalidValueError(f"op must be isend or irecv of multiworld.distributed, got {self.op!r}")


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Request[Any]]:
    """Start all of them, receives first, and return their requests in the order of the list.

    No order is needed between the members: each operation makes progress by itself. Where one cannot be started, those
    that were are cancelled, and its error is raised.
    """
    for each in p2p_op_list:
        if not isinstance(each, P2POp):
            raise InvalidTypeError(f"a batch has P2POp objects, got {each!r}")
    if not p2p_op_list:
        raise InvalidValueError("a batch needs at least one P2POp")
    requests: dict[int, Request[Any]] = {}
    try:
        for index in sorted(range(len(p2p_op_list)), key=lambda index: p2p_op_list[index].op is isend):
            each = p2p_op_list[index]
            requests[index] = each.op(each.tensor, each.peer, each.group, each.tag)
    except BaseException:
        for request in requests.values():
            request.cancel()
        raise
    return [requests[index] for index in range(len(p2p_op_list))]
