"""What c10d hands to a group, as the operations of a world want it: one tensor for each rank."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import InvalidTypeError, InvalidValueError, MissingTensorError
from ..operations.arguments import check_dense


def only(tensors: Any, name: str = "tensors") -> Tensor:
    """Return the tensor of this rank: c10d passes a list, in which there once was one for each device."""
    if isinstance(tensors, Tensor):
        return ready(tensors)
    _check_list(tensors, name)
    if len(tensors) != 1:
        raise InvalidValueError(f"{name}: expected one tensor, got {len(tensors)}: a rank has one device")
    return _ready(tensors[0], f"{name}[0]")


def only_list(lists: Any, name: str) -> list[Tensor]:
    """As ``only``, of lists with a tensor for each rank. That list may also stand alone."""
    _check_list(lists, name)
    if isinstance(lists[0], Tensor):
        return [_ready(tensor, f"{name}[{index}]") for index, tensor in enumerate(lists)]
    if len(lists) != 1:
        raise InvalidValueError(f"{name}: expected one list of tensors, got {len(lists)}: a rank has one device")
    _check_list(lists[0], f"{name}[0]")
    return [_ready(tensor, f"{name}[0][{index}]") for index, tensor in enumerate(lists[0])]


def alike(tensors: Any) -> list[Tensor]:
    """Return the tensors of a coalesced operation, which must be dense, of one dtype and on one device."""
    _check_list(tensors, "tensors")
    own = [_ready(tensor, f"tensors[{index}]") for index, tensor in enumerate(tensors)]
    for index, tensor in enumerate(own):
        check_dense(tensor, f"tensors[{index}]")
        if (tensor.dtype, tensor.device) != (own[0].dtype, own[0].device):
            raise InvalidValueError(
                f"tensors[{index}] is {tensor.dtype} on {tensor.device}, but tensors[0] is {own[0].dtype} on "
                f"{own[0].device}: one coalesced operation takes tensors of one dtype and device"
            )
    return own


def pairs(outputs: Sequence[Any], inputs: Sequence[Tensor]) -> list[tuple[Any, Tensor]]:
    """Return the outputs of a coalesced operation, each with its input."""
    _check_list(outputs, "outputs")
    _check_list(inputs, "inputs")
    if len(outputs) != len(inputs):
        raise InvalidValueError(f"there are {len(outputs)} outputs, but {len(inputs)} inputs: one for each")
    return list(zip(outputs, inputs, strict=True))


def overlap(tensors: Sequence[Tensor]) -> bool:
    """Whether two dense tensors among them may share memory: certainly not if this is False."""
    spans = sorted((tensor.data_ptr(), tensor.data_ptr() + _extent(tensor)) for tensor in tensors if tensor.numel())
    return any(before[1] > after[0] for before, after in itertools.pairwise(spans))


def _extent(tensor: Tensor) -> int:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (reach + 1) * tensor.element_size()


def _check_list(tensors: Any, name: str) -> None:
    if not isinstance(tensors, list | tuple):
        raise InvalidTypeError(f"{name} must be a list of tensors, got {tensors!r:.100}")
    if not tensors:
        raise MissingTensorError(f"{name} is empty")


def _ready(tensor: Any, name: str) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise InvalidTypeError(f"{name} must be a tensor, got {tensor!r:.100}")
    return ready(tensor)


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
    own = _dense(tensor, name)
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


def _dense(tensor: Tensor, name: str) -> Tensor:
    own = ready(tensor).detach()
    check_dense(own, name)
    return own


def split(tensor: Tensor, sizes: Sequence[int], num_ranks: int, name: str) -> list[Tensor]:
    """Cut a tensor along its first dimension: into ``sizes``, or evenly if there are none. Outside of autograd."""
    own = _dense(tensor, name)
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
