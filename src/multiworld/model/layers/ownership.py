"""Finds which parameters and buffers each layer holds, by their names in the whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ..comparing import same
from ..errors import CutError

Held = tuple[Mapping[str, nn.Parameter], Mapping[str, torch.Tensor]]


def held_by(whole: nn.Module, modules: Sequence[nn.Module]) -> list[Held]:
    """Return for each module its parameters and buffers by the first name that the whole has for each.

    What the whole does not have, constants of a layer for one, is left out.
    """
    parameters = {id(value): name for name, value in reversed(list(_parameters(whole)))}
    buffers = {id(value): name for name, value in reversed(list(_buffers(whole)))}
    return [
        (
            {parameters[id(value)]: value for value in module.parameters() if id(value) in parameters},
            {buffers[id(value)]: value for value in module.buffers() if id(value) in buffers},
        )
        for module in modules
    ]


def check_buffers(model: str, modules: Sequence[nn.Module], before: Sequence[Mapping[str, torch.Tensor]]) -> None:
    """Raise CutError for a buffer that changed and is in several modules: each process would change one of its own."""
    holders: dict[int, list[str]] = {}
    for place, (module, values) in enumerate(zip(modules, before, strict=True)):
        for name, value in module.named_buffers():
            holders.setdefault(id(value), []).append(f"{name!r} of layer {place}")
            if len(holders[id(value)]) > 1 and not (name in values and same(values[name], value)):
                raise CutError(
                    model,
                    "forward changes a buffer that several layers use, and each layer may be in a process of its own",
                    " and ".join(holders[id(value)]),
                )


def _parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(module.named_parameters(remove_duplicate=False))


def _buffers(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return list(module.named_buffers(remove_duplicate=False))
