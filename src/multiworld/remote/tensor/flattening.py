"""What PyTorch asks wrappers of other tensors for: ``Module.to`` swaps parameters that have it."""

from __future__ import annotations

from typing import Any

from torch._subclasses.functional_tensor import FunctionalTensor

from ..errors import UnsupportedOperationError


def flattened(tensor: Any) -> tuple[list[str], Any]:
    return ["_like"], tensor.get_node()


def unflattened(inner: Any, context: Any, size: Any, stride: Any) -> Any:
    """Raises UnsupportedOperationError for a compiler that looks inside: the code that it makes would run here."""
    like = inner["_like"]
    if isinstance(like, FunctionalTensor):
        raise UnsupportedOperationError(
            "torch.compile",
            f"the code that it makes runs on the master, and the tensor is on node {context}",
            'Use remote.compile(fn), or torch.compile(fn, backend="eager")',
        )
    return like
