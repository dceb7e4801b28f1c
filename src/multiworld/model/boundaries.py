"""Finds the places where a graph of operations can be cut, and the tensors that cross each of them."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx

from .measuring import Measured

RANDOM = ("rand", "normal", "bernoulli", "dropout", "multinomial")


@dataclass(frozen=True)
class Boundary:
    """``end``: how many of the graph's operations lie before it. ``tensors`` cross it; ``sizes`` are read from them.

    ``by_rows``: the first dimension of each tensor is that of the rows, so requests can be concatenated.
    """

    end: int
    tensors: tuple[fx.Node, ...]
    sizes: Mapping[fx.Node, tuple[fx.Node, int]]
    by_rows: bool

    def size_bytes(self, measured: Mapping[fx.Node, Measured]) -> int:
        return sum(measured[node].size_bytes for node in self.tensors)


class Layout:
    """The operations of a graph in order, and which of them each part computes again for itself.

    A part computes again what depends on no request, only on weights, constants and sizes: a mask, positions, rotary
    angles. To send it would cost more, and such a tensor has no rows to concatenate. A tensor that is written into,
    itself or through a view, is sent: computed again, it would lack what was written. ``kept``: further operations that
    are not computed again.
    """

    def __init__(self, graph: fx.Graph, kept: Collection[fx.Node] = ()) -> None:
        self.nodes: list[fx.Node] = list(graph.nodes)
        self.index = {node: index for index, node in enumerate(self.nodes)}
        self.sizes = {node for node in self.nodes if _is_size(node)}
        self.remade = self._made_again(frozenset(kept))
        self.remade = self._made_again(self._written() | frozenset(kept))

    def boundaries(self, measured: Mapping[fx.Node, Measured], with_rows: Collection[fx.Node]) -> list[Boundary]:
        """Return where the graph can be cut. Of places with the same tensors only the first is returned, never the end.

        ``with_rows``: the operations that return a tensor with the requests' rows in front.
        """
        written = self._memory_written(measured)
        found: list[Boundary] = []
        for end in range(1, len(self.nodes) - 1):
            boundary = self._boundary(end, measured, with_rows)
            if boundary is None or _share_any(boundary.tensors, written[end], measured):
                continue
            if not (found and found[-1].tensors == boundary.tensors):
                found.append(boundary)
        return found

    def needed_sizes(self, nodes: Iterable[fx.Node]) -> set[fx.Node]:
        """Return the sizes that nodes need, directly or through what is computed again."""
        return {node for node in self._needed(nodes) if node in self.sizes}

    def needed_weights(self, nodes: Iterable[fx.Node]) -> set[fx.Node]:
        """Return the weights and constants that nodes need, directly or through what is computed again."""
        return {node for node in self._needed(nodes) if node.op == "get_attr"}

    def _needed(self, nodes: Iterable[fx.Node]) -> set[fx.Node]:
        needed: set[fx.Node] = set()
        left = [source for node in nodes for source in node.all_input_nodes]
        while left:
            node = left.pop()
            if node not in needed and (node in self.sizes or node in self.remade):
                needed.add(node)
                left += [] if node in self.sizes else node.all_input_nodes
        return needed

    def crossing(self, end: int) -> tuple[tuple[fx.Node, ...], Mapping[fx.Node, tuple[fx.Node, int]]] | None:
        """Return the values that cross the place before operation ``end``, and where sizes are read from.

        None if nothing but inputs crosses, or a size that no crossing tensor has.
        """
        live = [node for node in self.nodes[:end] if self._last_use.get(node, -1) >= end]
        tensors = tuple(node for node in live if node not in self.remade and node not in self.sizes)
        if not tensors or all(node.op == "placeholder" for node in tensors):
            return None
        sizes = {node: _read_from(node, tensors) for node in live if node in self.sizes}
        readable = {node: place for node, place in sizes.items() if place is not None}
        return (tensors, readable) if len(readable) == len(sizes) else None

    def _boundary(
        self, end: int, measured: Mapping[fx.Node, Measured], with_rows: Collection[fx.Node]
    ) -> Boundary | None:
        crossing = self.crossing(end)
        if crossing is None or any(measured[node].shape is None for node in crossing[0]):
            return None
        return Boundary(end, *crossing, by_rows=all(node in with_rows for node in crossing[0]))

    def _memory_written(self, measured: Mapping[fx.Node, Measured]) -> list[set[int]]:
        """Return for each operation the memory into which it and the later operations write."""
        written: list[set[int]] = [set()]
        for node in reversed(self.nodes):
            into = written_by(node)
            if node.op == "call_module":  # it may return a view, or write into its input as an activation does
                into = [source for source in node.all_input_nodes if measured[source].memory == measured[node].memory]
            written.append(written[-1] | {measured[source].memory for source in into})
        return written[::-1]

    @cached_property
    def _last_use(self) -> dict[fx.Node, int]:
        """Return for each node the last operation that needs it, also through what is computed again there."""
        last: dict[fx.Node, int] = {}
        for node in self.nodes:
            if node in self.remade or node in self.sizes:
                continue
            for source in (*node.all_input_nodes, *self.needed_sizes([node])):
                last[source] = self.index[node]
        return last

    def _made_again(self, written: Collection[fx.Node]) -> set[fx.Node]:
        remade: set[fx.Node] = set()
        for node in self.nodes:
            if node in self.sizes or node in written:
                continue
            if node.op == "get_attr" or (
                _is_pure_call(node) and all(source in remade or source in self.sizes for source in node.all_input_nodes)
            ):
                remade.add(node)
        return remade

    def _written(self) -> set[fx.Node]:
        """Return the nodes to be computed again whose memory an operation writes into."""
        written: set[fx.Node] = set()
        left = [node for writer in self.nodes for node in written_by(writer)]
        while left:
            node = left.pop()
            if node in self.remade and node not in written:
                written.add(node)
                left += maybe_viewed_by(node)
                left += [user for user in node.users if node in maybe_viewed_by(user)]
        return written


def _share_any(tensors: Iterable[fx.Node], written: Collection[int], measured: Mapping[fx.Node, Measured]) -> bool:
    """Return whether two tensors share memory that is written into. Once sent, each would have memory of its own."""
    counts = Counter(measured[node].memory for node in tensors)
    return any(count > 1 and memory in written for memory, count in counts.items())


def _is_pure_call(node: fx.Node) -> bool:
    if node.op not in ("call_function", "call_method") or node.is_impure():
        return False
    name = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", node.target))
    return not any(word in name for word in RANDOM) and not written_by(node)


def written_by(node: fx.Node) -> list[fx.Node]:
    """Return the tensors that an operation writes into."""
    if isinstance(node.target, torch._ops.OpOverload):
        return _arguments(node, node.target, only_written=True)
    name = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))
    found: list[fx.Node] = []
    if node.op in ("call_method", "call_function"):
        if name.endswith("_") or name == "setitem" or node.kwargs.get("inplace"):
            fx.map_arg(node.args[:1], found.append)
        fx.map_arg(node.kwargs.get("out"), found.append)
    return found


def maybe_viewed_by(node: fx.Node) -> list[fx.Node]:
    """Return the tensors that an operation's result may be a view of."""
    if isinstance(node.target, torch._ops.OpOverload):
        return _arguments(node, node.target, only_written=False)
    return node.all_input_nodes


def _arguments(node: fx.Node, target: torch._ops.OpOverload[..., Any], *, only_written: bool) -> list[fx.Node]:
    """Return the tensors that an operation's schema writes into; unless ``only_written``, also those it views."""
    found: list[fx.Node] = []
    for place, argument in enumerate(target._schema.arguments):
        alias = argument.alias_info
        if alias is not None and (alias.is_write or not only_written):
            fx.map_arg(node.args[place] if place < len(node.args) else node.kwargs.get(argument.name), found.append)
    return found


def _is_size(node: fx.Node) -> bool:
    """Return whether a node is a size that torch.export left free."""
    return node.target is torch.ops.aten.sym_size.int and isinstance(node.meta.get("val"), torch.SymInt)


def _read_from(size: fx.Node, tensors: Iterable[fx.Node]) -> tuple[fx.Node, int] | None:
    """Return a tensor and its dimension that always has this size."""
    wanted = size.meta["val"].node.expr
    for tensor in tensors:
        for dim, have in enumerate(getattr(tensor.meta["val"], "shape", ())):
            if isinstance(have, torch.SymInt) and operator.eq(have.node.expr, wanted):
                return tensor, dim
    return None
