"""Makes modules of the parts of a graph that was cut: each takes one payload and returns one."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from .boundaries import Boundary, Layout
from .tracing import Traced

__all__ = ["build"]


def build(traced: Traced, layout: Layout, cuts: Sequence[Boundary]) -> list[nn.Module]:
    """Return the parts between the cuts as modules; their weights are those of the whole, under the same names.

    One tensor goes from part to part as it is, several as a dict.
    """
    befores: list[Boundary | None] = [None, *cuts]
    afters: list[Boundary | None] = [*cuts, None]
    return [
        _Part(traced, layout, before, after).build(f"Part{number}")
        for number, (before, after) in enumerate(zip(befores, afters, strict=True))
    ]


class _Part:
    def __init__(self, traced: Traced, layout: Layout, before: Boundary | None, after: Boundary | None) -> None:
        self._traced, self._layout, self._before, self._after = traced, layout, before, after
        self._graph = fx.Graph()
        self._made: dict[fx.Node, fx.Node] = {}

    def build(self, name: str) -> nn.Module:
        self._unpack()
        start = self._before.end if self._before else 0
        end = self._after.end if self._after else len(self._layout.nodes) - 1
        for node in self._layout.nodes[start:end]:
            if node.op != "placeholder" and node not in self._layout.remade and node not in self._layout.sizes:
                self._make(node)
        self._graph.output(self._pack())
        self._graph.lint()
        return fx.GraphModule(self._traced.module, self._graph, class_name=name)

    def _unpack(self) -> None:
        payload = self._graph.placeholder("payload")
        if self._before is None:
            example = self._traced.example
            for node in self._layout.nodes:
                if node.op == "placeholder":
                    key = example.keys[str(node.target)]
                    self._made[node] = payload if key is None else self._item(payload, key)
            return
        several = len(self._before.tensors) > 1
        for node in self._before.tensors:
            self._made[node] = self._item(payload, node.name) if several else payload
        for size, (tensor, dim) in self._before.sizes.items():
            self._made[size] = self._graph.call_function(torch.ops.aten.sym_size.int, (self._made[tensor], dim))

    def _pack(self) -> Any:
        if self._after is None:
            return fx.map_arg(self._layout.nodes[-1].args[0], self._make)
        made = {node.name: self._make(node) for node in self._after.tensors}
        return made if len(made) > 1 else next(iter(made.values()))

    def _item(self, payload: fx.Node, key: str | int) -> fx.Node:
        return self._graph.call_function(operator.getitem, (payload, key))

    def _make(self, node: fx.Node) -> fx.Node:
        """Return the node's copy in this part; what may be made again is, with all that it is made of."""
        if node not in self._made:
            self._made[node] = self._graph.node_copy(node, self._make)
        return self._made[node]
