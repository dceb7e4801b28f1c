"""Keep a copy of a training's state in memory, to roll back to after a bad step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..state import StateDict, Stateful


class Snapshot:
    """One copy, written over by the next. It is itself a part of the state: newcomers and checkpoints have it, too.

    The copy lies where the state lies, and costs as much memory. The training thread uses it, between two steps.
    """

    def __init__(self, parts: Callable[[], Mapping[str, Stateful]]) -> None:
        self._parts = parts
        self._kept: StateDict = {}
        self.step = -1
        """The index of the step that was next when it was taken; -1: there is none."""

    def take(self, step: int) -> None:
        parts = self._parts()
        self._kept = {name: _copied(part.state_dict(), self._kept.get(name)) for name, part in parts.items()}
        self.step = step

    def restore(self) -> int:
        """Load it into the parts, and return its step."""
        if self.step < 0:
            raise RuntimeError("no snapshot was taken")
        for name, part in self._parts().items():
            part.load_state_dict(_copied(self._kept[name], None))  # an optimizer keeps the tensors that it is given
        return self.step

    def state_dict(self) -> StateDict:
        return {"step": self.step, "parts": self._kept}

    def load_state_dict(self, state: StateDict) -> None:
        self._kept, self.step = _copied(state["parts"], None), int(state["step"])


def _copied(value: Any, into: Any) -> Any:
    """Return a deep copy; tensors of ``into`` in the same place are written over, as fresh memory costs more."""
    if isinstance(value, Tensor):
        with torch.no_grad():
            if isinstance(into, Tensor) and (into.shape, into.dtype, into.device) == (
                value.shape,
                value.dtype,
                value.device,
            ):
                return into.copy_(value)
            return value.detach().clone()
    if isinstance(value, Mapping):
        there = into if isinstance(into, Mapping) else {}
        return {key: _copied(each, there.get(key)) for key, each in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        there_too = into if isinstance(into, (list, tuple)) and len(into) == len(value) else [None] * len(value)
        return type(value)(_copied(each, other) for each, other in zip(value, there_too, strict=True))
    return value
