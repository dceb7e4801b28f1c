"""Follows a module with torch.fx: by proxies in place of tensors, so that shapes stay free."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import fx, nn
from torch.nn.utils import parametrize

from ..copying import private_copy
from .fast_path import LayerByLayer, is_encoder, layer_by_layer
from .pinning import WeightProxy, WeightValues
from .traced import Example, Traced, output_of, plain_output


class NothingPinnedError(Exception):
    """The model branches on no weight, so pinning weights finds the same as tracing without pins."""


def trace_by_fx(module: nn.Module, example: Example) -> Traced:
    """Trace with free shapes and unchanged names. Errors of ``forward`` pass through."""
    return _trace(module, example, pins=False)


def trace_by_fx_and_pin(module: nn.Module, example: Example) -> Traced:
    """Trace as ``trace_by_fx`` does, along the branches that the model takes with its present weights.

    Raises NothingPinnedError for a model that does not branch on weights.
    """
    return _trace(module, example, pins=True)


class _Tracer(fx.Tracer):
    """Keeps modules whole whose code torch.fx cannot follow, and remembers in which module tracing failed.

    It traces what is computed of buffers: a constant would not change when the buffer gets a new value. With
    ``weights``, the model may branch on the values of weights, which are then pinned.
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
    """Return whether a call has one argument and no masks."""
    return len(args) == 1 and not any(value is not None and value is not False for value in kwargs.values())


def _trace(module: nn.Module, example: Example, *, pins: bool) -> Traced:
    opaque: set[type[nn.Module]] = set()
    original = module
    while True:
        module = private_copy(original)  # failed tracing may leave proxies in attributes
        if module._forward_hooks or module._forward_pre_hooks:
            raise NotImplementedError("it has hooks of its own, which fx does not follow")
        if is_encoder(module):
            module.__class__ = LayerByLayer
        weights = WeightValues(module) if pins else None
        tracer = _Tracer(opaque, weights)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # torch.fx warns that it cannot assert a default; that argument is never given
                graph = tracer.trace(module, concrete_args=example.absent or None)
        except Exception:
            if tracer.failed is None or tracer.failed in opaque:
                raise
            opaque.add(tracer.failed)
            continue
        for node in list(graph.nodes):
            if node.op == "placeholder" and node.target not in example.keys:
                _erase(graph, node)
        output = output_of(graph)
        output.args = (plain_output(output.args[0]),)
        if weights is not None and not weights.was_asked:
            raise NothingPinnedError
        pinned = () if weights is None else tuple(weights.pinned)
        return Traced(fx.GraphModule(module, graph), example, pinned=pinned)


def _erase(graph: fx.Graph, node: fx.Node) -> None:
    """Erase a parameter that the example does not give, and the assertions about it."""
    for user in list(node.users):
        _erase(graph, user)
    graph.erase_node(node)
