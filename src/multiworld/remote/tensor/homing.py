"""Gradients of copies that C++ makes come home: for it, all places have the same label, and it leaves them there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .moving import moved, place_of


class Homing:
    """A hook of a tensor that was copied to another place: its gradient comes to where the tensor is."""

    __torch_unserializable__ = True  # a file has no hooks, and PyTorch need not warn of it

    def __init__(self, cls: type[Any], source: Tensor) -> None:
        self._cls, self._home = cls, place_of(source)

    def __call__(self, gradient: Tensor) -> Tensor | None:
        if place_of(gradient) == self._home:
            return None
        return moved(self._cls, gradient, self._home, "backward")  # type: ignore[no-any-return]


def bring_home(cls: type[Any], source: Tensor) -> None:
    """Have the gradient of ``source``, a tensor that is copied to another place, come to the place of ``source``."""
    if not source.requires_grad or not torch.is_grad_enabled():
        return
    if not any(isinstance(hook, Homing) for hook in (source._backward_hooks or {}).values()):
        source.register_hook(Homing(cls, source))  # type: ignore[no-untyped-call]
