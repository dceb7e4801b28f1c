"""Catches the matrix products with weights in a forward, so that the gradients of these weights can be put off.

What is not caught gets its gradients with those of the inputs: embeddings, convolutions, norms, layers that PyTorch
has compiled, and what is computed again in backward (``torch.utils.checkpoint``), for there nothing is caught.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .products import multiply
from .put_off import Product, PutOff


class Catching(TorchFunctionMode):
    """In it, ``linear`` and ``addmm`` with parameters put their gradients off. For the forward of one micro-batch."""

    def __init__(self, put_off: PutOff) -> None:
        super().__init__()
        self._put_off = put_off

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:
        given = kwargs or {}
        if torch.compiler.is_compiling():  # first: what a compiler reads here is a reason to compile again
            return func(*args, **given)
        caught = _CAUGHT.get(func)
        if caught is None or types or not torch.is_grad_enabled() or _has_hooks():
            return func(*args, **given)
        result = caught(self._put_off, *args, **given)
        return func(*args, **given) if result is None else result


def _has_hooks() -> bool:
    """Return whether somebody packs what is saved for backward, as a checkpoint does, which computes it again."""
    try:
        with disable_saved_tensors_hooks("nothing is saved here"):
            return False
    except RuntimeError:
        return True


def _linear(put_off: PutOff, values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """Compute it as PyTorch does: with or without the bias in the product, depending on the shape."""
    if not _is_caught(put_off, values, weight) or values.dim() < 2 or values.shape[-1] != weight.shape[-1]:
        return None
    with_bias = bias is not None and (values.dim() == 2 or values.is_contiguous())
    if with_bias and not _is_bias(bias, weight.shape[0], weight):
        return None
    assert isinstance(weight, nn.Parameter)
    of_product = bias if with_bias and isinstance(bias, nn.Parameter) else None
    rows = values if values.dim() == 2 else values.reshape(-1, values.shape[-1])
    result = multiply(rows, Product(weight, True, of_product), put_off)
    if values.dim() > 2:
        result = result.view(*values.shape[:-1], result.shape[-1])
    return result if with_bias or bias is None else result + bias


def _addmm(
    put_off: PutOff, bias: Tensor, rows: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor | None:
    """Compute ``bias + rows @ weight``, as the Conv1D of Hugging Face's GPT-2 does."""
    if (
        not _is_caught(put_off, rows, weight)
        or rows.dim() != 2
        or rows.shape[1] != weight.shape[0]
        or (beta, alpha) != (1, 1)
    ):
        return None
    if not _is_bias(bias, weight.shape[1], weight):
        return None
    assert isinstance(weight, nn.Parameter)
    assert isinstance(bias, nn.Parameter)
    return multiply(rows, Product(weight, False, bias), put_off)


_CAUGHT: dict[Callable[..., Any], Callable[..., Tensor | None]] = {functional.linear: _linear, torch.addmm: _addmm}


def _is_caught(put_off: PutOff, values: Tensor, weight: Tensor) -> bool:
    is_cast = torch.is_autocast_enabled(values.device.type)
    return (
        isinstance(weight, nn.Parameter)
        and weight.requires_grad
        and weight.dim() == 2
        and weight.is_floating_point()
        and weight.layout == values.layout == torch.strided
        and weight.device == values.device
        and (weight.dtype == values.dtype if not is_cast else not put_off.is_exact)
        and values.numel() > 0
        and _has_memory(values)
    )


def _has_memory(values: Tensor) -> bool:
    """Return whether it is a tensor, and not one that stands for others in a transform of ``torch.func``."""
    try:
        values.untyped_storage()
    except NotImplementedError:
        return False
    return True


def _is_bias(bias: Tensor | None, size: int, weight: Tensor) -> bool:
    return isinstance(bias, nn.Parameter) and bias.shape == (size,) and bias.dtype == weight.dtype
