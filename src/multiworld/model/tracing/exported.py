"""Follows a module with torch.export: with values, where torch.fx cannot follow its code."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from . import guards
from .fast_path import without_fast_path
from .regions import as_modules
from .traced import Example, Traced, output_of, plain_output

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Followed:
    """``module.graph`` takes tensors in order, and returns a tuple of the tensors of the output.

    ``guards``: conditions on the sizes of the tensors, besides the fixed sizes. ``others``: those that cannot be read.
    """

    module: fx.GraphModule
    guards: list[str]
    others: list[str]


class _RaisedByModelError(Exception):
    """Carries an error of the model through torch.export, which would print the graph so far to standard error."""

    @property
    def partial_fx_graph(self) -> object:
        raise AttributeError("partial_fx_graph")

    @partial_fx_graph.setter
    def partial_fx_graph(self, graph: object) -> None:
        pass


def follow(
    module: nn.Module, call: Callable[..., Any], tensors: Sequence[torch.Tensor], *, free_sizes: bool = True
) -> Followed:
    """Follow ``call``, which calls the module with tensors, with torch.export.

    Sizes that may vary stay free, unless not ``free_sizes``. Whether gradients are computed in the graph is as it is
    outside of it. Raises what torch.export raises.
    """
    plain = copy.copy(module)  # it has the same weights, and another forward

    def forward(*payload: torch.Tensor) -> Any:
        try:
            return call(*payload)
        except Exception as error:  # the model's own code may raise anything
            raise _RaisedByModelError from error

    plain.forward = forward
    try:
        exported = _export(plain, tensors, free_sizes=free_sizes)
    except _RaisedByModelError as error:
        raise (error.__cause__ or error) from None
    readable, others = guards.read(getattr(exported, "_guards_code", ()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = exported.module()
    graph = traced.graph
    for node in list(graph.nodes):
        if node.target in ("_guards_fn", torch.ops.aten._assert_tensor_metadata.default):
            graph.erase_node(node)  # these checks hold for the example's device only, and take time with each request
    as_modules(traced)
    output = output_of(graph)
    output.args = (tuple(pytree.tree_leaves(output.args[0])),)
    graph.set_codegen(fx.graph.CodeGen())
    return Followed(fx.GraphModule(traced, graph), readable, others)


def trace_by_export(module: nn.Module, example: Example) -> Traced:
    """Trace with torch.export, which runs the code with the example. Sizes that may vary stay free.

    Raises what torch.export raises.
    """
    spec: list[pytree.TreeSpec] = []

    def call(*payload: torch.Tensor) -> Any:
        result = plain_output(module(**dict(zip(example.values, payload, strict=True))))
        spec[:] = [pytree.tree_structure(result)]
        return result

    with torch.no_grad():
        followed = follow(module, call, list(example.values.values()))
    if followed.others:
        logger.warning(
            "%s was followed for inputs of which holds: %s. Do not send it others: what it would do then is not known.",
            type(module).__name__,
            "; ".join(followed.others),
        )
    graph = followed.module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for name, node in zip(example.values, placeholders, strict=True):
        node.target = name
    output = output_of(graph)
    output.args = (pytree.tree_unflatten(list(output.args[0]), spec[0]),)  # type: ignore[arg-type]
    traced = fx.GraphModule(followed.module, graph)
    return Traced(traced, example, tuple(_without_needless(followed.guards, module, traced, example)))


def _without_needless(readable: list[str], module: nn.Module, followed: fx.GraphModule, example: Example) -> list[str]:
    """Except one row, the most usual number, from guards if the graph and the model agree on one row."""
    for num_rows in example.first_sizes:
        has_rows = [value.shape[:1] == (num_rows,) for value in example.values.values()]
        one = {
            name: value[:1] if is_one else value
            for is_one, (name, value) in zip(has_rows, example.values.items(), strict=True)
        }
        sizes = tuple(tuple(value.shape) for value in one.values())
        if guards.broken(tuple(readable), sizes) and _agree(module, followed, one):
            readable = guards.except_for_one_row(readable, sizes, has_rows.index(True))
    return readable


def _agree(module: nn.Module, followed: fx.GraphModule, values: Mapping[str, torch.Tensor]) -> bool:
    try:
        with torch.no_grad(), without_fast_path():
            whole = pytree.tree_leaves(plain_output(module(**{name: value.clone() for name, value in values.items()})))
            found = pytree.tree_leaves(followed(*(value.clone() for value in values.values())))
            return len(whole) == len(found) and all(map(torch.equal, whole, found))
    except Exception:  # the model's own code may raise anything
        return False


def _export(module: nn.Module, tensors: Sequence[torch.Tensor], *, free_sizes: bool) -> torch.export.ExportedProgram:
    copies = tuple(value.clone() for value in tensors)  # each request has tensors of its own
    free = tuple(dict.fromkeys(range(tensor.dim()), torch.export.Dim.AUTO) for tensor in copies)
    shapes = {"payload": free} if free_sizes else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module, copies, dynamic_shapes=shapes, strict=False)
