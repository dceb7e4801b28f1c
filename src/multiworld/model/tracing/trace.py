"""Turns a module and an example into a graph of operations: by torch.fx, or by torch.export where fx cannot follow."""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from ..copying import private_copy
from . import guards
from .fast_path import LayerByLayer, is_encoder, layer_by_layer, without_fast_path
from .pinning import WeightProxy, WeightValues
from .regions import as_modules

__all__ = [
    "Example",
    "NothingPinnedError",
    "Traced",
    "fixed_sizes",
    "trace_by_export",
    "trace_by_fx",
    "trace_by_fx_and_pin",
]

logger = logging.getLogger(__name__)

Key = str | int | None


@dataclass(frozen=True)
class Example:
    """A request's payload, bound to the parameters of a module's ``forward``.

    ``keys``: parameter to where in the payload its tensor stands; None if the payload is the tensor itself.
    """

    values: dict[str, torch.Tensor]
    keys: dict[str, Key]
    absent: dict[str, Any]
    """Parameters that the payload does not give, with their defaults."""

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
        """The sizes of the tensors' first dimensions, each once: one of them may be the number of rows."""
        return list(dict.fromkeys(value.shape[0] for value in self.values.values() if value.dim()))


@dataclass(frozen=True)
class Traced:
    """``module.graph`` takes the tensors of ``example`` and returns a tensor, or a list or dict of tensors.

    ``guards``: what must hold of the sizes of a request's tensors, besides those that are fixed. ``pinned``: the
    parameters and buffers whose values chose the way that was followed, so that it does not hold for others.
    """

    module: fx.GraphModule
    example: Example
    guards: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()


class NothingPinnedError(Exception):
    """No weight chooses what a model computes, so that there is nothing more to find than without pins."""


class _Tracer(fx.Tracer):
    """Leaves those modules whole whose code fx cannot follow, and remembers where it failed.

    What is computed of buffers is followed too: as constants, it would not change when they get new weights. With
    ``weights``, code may ask for the values of weights, to branch on them, and they are pinned then.
    """

    proxy_buffer_attributes = True

    def __init__(self, opaque: set[type[nn.Module]], weights: WeightValues | None) -> None:
        super().__init__()
        self._opaque = opaque
        self._weights = weights
        self.failed: type[nn.Module] | None = None

    def proxy(self, node: fx.Node) -> fx.Proxy:
        if self._weights is not None and self._weights.holds(node):
            return WeightProxy(node, self)
        return super().proxy(node)

    def value_of(self, obj: fx.Proxy) -> Any:
        assert self._weights is not None, "there are no proxies of weights without it"
        return self._weights.value_of(obj.node)

    def to_bool(self, obj: fx.Proxy) -> bool:
        return super().to_bool(obj) if self._weights is None else bool(self.value_of(obj))

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if type(m) in self._opaque:
            return True
        is_parametrized = parametrize.is_parametrized(m) or isinstance(m, parametrize.ParametrizationList)
        return not is_parametrized and super().is_leaf_module(
            m, module_qualified_name
        )  # whole, it could not be pickled

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            if isinstance(m, nn.TransformerEncoder) and is_encoder(m) and _is_alone(args, kwargs):
                return layer_by_layer(m, args[0])
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            if self.failed is None:
                self.failed = type(m)
            raise


