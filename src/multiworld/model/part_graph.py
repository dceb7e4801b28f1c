"""Copies operations of a model's graph into the graph of a part."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate


class PartTracer(fx.Tracer):
    """Traces a part when it is unpickled. What is computed of buffers is traced, so new weights have effect."""

    proxy_buffer_attributes = True


class Constant(nn.Module):
    """Holds a tensor outside the ``state_dict``. Pickling would make a buffer of a plain attribute of a GraphModule."""

    value: torch.Tensor

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value, persistent=False)

    def forward(self) -> torch.Tensor:
        return self.value


class PartGraph:
    """``made``: the copies of nodes, the first of them a tensor that the part takes.

    ``state``: the names of weights and buffers; other tensors are constants, see ``hold_constants``.
    """

    def __init__(self, state: Collection[str]) -> None:
        self.graph = fx.Graph(tracer_cls=PartTracer)
        self.made: dict[fx.Node, fx.Node] = {}
        self._state = state
        self._device: fx.Node | None = None

    def make(self, node: fx.Node) -> fx.Node:
        """Return the node's copy in this part. What is computed again is copied with all that it needs."""
        if node not in self.made:
            if node.op == "get_attr" and node.target not in self._state:
                self.made[node] = self.graph.call_module(_constant_name(node))
            else:
                self.made[node] = self._on_any_device(self.graph.node_copy(node, self.make))
        return self.made[node]

    def _on_any_device(self, node: fx.Node) -> fx.Node:
        """Let a copied node use the payload's device in place of the device on which the model was traced."""
        if any(isinstance(value, torch.device) for value in (*node.args, *node.kwargs.values())):
            with self.graph.inserting_before(node):
                tensor = next(iter(self.made.values()))
                self._device = self._device or self.graph.call_function(getattr, (tensor, "device"))
            node.args = map_aggregate(node.args, self._without_device)
            node.kwargs = map_aggregate(node.kwargs, self._without_device)
        return node

    def _without_device(self, value: Any) -> Any:
        return self._device if isinstance(value, torch.device) else value


def hold_constants(module: fx.GraphModule, state: Collection[str]) -> None:
    """Give the module of a graph a part for each of its tensors that are neither weights nor buffers."""
    for node in module.graph.nodes:
        if node.op == "get_attr" and node.target not in state:
            module.add_submodule(_constant_name(node), Constant(attribute(module, str(node.target))))


def attribute(module: nn.Module, target: str) -> torch.Tensor:
    path, _, name = target.rpartition(".")
    value: torch.Tensor = getattr(module.get_submodule(path), name)
    return value


def _constant_name(node: fx.Node) -> str:
    return f"constant_{node.name}"
