"""Messages between two processes. Ranks are those in the whole program, also within a group.

``timeout_s`` is the operation's deadline; None: the group's, ``math.inf``: none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from torch import Tensor

from ..channel.base import ANY_RANK, Payload
from ..errors import InvalidTypeError, InvalidValueError
from ..world.operations.request import Request
from .default import find_group
from .process_group import AnyGroup


def send(tensor: Tensor, dst: int, group: AnyGroup = None, tag: int = 0, *, timeout_s: float | None = None) -> None:
    """Send a tensor of any dtype and shape; returns when its memory may be changed again."""
    members = find_group(group)
    members.world.blocking.send(tensor, members.peer(dst, "dst"), tag, members.deadline(timeout_s))


@overload
def recv(
    tensor: Tensor, src: int | None = None, group: AnyGroup = None, tag: int = 0, *, timeout_s: float | None = None
) -> int: ...


@overload
def recv(tensor: int, *, group: AnyGroup = None, tag: int = 0, timeout_s: float | None = None) -> Payload: ...


def recv(
    tensor: Tensor | int,
    src: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    *,
    timeout_s: float | None = None,
) -> int | Payload:
    """Receive into ``tensor`` from ``src`` (None: any member that has sent with that tag); return who sent it.

    Receives that name the sender come first, and senders take turns. ``recv(rank)`` receives from that rank without a
    tensor, and returns what it sent: a new tensor of that dtype and shape.
    """
    if isinstance(tensor, int):
        return recv_tensors(_only_source(tensor, src), group, tag, timeout_s=timeout_s)
    members = find_group(group)
    deadline = members.deadline(timeout_s)
    if src is None:
        return members.ranks[members.world.blocking.recv_any(tensor, tag, deadline)]
    members.world.blocking.recv(tensor, members.peer(src, "src"), tag, deadline)
    return src


def isend(
    tensor: Tensor, dst: int, group: AnyGroup = None, tag: int = 0, *, timeout_s: float | None = None
) -> Request[None]:
    """Start a send; leave the tensor alone until the request is done."""
    members = find_group(group)
    return members.world.blocking.isend(tensor, members.peer(dst, "dst"), tag, members.deadline(timeout_s))


@overload
def irecv(
    tensor: Tensor, src: int | None = None, group: AnyGroup = None, tag: int = 0, *, timeout_s: float | None = None
) -> Request[int]: ...


@overload
def irecv(tensor: int, *, group: AnyGroup = None, tag: int = 0, timeout_s: float | None = None) -> Request[Payload]: ...


def irecv(
    tensor: Tensor | int,
    src: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    *,
    timeout_s: float | None = None,
) -> Request[int] | Request[Payload]:
    """Start a receive; the request's result is the rank of the sender, or with ``irecv(rank)`` what it sent."""
    if isinstance(tensor, int):
        return irecv_tensors(_only_source(tensor, src), group, tag, timeout_s=timeout_s)
    members = find_group(group)
    world, deadline = members.world, members.deadline(timeout_s)
    if src is None:
        anyone = world.start_recv_any(tensor, tag, deadline)
        return Request(world, anyone, "irecv", ANY_RANK, members.ranks.__getitem__)
    peer = members.peer(src, "src")
    return Request(world, world.start_recv(tensor, peer, tag, deadline), "irecv", peer, lambda _: src)


def send_tensors(
    payload: Payload, dst: int, group: AnyGroup = None, tag: int = 0, *, timeout_s: float | None = None
) -> None:
    """Send a tensor, a list or a ``dict[str, Tensor]``; the receiver need not know dtypes and shapes."""
    members = find_group(group)
    members.world.blocking.send_tensors(payload, members.peer(dst, "dst"), tag, members.deadline(timeout_s))


def recv_tensors(src: int, group: AnyGroup = None, tag: int = 0, *, timeout_s: float | None = None) -> Payload:
    """Receive what ``send_tensors`` (or ``send``) sent, in new tensors."""
    members = find_group(group)
    return members.world.blocking.recv_tensors(members.peer(src, "src"), tag, members.deadline(timeout_s))


def isend_tensors(
    payload: Payload, dst: int, group: AnyGroup = None, tag: int = 0, *, timeout_s: float | None = None
) -> Request[None]:
    """Start ``send_tensors``."""
    members = find_group(group)
    return members.world.blocking.isend_tensors(payload, members.peer(dst, "dst"), tag, members.deadline(timeout_s))


def irecv_tensors(
    src: int, group: AnyGroup = None, tag: int = 0, *, timeout_s: float | None = None
) -> Request[Payload]:
    """Start ``recv_tensors``; the payload is the request's result."""
    members = find_group(group)
    return members.world.blocking.irecv_tensors(members.peer(src, "src"), tag, members.deadline(timeout_s))


def _only_source(rank: int, src: int | None) -> int:
    if src is not None:
        raise TypeError(f"recv({rank}, src={src}) names two ranks: pass a tensor and src, or the rank alone")
    return rank


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
