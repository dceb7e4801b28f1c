"""What c10d hands to a group, as the operations of a world want it: one tensor for each rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from ..channel.base import ReduceOp
from ..errors import InvalidValueError

__all__ = ["only", "only_list", "parts_of", "ready", "reduce_op_of", "seconds_of", "split"]


def only(tensors: Any) -> Tensor:
    """Return the tensor of this rank: c10d passes a list, in which there once was one for each device."""
    if isinstance(tensors, Tensor):
        return ready(tensors)
    if len(tensors) != 1:
        raise InvalidValueError(f"expected one tensor, got {len(tensors)}: a rank has one device")
    return ready(tensors[0])


def only_list(lists: Any) -> list[Tensor]:
    """As ``only``, of lists with a tensor for each rank."""
    if len(lists) != 1:
        raise InvalidValueError(f"expected one list of tensors, got {len(lists)}: a rank has one device")
    return [ready(tensor) for tensor in lists[0]]


def ready(tensor: Tensor) -> Tensor:
    """Return the tensor that the result of a functional collective (``AsyncCollectiveTensor``) stands for, or itself.

    Such a one has no memory of its own, and waits for its collective when it is used.
    """
    wait: Callable[[], Tensor] | None = getattr(tensor, "trigger_wait", None)
    return tensor if wait is None else wait()


def parts_of(tensor: Tensor, num_ranks: int, shape: torch.Size, name: str) -> list[Tensor]:
    """Return views of ``shape``, one for each rank, that follow each other in a tensor, outside of autograd.

    The tensor may be flat, ``[num_ranks, *shape]``, or ``[num_ranks * shape[0], ...]``.
    """
    own = ready(tensor).detach()
    numel = math.prod(shape)
    if own.numel() != num_ranks * numel:
        raise InvalidValueError(
            f"{name} holds {own.numel()} elements, but must hold {num_ranks} ranks x {numel} = {num_ranks * numel}"
        )
    if own.is_contiguous():
        return list(own.view(num_ranks, *shape).unbind())
    if own.shape == (num_ranks, *shape):
        return list(own.unbind())
    if shape and own.shape == (num_ranks * shape[0], *shape[1:]):
        return list(torch.split(own, shape[0]))
    raise InvalidValueError(
        f"{name} is not contiguous, and its shape {list(own.shape)} does not say where the parts begin"
    )


def split(tensor: Tensor, sizes: Sequence[int], num_ranks: int, name: str) -> list[Tensor]:
    """Cut a tensor along its first dimension: into ``sizes``, or evenly if there are none. Outside of autograd."""
    own = ready(tensor).detach()
    length = own.shape[0] if own.dim() else 0
    if not sizes:
        if not own.dim() or length % num_ranks:
            raise InvalidValueError(
                f"{name} has shape {list(own.shape)}: its first dimension must divide by {num_ranks} ranks"
            )
        sizes = [length // num_ranks] * num_ranks
    if len(sizes) != num_ranks or sum(sizes) != length:
        raise InvalidValueError(
            f"the split sizes {list(sizes)} of {name} must be {num_ranks} numbers that add up to {length}"
        )
    return list(torch.split(own, list(sizes)))


def reduce_op_of(opts: Any) -> Any:
    """Return the reduce operation of an options object, or the operation itself; SUM for None."""
    return ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)


def seconds_of(opts: Any) -> float | None:
    """Return the deadline of an options object; None where c10d means the group's own, which it says by -1 ms."""
    timeout: timedelta | None = getattr(opts, "timeout", None)
    return None if timeout is None or timeout <= timedelta(0) else timeout.total_seconds()
