"""Builds a module of each part of a graph. A part takes one payload and returns one."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from .boundaries import Boundary, Layout
from .errors import PayloadMismatchError
from .part_graph import PartGraph, attribute, hold_constants
from .tracing import guards
from .tracing.pinning import is_same
from .tracing.traced import Key, Traced, fixed_sizes


def build(
    traced: Traced, layout: Layout, cuts: Sequence[Boundary], state: Collection[str], num_rows: int | None
) -> list[nn.Module]:
    """Return the parts between the cuts as modules. They use the weights of the whole, under the same names.

    One tensor crosses a cut as it is, several cross as a dict. ``state``: the names in the whole's ``state_dict``; a
    part's ``state_dict`` has no others. ``num_rows``: of the example.
    """
    hold_constants(traced.module, state)
    befores: list[Boundary | None] = [None, *cuts]
    afters: list[Boundary | None] = [*cuts, None]
    return [
        _Part(traced, layout, state, num_rows, before, after).build(f"Part{number}")
        for number, (before, after) in enumerate(zip(befores, afters, strict=True))
    ]


class _Structure(nn.Module):
    """Refuses a payload with another structure than the example's: a part would ignore what it does not know."""

    def __init__(self, keys: list[Key]) -> None:
        super().__init__()
        self.keys = keys

    def forward(self, payload: Any) -> Any:
        if self.keys == [None]:
            if not isinstance(payload, torch.Tensor):
                raise PayloadMismatchError(f"expected a tensor, got a {type(payload).__name__}")
        elif isinstance(self.keys[0], str):
            if not isinstance(payload, Mapping) or payload.keys() != set(self.keys):
                got = ", ".join(payload) if isinstance(payload, Mapping) else f"a {type(payload).__name__}"
                raise PayloadMismatchError(f"expected the tensors {', '.join(map(str, self.keys))}, got {got}")
        elif not isinstance(payload, (list, tuple)) or len(payload) != len(self.keys):
            got = str(len(payload)) if isinstance(payload, (list, tuple)) else f"a {type(payload).__name__}"
            raise PayloadMismatchError(f"expected a list of {len(self.keys)} tensors, got {got}")
        return payload


class _Sizes(nn.Module):
    """Refuses sizes for which the model was not traced. None stands for any size."""

    def __init__(self, name: str, sizes: tuple[int | None, ...]) -> None:
        super().__init__()
        self.name, self.sizes = name, sizes

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        sizes, shape = self.sizes, tensor.shape
        if len(sizes) != len(shape) or any(want not in (None, have) for want, have in zip(sizes, shape, strict=True)):
            wanted = ", ".join("any" if size is None else str(size) for size in sizes)
            what = f"{self.name} of shape" if self.name else "shape"
            raise PayloadMismatchError(f"the model was cut for {what} [{wanted}], got {list(shape)}")
        return tensor


class _Guards(nn.Module):
    """Refuses sizes with which the model would take another branch than the traced one."""

    def __init__(self, names: list[str], conditions: tuple[str, ...]) -> None:
        super().__init__()
        self.names, self.conditions = names, conditions

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        sizes = tuple([tuple(tensor.shape) for tensor in tensors])
        broken = guards.broken(self.conditions, sizes)
        if broken is not None:
            got = ", ".join(str(list(shape)) for shape in sizes)
            what = guards.described(broken, self.names)
            raise PayloadMismatchError(f"the model was cut for inputs of which holds {what}, got {got}")
        return tensors[0]


