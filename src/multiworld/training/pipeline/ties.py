"""Tied weights: a gradient of its own for each layer that uses a parameter, where sums must have the same bits.

A parameter of two layers has the sum of two gradients. Where both layers are in one stage, autograd adds them for each
micro-batch; where they are in two, each stage sums up its own. These orders give other bits. So with ``exact`` each
layer but the first gets a leaf of its own that shares the parameter's memory, and the leaves' gradients are added last.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from ...model.layers import ModelLayer


def untie(layers: Sequence[ModelLayer]) -> dict[tuple[str, int], nn.Parameter]:
    """Return by (name, layer) the leaves that these layers use from now on in place of what an earlier layer has."""
    owned: set[int] = set()
    seen: set[str] = set()
    leaves: dict[tuple[str, int], nn.Parameter] = {}
    for number, layer in enumerate(layers):
        new = {}
        for name, parameter in layer.parameters.items():
            if name in seen and parameter.requires_grad:
                leaf = nn.Parameter(parameter.data)
                new[id(parameter)] = leaves[name, number] = leaf
        seen |= layer.parameters.keys()
        if new:
            _replace(layer.module, new, owned)
        owned.update(id(each) for each in layer.module.modules())
    return leaves


def _replace(module: nn.Module, new: dict[int, nn.Parameter], shared: set[int]) -> None:
    """Put new leaves into a module, and into copies of those of its parts that earlier layers have, too."""
    for key, parameter in module._parameters.items():
        if parameter is not None and id(parameter) in new:
            module._parameters[key] = new[id(parameter)]
    for key, part in list(module._modules.items()):
        if part is None or not any(id(each) in new for each in part.parameters()):
            continue
        own = part
        if id(part) in shared:
            own = copy.copy(part)
            own._parameters, own._modules = dict(part._parameters), dict(part._modules)
            module._modules[key] = own
        _replace(own, new, shared)
