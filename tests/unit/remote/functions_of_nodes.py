"""Functions that the nodes of tests declare."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

OTHERS: list[Tensor] = []
"""A function keeps here what it got."""


def load_shard(name: str, rows: int = 2) -> Tensor:
    return torch.full((rows, len(name)), 0.5)


def state(scale: float, tensors: list[Tensor]) -> dict[str, object]:
    return {
        "sum": sum(each.sum() for each in tensors) * scale,
        "pair": (tensors[0][:1], [1, "two", None]),
        "scale": scale,
    }


def spoil(tensor: Tensor, other: Tensor) -> None:
    tensor.zero_()
    raise OSError(f"the disk is gone, and other is {other.tolist()}")


def leave() -> None:
    raise SystemExit(3)


def transposed(tensor: Tensor) -> Tensor:
    return tensor.t()


def with_gradient() -> Tensor:
    return torch.ones(2, requires_grad=True)


def odd() -> object:
    return object()


NOT_A_FUNCTION = 3

BEGAN, GO = threading.Event(), threading.Event()
"""Set by ``wait``, and what it waits for."""


def wait() -> Tensor:
    BEGAN.set()
    assert GO.wait(30)
    return torch.ones(1)


def fail_on_gpu(code: int) -> Tensor:
    """Raise what PyTorch raises for an error of CUDA with this number."""
    error = torch.AcceleratorError(
        "CUDA error: device-side assert triggered\nCUDA kernel errors might be reported late"
    )
    error.error_code = code  # type: ignore[attr-defined]
    raise error
