"""Knows the values of weights while a model is traced, and which of them chose a branch."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

if TYPE_CHECKING:
    from collections.abc import Collection

OF_ALL_VALUES = (
    "shape",
    "dtype",
    "device",
    "layout",
    "ndim",
    "size",
    "dim",
    "numel",
    "stride",
    "is_cuda",
    "is_floating",
)
"""Attributes and methods that are the same for all values of a tensor."""


class WeightProxy(fx.Proxy):
    """Stands for a weight, or for what is computed of weights alone. Its value is known."""

    def __int__(self) -> int:
        return int(self._value())

    def __float__(self) -> float:
        return float(self._value())

    def __index__(self) -> int:
        return operator.index(self._value())

    def _value(self) -> Any:
        return self.tracer.value_of(self)  # type: ignore[attr-defined]


class WeightValues:
    """The values of all nodes so far that are computed of weights alone.

    ``pinned``: the parameters and buffers whose values the model has asked for, in that order.
    """

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._nodes: dict[fx.Node, None] = {}  # those computed of weights alone, in the order of the graph
        self._values: dict[fx.Node, Any] = {}
        self.pinned: dict[str, None] = {}
        self.was_asked = False

    def holds(self, node: fx.Node) -> bool:
        """Return whether a new node is computed of weights alone, and remember it."""
        inputs = node.all_input_nodes
        is_operation = node.op in ("call_function", "call_method") and bool(inputs)
        if node.op == "get_attr" or (is_operation and all(source in self._nodes for source in inputs)):
            self._nodes[node] = None
            return True
        return False

    def value_of(self, node: fx.Node) -> Any:
        """Return the value of a node, and pin the weights that it depends on.

        Raises TraceError if it depends on an input.
        """
        if node not in self._nodes or any(map(self._is_written_from_elsewhere, self._nodes)):
            raise fx.proxy.TraceError("what depends on a request cannot choose what is computed")
        for known in self._nodes:  # in order, in-place operations included
            if known not in self._values:
                self._values[known] = self._run(known)
        self.was_asked = True
        self.pinned.update(dict.fromkeys(_sources(node)))
        return self._values[node]

    def _is_written_from_elsewhere(self, node: fx.Node) -> bool:
        return any(user not in self._nodes and _may_write(user) and user.args[:1] == (node,) for user in node.users)

    def _run(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return self._weight(str(node.target)).detach().clone()
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._values.__getitem__)
        with torch.no_grad():
            if isinstance(node.target, str):
                return getattr(args[0], node.target)(*args[1:], **kwargs)
            return node.target(*args, **kwargs)

    def _weight(self, target: str) -> torch.Tensor:
        """Return a weight from the module's own dicts: while a module is traced, its attributes are proxies."""
        path, _, name = target.rpartition(".")
        held = vars(self._root.get_submodule(path))
        for tensors in (held["_parameters"], held["_buffers"], held):
            if isinstance(tensors.get(name), torch.Tensor):
                weight: torch.Tensor = tensors[name]
                return weight
        raise fx.proxy.TraceError(f"{target} is no tensor")


def is_same(weights: Collection[torch.Tensor], values: Collection[torch.Tensor]) -> list[bool]:
    """Return for each weight whether it still has its value."""
    return [
        weight.shape == value.shape and bool(torch.equal(weight, value.to(weight.device)))
        for weight, value in zip(weights, values, strict=True)
    ]


def _sources(node: fx.Node) -> list[str]:
    """Return the weights whose values a node depends on. A use of the shape or the type alone does not count."""
    found: dict[str, None] = {}
    seen: set[fx.Node] = set()
    left = [node]
    while left:
        each = left.pop()
        if each in seen:
            continue
        seen.add(each)
        if each.op == "get_attr":
            found[str(each.target)] = None
        elif not _is_of_all_values(each):
            left += each.all_input_nodes
            left += [user for source in each.all_input_nodes for user in source.users if _may_write(user)]
    return list(found)


def _is_of_all_values(node: fx.Node) -> bool:
    name = node.args[1] if node.target is getattr else node.target
    return name in OF_ALL_VALUES


def _may_write(node: fx.Node) -> bool:
    """Return whether an operation may write into one of its arguments."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    is_in_place = (name.endswith("_") and not name.endswith("__")) or name in ("setitem", "__setitem__")
    return is_in_place or bool(node.kwargs.get("inplace")) or "out" in node.kwargs
