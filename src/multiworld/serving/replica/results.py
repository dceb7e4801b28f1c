"""Decides what a stage's work may return, and makes it a payload that nobody changes any more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...channel.base import Payload
from ...channel.payload.tensors import CODES
from ..flow.payloads import Packed

SMALL_BYTES = 64 << 10  # is copied faster than it is found out whether it has to be


def checked_result(result: Any, *, is_ours: bool) -> Payload:
    """Return what the work gave as a payload of contiguous CPU tensors; TypeError if it is none.

    Results stay here until the next stage's own have been accepted, and may be sent again: a work that gives the same
    buffer every time would change them afterward. Small tensors are copied; large ones unless ``is_ours``.
    """
    if isinstance(result, Tensor):
        return _ready(result, is_ours)
    if isinstance(result, dict) and all(isinstance(name, str) for name in result):
        if all(isinstance(value, Tensor) for value in result.values()):
            return {_name(name): _ready(value, is_ours) for name, value in result.items()}
    elif isinstance(result, (list, tuple)) and all(isinstance(value, Tensor) for value in result):
        return [_ready(value, is_ours) for value in result]
    raise TypeError(f"expected a tensor, or a list or dict of tensors, but the work returned {_describe(result)}")


def small_copy(result: Any) -> Packed | None:
    """Return a copy of a small tensor that can be sent as it is; None for anything else, which is to be checked."""
    if isinstance(result, Tensor) and is_plain(result) and result.nbytes <= SMALL_BYTES:
        return Packed(result)
    return None


def sendable(tensor: Tensor) -> Tensor | None:
    """Return it contiguous and in memory of this host; None if nothing of its type can be sent."""
    if is_plain(tensor):
        return tensor
    ready = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    if type(ready) is not Tensor:
        ready = ready.as_subclass(Tensor)
    return ready if ready.dtype in CODES else None


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor can be sent as it is: contiguous, in memory of this host, without a graph behind it."""
    return (
        type(tensor) is Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and tensor.dtype in CODES
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


def _ready(tensor: Tensor, is_ours: bool) -> Tensor:
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}"
        raise TypeError(f"the work returned {kind}, expected torch.strided")
    ready = sendable(tensor)
    if ready is None:
        raise TypeError(f"the work returned a tensor of type {tensor.dtype}, which cannot be sent")
    is_copy = ready.data_ptr() != tensor.data_ptr() or tensor.device.type != "cpu"
    return ready.clone() if not is_copy and (ready.nbytes <= SMALL_BYTES or not is_ours) else ready


def _name(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise TypeError(f"the work returned a dict with the name {name!r}, which is no text") from None
    return name


def _describe(result: Any) -> str:
    if isinstance(result, (list, tuple, dict)):
        values = result.values() if isinstance(result, dict) else result
        kinds = sorted({type(value).__name__ for value in values})
        return f"a {type(result).__name__} of {', '.join(kinds) or 'nothing'}"
    return f"a {type(result).__name__}"
