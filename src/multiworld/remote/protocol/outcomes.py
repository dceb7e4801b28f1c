"""What a call returned, shown to the master: numbers as they are, tensors by their place among the ids."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import values


def flat(returned: Any) -> list[Tensor | None]:
    """Return the tensors in what an operator returned; None for one that is undefined."""
    if returned is None or isinstance(returned, Tensor):
        return [returned]
    if isinstance(returned, (list, tuple)):
        return [each for item in returned for each in flat(item)]
    return []


def show(returned: Any) -> tuple[Any, list[Tensor]]:
    """Return JSON, and the tensors in it. Raises TypeError for what does not travel."""
    tensors: list[Tensor] = []
    return _shown(returned, tensors), tensors


def _shown(returned: Any, tensors: list[Tensor]) -> Any:
    if isinstance(returned, Tensor):
        if returned.layout is not torch.strided:
            raise TypeError(
                f"a result of layout {returned.layout} can't stay on a node: fetch() its operand, call it here"
            )
        tensors.append(returned)
        return ["tensor", len(tensors) - 1]
    if isinstance(returned, (list, tuple)):
        return ["list" if isinstance(returned, list) else "tuple", [_shown(each, tensors) for each in returned]]
    if isinstance(returned, dict):
        return ["dict", [[_key(key), _shown(each, tensors)] for key, each in returned.items()]]
    return ["value", values.to_json(returned)]


def read(shown: Any, tensors: list[Any]) -> Any:
    """Return what was shown, with ``tensors`` in the place of tensors."""
    kind, content = shown
    if kind == "tensor":
        return tensors[content]
    if kind == "list":
        return [read(each, tensors) for each in content]
    if kind == "tuple":
        return tuple(read(each, tensors) for each in content)
    if kind == "dict":
        return {values.from_json(key): read(each, tensors) for key, each in content}
    return values.from_json(content)


def _key(key: object) -> Any:
    if isinstance(key, (str, int, float)):
        return values.to_json(key)
    raise TypeError(f"a key {key!r}: expected a string or a number")
