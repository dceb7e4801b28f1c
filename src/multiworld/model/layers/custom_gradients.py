"""Finds the parts of a model that define gradients of their own, which torch.export does not see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.autograd.function import BackwardCFunction

from ..structure import taken_apart


def with_own_gradients(model: nn.Module, run: Callable[[], object]) -> list[str]:
    """Return the paths of the innermost parts that apply a ``torch.autograd.Function`` when the model runs.

    The path is empty for the model itself. The run has to compute gradients.
    """
    found: list[str] = []
    seen: set[Any] = set()  # held, so that no later node is taken for one of these

    def looking(path: str) -> Callable[..., None]:
        def look(part: nn.Module, args: Any, output: Any) -> None:
            left = [value.grad_fn for value in taken_apart(output)[0]]
            while left:
                node = left.pop()
                if node is not None and node not in seen:
                    seen.add(node)
                    left += [source for source, _ in node.next_functions]
                    if isinstance(node, BackwardCFunction):
                        found.append(path)

        return look

    handles = [part.register_forward_hook(looking(path)) for path, part in model.named_modules()]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return list(dict.fromkeys(found))
