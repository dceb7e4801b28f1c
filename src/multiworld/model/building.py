"""Builds a module of each part of a graph. A part takes one payload and returns one."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate

from .boundaries import Boundary, Layout
from .errors import PayloadMismatchError
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
    for node in layout.nodes:
        if node.op == "get_attr" and node.target not in state:
            traced.module.add_submodule(_constant_name(node), _Constant(_attribute(traced.module, str(node.target))))
    befores: list[Boundary | None] = [None, *cuts]
    afters: list[Boundary | None] = [*cuts, None]
    return [
        _Part(traced, layout, state, num_rows, before, after).build(f"Part{number}")
        for number, (before, after) in enumerate(zip(befores, afters, strict=True))
    ]


class _Constant(nn.Module):
    """Holds a tensor outside the ``state_dict``. Pickling would make a buffer of a plain attribute of a GraphModule."""

    value: torch.Tensor

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value, persistent=False)

    def forward(self) -> torch.Tensor:
        return self.value


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


class PartTracer(fx.Tracer):
    """Traces a part when it is unpickled. What is computed of buffers is traced, so new weights have effect."""

    proxy_buffer_attributes = True


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
        self._graph = fx.Graph(tracer_cls=PartTracer)
        self._made: dict[fx.Node, fx.Node] = {}
        self._device: fx.Node | None = None

    def build(self, name: str) -> nn.Module:
        self._unpack()
        start = self._before.end if self._before else 0
        end = self._after.end if self._after else len(self._layout.nodes) - 1
        for node in self._layout.nodes[start:end]:
            if node.op != "placeholder" and node not in self._layout.remade and node not in self._layout.sizes:
                self._make(node)
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
            check = _Pinned(names, [_attribute(self._traced.module, name) for name in names])
            weights = [self._graph.get_attr(name) for name in names]
            self._made[first] = self._checked([self._made[first], *weights], "weights", check)

    def _pack(self) -> Any:
        if self._after is None:
            return fx.map_arg(self._layout.nodes[-1].args[0], self._make)
        made = {node.name: self._make(node) for node in self._after.tensors}
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

    def _make(self, node: fx.Node) -> fx.Node:
        """Return the node's copy in this part. What is computed again is copied with all that it needs."""
        if node not in self._made:
            if node.op == "get_attr" and node.target not in self._state:
                self._made[node] = self._graph.call_module(_constant_name(node))
            else:
                self._made[node] = self._on_any_device(self._graph.node_copy(node, self._make))
        return self._made[node]

    def _on_any_device(self, node: fx.Node) -> fx.Node:
        """Let a copied node use the payload's device in place of the device on which the model was traced."""
        if any(isinstance(value, torch.device) for value in (*node.args, *node.kwargs.values())):
            with self._graph.inserting_before(node):
                self._device = self._device or self._graph.call_function(getattr, (self._tensor, "device"))
            node.args = map_aggregate(node.args, self._without_device)
            node.kwargs = map_aggregate(node.kwargs, self._without_device)
        return node

    def _without_device(self, value: Any) -> Any:
        return self._device if isinstance(value, torch.device) else value

    @property
    def _tensor(self) -> fx.Node:
        """One of the part's inputs."""
        if self._before is not None:
            return self._made[self._before.tensors[0]]
        return self._made[next(node for node in self._layout.nodes if node.op == "placeholder")]


def _constant_name(node: fx.Node) -> str:
    return f"constant_{node.name}"


def _attribute(module: nn.Module, target: str) -> torch.Tensor:
    path, _, name = target.rpartition(".")
    value: torch.Tensor = getattr(module.get_submodule(path), name)
    return value
