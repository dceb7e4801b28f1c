"""The parameters, buffers and gradients of a whole model, by layer and by name.

Each member has the same names, whichever layers it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from .ties import untie

if TYPE_CHECKING:
    from ...model.layers import ModelLayer


class Use(NamedTuple):
    """Where gradients of a parameter arise: ``leaf`` has those of the layers ``computed_in``.

    ``held_in``: all layers that have the parameter; who holds one of them needs the gradients of all.
    """

    parameter: str
    leaf: nn.Parameter
    held_in: tuple[int, ...]
    computed_in: tuple[int, ...]


class Contents:
    """``layers``: all of the model, in their order. ``changing``: names of the buffers that a forward changes.

    ``exact``: see ``ties``. ``parameters``, ``buffers``: by the name that each has in the whole model.
    """

    def __init__(self, layers: Sequence[ModelLayer], changing: Collection[str] = (), *, exact: bool = False) -> None:
        self._layers, self._changing = list(layers), changing
        self.parameters: dict[str, nn.Parameter] = {}
        self.buffers: dict[str, Tensor] = {}
        for layer in layers:
            for name, parameter in layer.parameters.items():
                self.parameters.setdefault(name, parameter)
            for name, buffer in layer.buffers.items():
                self.buffers.setdefault(name, buffer)
        self._leaves = untie(layers) if exact else {}
        self._uses = self._find_uses()

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    # ---- names

    def named(self, layer: int) -> list[tuple[str, Tensor]]:
        """Return the parameters and buffers of a layer."""
        of_layer = self._layers[layer]
        return [
            *((name, self.parameters[name]) for name in of_layer.parameters),
            *((name, self.buffers[name]) for name in of_layer.buffers),
        ]

    def names_of(self, layers: Iterable[int]) -> set[str]:
        return {name for layer in layers for name, _ in self.named(layer)}

    def layers_with(self, name: str) -> list[int]:
        """Return the layers that have this parameter or buffer: more than one of tied weights."""
        return [number for number, each in enumerate(self._layers) if name in each.parameters or name in each.buffers]

    def modules_of(self, layers: Iterable[int]) -> list[nn.Module]:
        return [self._layers[layer].module for layer in layers]

    def changing_buffers_of(self, layers: Iterable[int]) -> dict[str, Tensor]:
        """Return those that a forward changes: owners keep them equal as they keep parameters."""
        wanted = {name for layer in layers for name in self._layers[layer].buffers}
        return {name: each for name, each in self.buffers.items() if name in wanted and name in self._changing}

    # ---- where gradients arise

    def _find_uses(self) -> dict[str, Use]:
        uses = {}
        for name, parameter in self.parameters.items():
            if not parameter.requires_grad:
                continue
            layers = tuple(self.layers_with(name))
            apart = [layer for layer in layers if (name, layer) in self._leaves]
            uses[name] = Use(name, parameter, layers, tuple(layer for layer in layers if layer not in apart))
            for layer in apart:
                uses[f"{name}@{layer}"] = Use(name, self._leaves[name, layer], layers, (layer,))
        return uses

    @property
    def uses(self) -> list[str]:
        """Of all parameters that are trained, here or elsewhere: the index of one is the same on all members."""
        return list(self._uses)

    def uses_of(self, layers: Iterable[int]) -> dict[str, Use]:
        """Return by name where gradients arise that who has these layers needs, in the model's order."""
        wanted = frozenset(layers)
        return {name: each for name, each in self._uses.items() if wanted.intersection(each.held_in)}

    def summed_in(self, layers: Iterable[int]) -> set[str]:
        """Return the uses and buffers that these layers' micro-batches add something to."""
        wanted = frozenset(layers)
        uses = {name for name, each in self._uses.items() if wanted.intersection(each.computed_in)}
        return uses | self.changing_buffers_of(wanted).keys()

    @property
    def together(self) -> tuple[tuple[int, ...], ...]:
        """Disjoint groups of layers of which a process that has several adds up some gradients in one sum."""
        shared = [each.computed_in for each in self._uses.values()]
        shared += [tuple(self.layers_with(name)) for name in self.buffers if name in self._changing]
        groups: list[set[int]] = []
        for layers in shared:
            if len(layers) > 1:
                meeting = [each for each in groups if not each.isdisjoint(layers)]
                groups = [each for each in groups if each not in meeting]
                groups.append(set(layers).union(*meeting))
        return tuple(tuple(sorted(each)) for each in groups)

    def gradients(self) -> list[Tensor]:
        """Return those that are here."""
        return [each.grad for each in self.parameters.values() if each.grad is not None]

    def add_up(self) -> None:
        """Give each parameter the gradients of all of its uses, added up in the order of the layers."""
        for (name, _), leaf in self._leaves.items():
            own = self.parameters[name]
            if leaf.grad is not None:
                own.grad = leaf.grad if own.grad is None else own.grad + leaf.grad
                leaf.grad = None

    def drop_gradients_but(self, names: Collection[str]) -> None:
        """Drop the gradients of other parameters' further uses: they are of a step that did not end."""
        for (name, _), leaf in self._leaves.items():
            if name not in names:
                leaf.grad = None

    def share_memory(self) -> None:
        """All uses of a parameter have its values. After its memory has changed."""
        for (name, _), leaf in self._leaves.items():
            leaf.data = self.parameters[name].data
