"""Turns the graphs that torch.export makes of ``torch.autocast`` and ``torch.no_grad`` blocks into modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate

MODES = ("wrap_with_autocast", "wrap_with_set_grad_enabled")


def as_modules(module: fx.GraphModule) -> None:
    """Replace each call of such a graph by a call of a module that can be copied and pickled; nested graphs, too.

    Raises NotImplementedError for graphs that are chosen by values, as in ``torch.cond``: the values of several
    requests would choose one graph for all of them.
    """
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.HigherOrderOperator):
            continue
        inner = {source: _graph_of(module, source) for source in node.all_input_nodes if source.op == "get_attr"}
        graphs = {source: graph for source, graph in inner.items() if graph is not None}
        if not graphs:
            continue
        if node.target.__name__ not in MODES:
            raise NotImplementedError(f"{node.target} has operations of its own")
        for graph in graphs.values():
            as_modules(graph)
        tensors = [source for source in node.all_input_nodes if source not in graphs]
        name = f"region_{node.name}"
        module.add_submodule(name, _Region(node, tensors, graphs))
        with module.graph.inserting_before(node):
            call = module.graph.call_module(name, tuple(tensors))
        call.meta = node.meta
        node.replace_all_uses_with(call)
        module.graph.erase_node(node)
        for source in graphs:
            if not source.users:
                module.graph.erase_node(source)
    module.recompile()


@dataclass(frozen=True)
class _Given:
    place: int


@dataclass(frozen=True)
class _Inner:
    name: str


class _Region(nn.Module):
    """Holds the operator's name, not the operator: an unpickled operator would be another object."""

    def __init__(self, node: fx.Node, tensors: list[fx.Node], graphs: dict[fx.Node, fx.GraphModule]) -> None:
        super().__init__()
        assert isinstance(node.target, torch._ops.HigherOrderOperator)
        self.operator: str = node.target.__name__
        stands_for: dict[Any, _Given | _Inner] = {tensor: _Given(place) for place, tensor in enumerate(tensors)}
        for place, (source, graph) in enumerate(graphs.items()):
            self.add_module(f"inner{place}", graph)
            stands_for[source] = _Inner(f"inner{place}")

        def stand_in(value: Any) -> Any:
            return stands_for[value] if isinstance(value, fx.Node) else value

        self.args: Any = map_aggregate(node.args, stand_in)
        self.kwargs: Any = map_aggregate(dict(node.kwargs), stand_in)

    def forward(self, *tensors: torch.Tensor) -> Any:
        def actual(value: Any) -> Any:
            if isinstance(value, _Given):
                return tensors[value.place]
            return getattr(self, value.name) if isinstance(value, _Inner) else value

        args: Any = map_aggregate(self.args, actual)
        kwargs: Any = map_aggregate(self.kwargs, actual)
        return getattr(torch.ops.higher_order, self.operator)(*args, **kwargs)


def _graph_of(module: fx.GraphModule, source: fx.Node) -> fx.GraphModule | None:
    path, _, name = str(source.target).rpartition(".")
    value = getattr(module.get_submodule(path), name)
    return value if isinstance(value, fx.GraphModule) else None
