"""Defines what tracing takes and returns: an example, bound to a module's parameters, and a graph of operations."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

Key = str | int | None
"""Where a tensor stands in a payload; None: the payload is the tensor."""


@dataclass(frozen=True)
class Example:
    """A payload, bound to the parameters of a module's ``forward``.

    ``keys``: for each parameter, where in the payload its tensor stands.
    """

    values: dict[str, torch.Tensor]
    keys: dict[str, Key]
    absent: dict[str, Any]
    """The parameters without a tensor in the payload, with their defaults."""

    @classmethod
    def bind(cls, module: nn.Module, payload: object) -> Example:
        """Raises TypeError for a payload that ``forward`` cannot take."""
        parameters = [
            parameter
            for parameter in inspect.signature(module.forward).parameters.values()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        if not parameters:
            raise TypeError(
                f"{type(module).__name__}.forward{inspect.signature(module.forward)} names no parameters for the "
                "tensors of a request: write them out, or give the module that it wraps, if it wraps one"
            )
        keys = _keys([parameter.name for parameter in parameters], payload)
        values = {name: payload if key is None else payload[key] for name, key in keys.items()}  # type: ignore[index]
        absent = {parameter.name: parameter.default for parameter in parameters if parameter.name not in keys}
        missing = [name for name, default in absent.items() if default is inspect.Parameter.empty]
        is_too_long = isinstance(payload, (list, tuple)) and len(payload) > len(parameters)
        if missing or is_too_long or not all(isinstance(value, torch.Tensor) for value in values.values()):
            raise TypeError(
                f"{type(module).__name__}.forward({', '.join(parameter.name for parameter in parameters)}) cannot take "
                f"an example of {_describe(payload)}"
            )
        return cls(values, keys, absent)  # type: ignore[arg-type]

    @property
    def first_sizes(self) -> list[int]:
        """The different sizes of the tensors' first dimensions. One of them may be the number of rows."""
        return list(dict.fromkeys(value.shape[0] for value in self.values.values() if value.dim()))


@dataclass(frozen=True)
class Traced:
    """``module.graph`` takes the tensors of ``example`` and returns a tensor, or a list or dict of tensors.

    ``guards``: conditions on the sizes of the inputs, besides the fixed sizes. ``pinned``: the parameters and buffers
    whose values chose a branch of the model. The graph holds only for these values.
    """

    module: fx.GraphModule
    example: Example
    guards: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()


def fixed_sizes(placeholder: fx.Node, num_rows: int | None) -> tuple[int | None, ...] | None:
    """Return the size of each dimension of an input for which torch.export traced the model; None for a free size.

    torch.export fixes every size that is 1. That of one row is no need, so it counts as free.
    """
    value = placeholder.meta.get("val")
    if not isinstance(value, torch.Tensor):  # torch.fx traces for any size
        return None
    sizes = [size.node.maybe_as_int() if isinstance(size, torch.SymInt) else size for size in value.shape]
    return tuple(None if dim == 0 and size == num_rows == 1 else size for dim, size in enumerate(sizes))


def plain_output(value: Any) -> Any:
    """Return an output as tensors (or nodes), lists and dicts. A dict loses other values, such as a cache."""
    if isinstance(value, Mapping):
        items = ((key, item) for key, item in value.items() if isinstance(item, (torch.Tensor, fx.Node, list, tuple)))
        return {str(key): plain_output(item) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [plain_output(item) for item in value]
    return value


def output_of(graph: fx.Graph) -> fx.Node:
    output: fx.Node = graph.output_node()
    return output


def _keys(names: list[str], payload: object) -> dict[str, Key]:
    if isinstance(payload, torch.Tensor):
        return {names[0]: None} if names else {}
    if isinstance(payload, Mapping):
        return {name: name for name in payload}
    if isinstance(payload, (list, tuple)):
        return dict(zip(names, range(len(payload)), strict=False))
    raise TypeError(f"an example is a tensor, or a list or dict of tensors, not {_describe(payload)}")


def _describe(payload: object) -> str:
    if isinstance(payload, Mapping):
        return "{" + ", ".join(f"{key!r}: {type(value).__name__}" for key, value in payload.items()) + "}"
    if isinstance(payload, (list, tuple)):
        return "[" + ", ".join(type(value).__name__ for value in payload) + "]"
    return type(payload).__name__