class _Pinned(nn.Module):
    """Refuses weights with which the model would take another branch than the traced one."""

    def __init__(self, names: list[str], values: list[torch.Tensor]) -> None:
        super().__init__()
        self.names, self.values = names, [value.detach().clone() for value in values]
        self.seen: list[tuple[int, int]] = []  # address and version of each weight when it was last compared

    def forward(self, tensor: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        present = [(weight.data_ptr(), -1 if weight.is_inference() else weight._version) for weight in weights]
        if present != self.seen or any(version < 0 for _, version in present):  # loading weights raises the version
            for name, value, is_one in zip(self.names, self.values, is_same(weights, self.values), strict=True):
                if not is_one:
                    raise RuntimeError(
                        f"{name} chose what the model computes when it was cut, and has another value now (it was "
                        f"{value!r:.100}): cut the model anew with these weights"
                    )
            self.seen = present
        return tensor


class _Part:
    def __init__(
        self,
        traced: Traced,
        layout: Layout,
        state: Collection[str],
        num_rows: int | None,
        before: Boundary | None,
        after: Boundary | None,
    ) -> None:
        self._traced, self._layout, self._state, self._before, self._after = traced, layout, state, before, after
        self._num_rows = num_rows
        self._copy = PartGraph(state)
        self._graph, self._made = self._copy.graph, self._copy.made

    def build(self, name: str) -> nn.Module:
        self._unpack()
        start = self._before.end if self._before else 0
        end = self._after.end if self._after else len(self._layout.nodes) - 1
        for node in self._layout.nodes[start:end]:
            if node.op != "placeholder" and node not in self._layout.remade and node not in self._layout.sizes:
                self._copy.make(node)
        self._graph.output(self._pack())
        self._graph.lint()
        return fx.GraphModule(self._traced.module, self._graph, class_name=name).eval()

    def _unpack(self) -> None:
        payload = self._graph.placeholder("payload")
        if self._before is None:
            example = self._traced.example
            payload = self._checked([payload], "structure", _Structure([example.keys[name] for name in example.values]))
            for node in self._layout.nodes:
                if node.op == "placeholder":
                    key = example.keys[str(node.target)]
                    tensor = payload if key is None else self._item(payload, key)
                    fixed = fixed_sizes(node, self._num_rows)
                    if fixed is not None:
                        sizes = _Sizes("" if key is None else str(key), fixed)
                        tensor = self._checked([tensor], f"sizes_{node.name}", sizes)
                    self._made[node] = tensor
            self._check_guards()
            self._check_pinned()
            return
        several = len(self._before.tensors) > 1
        for node in self._before.tensors:
            self._made[node] = self._item(payload, node.name) if several else payload
        for size, (tensor, dim) in self._before.sizes.items():
            self._made[size] = self._graph.call_function(torch.ops.aten.sym_size.int, (self._made[tensor], dim))

    def _check_guards(self) -> None:
        if self._traced.guards:
            keys = self._traced.example.keys
            inputs = [node for node in self._layout.nodes if node.op == "placeholder"]
            names = ["" if keys[str(node.target)] is None else str(node.target) for node in inputs]
            tensors = [self._made[node] for node in inputs]
            self._made[inputs[0]] = self._checked(tensors, "guards", _Guards(names, self._traced.guards))

    def _check_pinned(self) -> None:
        names = [name for name in self._traced.pinned if name in self._state]  # others are never loaded anew
        if names:
            first = next(node for node in self._layout.nodes if node.op == "placeholder")
            check = _Pinned(names, [attribute(self._traced.module, name) for name in names])
            weights = [self._graph.get_attr(name) for name in names]
            self._made[first] = self._checked([self._made[first], *weights], "weights", check)

    def _pack(self) -> Any:
        if self._after is None:
            return fx.map_arg(self._layout.nodes[-1].args[0], self._copy.make)
        made = {node.name: self._copy.make(node) for node in self._after.tensors}
        return made if len(made) > 1 else next(iter(made.values()))

    def _checked(self, values: list[fx.Node], name: str, check: nn.Module) -> fx.Node:
        """Let a module check what comes in. It has to be a module: unpickling would trace into a function."""
        name = f"checked_{name}"
        while hasattr(self._traced.module, name):
            name += "_"
        self._traced.module.add_submodule(name, check)
        return self._graph.call_module(name, tuple(values))

    def _item(self, payload: fx.Node, key: str | int) -> fx.Node:
        return self._graph.call_function(operator.getitem, (payload, key))