def _is_alone(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call gives one argument and no masks."""
    return len(args) == 1 and not any(value is not None and value is not False for value in kwargs.values())


def trace_by_fx(module: nn.Module, example: Example) -> Traced:
    """Trace symbolically: shapes stay free, names stay as they are. Raises whatever ``forward`` does with a proxy."""
    return _trace(module, example, pins=False)


def trace_by_fx_and_pin(module: nn.Module, example: Example) -> Traced:
    """As ``trace_by_fx``, for models that branch on the values of weights: the way that it goes with those it has.

    Raises NothingPinnedError for others.
    """
    return _trace(module, example, pins=True)


def _trace(module: nn.Module, example: Example, *, pins: bool) -> Traced:
    opaque: set[type[nn.Module]] = set()
    original = module
    while True:
        module = private_copy(original)  # where tracing fails, proxies may be left in attributes
        if module._forward_hooks or module._forward_pre_hooks:
            raise NotImplementedError("it has hooks of its own, which fx does not follow")
        if is_encoder(module):
            module.__class__ = LayerByLayer
        weights = WeightValues(module) if pins else None
        tracer = _Tracer(opaque, weights)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a default that cannot be asserted is no concern: it is never given
                graph = tracer.trace(module, concrete_args=example.absent or None)
        except Exception:
            if tracer.failed is None or tracer.failed in opaque:
                raise
            opaque.add(tracer.failed)
            continue
        for node in list(graph.nodes):
            if node.op == "placeholder" and node.target not in example.keys:
                _erase(graph, node)
        output = _output(graph)
        output.args = (_plain(output.args[0]),)
        if weights is not None and not weights.was_asked:
            raise NothingPinnedError
        pinned = () if weights is None else tuple(weights.pinned)
        return Traced(fx.GraphModule(module, graph), example, pinned=pinned)


def trace_by_export(module: nn.Module, example: Example) -> Traced:
    """Trace with torch.export, which follows the code with values; the sizes that may vary stay free.

    Raises what torch.export raises.
    """
    spec: list[pytree.TreeSpec] = []
    plain = copy.copy(module)  # the same weights; only its forward differs

    def forward(*payload: torch.Tensor) -> Any:
        result = _plain(module(**dict(zip(example.values, payload, strict=True))))
        spec[:] = [pytree.tree_structure(result)]
        return result

    plain.forward = forward
    exported = _export(plain, example)
    readable, others = guards.read(getattr(exported, "_guards_code", ()))
    if others:
        logger.warning(
            "%s was followed for inputs of which holds: %s. Do not send it others: what it would do then is not known.",
            type(module).__name__,
            "; ".join(others),
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = exported.module()
    graph = traced.graph
    names = list(example.values)
    for node in list(graph.nodes):
        if node.target in ("_guards_fn", torch.ops.aten._assert_tensor_metadata.default):
            graph.erase_node(node)  # they hold for the example's device, and take time with each request
    as_modules(traced)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for name, node in zip(names, placeholders, strict=True):
        node.target = name
    output = _output(graph)
    output.args = (pytree.tree_unflatten(list(pytree.tree_leaves(output.args[0])), spec[0]),)
    graph.set_codegen(fx.graph.CodeGen())
    followed = fx.GraphModule(traced, graph)
    return Traced(followed, example, tuple(_without_needless(readable, module, followed, example)))


def fixed_sizes(placeholder: fx.Node, num_rows: int | None) -> tuple[int | None, ...] | None:
    """Return for each dimension of an input the size that torch.export followed the model for, if that is fixed.

    It fixes each that is 1, without need: with an example of one row, nothing is known of more rows.
    """
    value = placeholder.meta.get("val")
    if not isinstance(value, torch.Tensor):  # fx follows it for no size
        return None
    sizes = [size.node.maybe_as_int() if isinstance(size, torch.SymInt) else size for size in value.shape]
    return tuple(None if dim == 0 and size == num_rows == 1 else size for dim, size in enumerate(sizes))


def _without_needless(readable: list[str], module: nn.Module, followed: fx.GraphModule, example: Example) -> list[str]:
    """Let requests of one row pass, the most usual, where the model as followed does the same with one as it does."""
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
            whole = pytree.tree_leaves(_plain(module(**{name: value.clone() for name, value in values.items()})))
            found = pytree.tree_leaves(followed(*(value.clone() for value in values.values())))
            return len(whole) == len(found) and all(map(torch.equal, whole, found))
    except Exception:  # the model's own code may raise anything
        return False


def _export(module: nn.Module, example: Example) -> torch.export.ExportedProgram:
    tensors = tuple(value.clone() for value in example.values.values())  # of each request they are different ones
    free = tuple(dict.fromkeys(range(tensor.dim()), torch.export.Dim.AUTO) for tensor in tensors)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.export.export(module, tensors, dynamic_shapes={"payload": free}, strict=False)


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


def _plain(value: Any) -> Any:
    """Return an output as tensors (or nodes), lists and dicts; what is neither, as a cache, is left out of a dict."""
    if isinstance(value, Mapping):
        items = ((key, item) for key, item in value.items() if isinstance(item, (torch.Tensor, fx.Node, list, tuple)))
        return {str(key): _plain(item) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _erase(graph: fx.Graph, node: fx.Node) -> None:
    """Erase a parameter that is not given, and the assertions about it."""
    for user in list(node.users):
        _erase(graph, user)
    graph.erase_node(node)


def _output(graph: fx.Graph) -> fx.Node:
    output: fx.Node = graph.output_node()
    return output
