"""The layers that this process holds: their parameters, buffers and optimizer state, by layer, under stable names.

A parameter has the name that it has in the whole model, however the layers are divided. So a state of layers fits into
any process, and a checkpoint into any division. What a process does not hold has no memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..state import StateDict
from .missed import Missed, OptimizerFactory, catch_up, options_of
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


class Holdings:
    """``layers``: all of the model, in their order; at first this process holds all of them.

    ``changing``: names of the buffers that a forward changes. ``exact``: see ``ties``. ``device``: on which layers are
    computed; what is held and not computed stays where the model was built, which may be larger than a device. None:
    all of it is on one device.
    """

    def __init__(
        self,
        layers: Sequence[ModelLayer],
        changing: Collection[str] = (),
        *,
        exact: bool = False,
        device: torch.device | None = None,
    ) -> None:
        self._layers, self._changing, self._device = list(layers), changing, device
        self.held: frozenset[int] = frozenset(range(len(layers)))
        self._dropped: set[str] = set()
        """Names of what has no memory here."""
        self._ahead: frozenset[int] = frozenset()
        """Of those that are held, the ones that this process does not compute yet: others save them."""
        self._awaited: set[str] = set()
        """Names of what is on its way. It has its shape, so that it can have gradients, and no values."""
        self._missed: list[Missed] = []
        self._hooks: list[RemovableHandle] = []
        """On the optimizers, as long as something is missed."""
        self._parameters: dict[str, nn.Parameter] = {}
        self._buffers: dict[str, Tensor] = {}
        for layer in layers:
            for name, parameter in layer.parameters.items():
                self._parameters.setdefault(name, parameter)
            for name, buffer in layer.buffers.items():
                self._buffers.setdefault(name, buffer)
        self._shapes = {name: each.shape for name, each in (*self._parameters.items(), *self._buffers.items())}
        self._homes = {name: each.device for name, each in (*self._parameters.items(), *self._buffers.items())}
        """Where the program has built what it is."""
        self._leaves = untie(layers) if exact else {}
        self._uses = self._find_uses()
        self.max_grad_norm: float | None = None
        """To which the gradients of all members together are scaled before an optimizer runs; None: they are not."""
        self._optimizers: list[tuple[Optimizer, OptimizerFactory]] = []

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def is_whole(self) -> bool:
        """Whether every layer has memory here, be it held or not: so the program's own model is still there."""
        return not self._dropped

    @property
    def uses(self) -> list[str]:
        """Of all parameters that are trained, here or elsewhere: the index of one is the same on all members."""
        return list(self._uses)

    def uses_of(self, layers: Iterable[int]) -> dict[str, Use]:
        """Return by name where gradients arise that who has these layers needs, in the model's order."""
        wanted = frozenset(layers)
        return {name: each for name, each in self._uses.items() if wanted.intersection(each.held_in)}

    def _find_uses(self) -> dict[str, Use]:
        uses = {}
        for name, parameter in self._parameters.items():
            if not parameter.requires_grad:
                continue
            layers = tuple(self.layers_with(name))
            apart = [layer for layer in layers if (name, layer) in self._leaves]
            uses[name] = Use(name, parameter, layers, tuple(layer for layer in layers if layer not in apart))
            for layer in apart:
                uses[f"{name}@{layer}"] = Use(name, self._leaves[name, layer], layers, (layer,))
        return uses

    def gradients(self) -> list[Tensor]:
        """Return those of the parameters that are held here."""
        return [each.grad for each in self._parameters.values() if each.grad is not None]

    def add_up(self) -> None:
        """Give each parameter the gradients of all of its uses, added up in the order of the layers."""
        for (name, _), leaf in self._leaves.items():
            own = self._parameters[name]
            if leaf.grad is not None:
                own.grad = leaf.grad if own.grad is None else own.grad + leaf.grad
                leaf.grad = None

    @property
    def optimizers(self) -> list[Optimizer]:
        return [each for each, _ in self._optimizers]

    def add_optimizer(self, factory: OptimizerFactory) -> Optimizer:
        """Return the optimizer that it makes of all trained parameters; ``hold`` lets it have those that are here."""
        optimizer = factory([each for each in self._parameters.values() if each.requires_grad])
        self._optimizers.append((optimizer, factory))
        return optimizer

    def modules_of(self, layers: Iterable[int]) -> list[nn.Module]:
        return [self._layers[layer].module for layer in layers]

    def changing_buffers_of(self, layers: Iterable[int]) -> dict[str, Tensor]:
        """Return those that a forward changes: owners keep them equal as they keep parameters."""
        wanted = {name for layer in layers for name in self._layers[layer].buffers}
        return {name: each for name, each in self._buffers.items() if name in wanted and name in self._changing}

    def layers_with(self, name: str) -> list[int]:
        """Return the layers that have this parameter or buffer: more than one of tied weights."""
        return [number for number, each in enumerate(self._layers) if name in each.parameters or name in each.buffers]

    def summed_in(self, layers: Iterable[int]) -> set[str]:
        """Return the uses and buffers that these layers' micro-batches add something to."""
        wanted = frozenset(layers)
        uses = {name for name, each in self._uses.items() if wanted.intersection(each.computed_in)}
        return uses | self.changing_buffers_of(wanted).keys()

    @property
    def together(self) -> tuple[tuple[int, ...], ...]:
        """Disjoint groups of layers of which a process that has several adds up some gradients in one sum."""
        shared = [each.computed_in for each in self._uses.values()]
        shared += [tuple(self.layers_with(name)) for name in self._buffers if name in self._changing]
        groups: list[set[int]] = []
        for layers in shared:
            if len(layers) > 1:
                meeting = [each for each in groups if not each.isdisjoint(layers)]
                groups = [each for each in groups if each not in meeting]
                groups.append(set(layers).union(*meeting))
        return tuple(tuple(sorted(each)) for each in groups)

    # ---- states of layers

    def capture(self, layers: Iterable[int]) -> StateDict:
        """Return references, not copies: ``{"parameters": {name: tensor}, "buffers": ..., "optimizers": [...]}``."""
        wanted = sorted(set(layers))
        parameters = {
            name: each.data for layer in wanted for name, each in self._named(layer) if isinstance(each, nn.Parameter)
        }
        buffers = {
            name: each for layer in wanted for name, each in self._named(layer) if not isinstance(each, nn.Parameter)
        }
        optimizers = [
            {
                name: dict(each.state[self._parameters[name]])
                for name in parameters
                if self._parameters[name] in each.state
            }
            for each in self.optimizers
        ]
        return {"layers": wanted, "parameters": parameters, "buffers": buffers, "optimizers": optimizers}

    def put(self, state: StateDict) -> None:
        """Take the layers of ``capture``'s state: its tensors become theirs. They are held from now on.

        Raises ValueError for a state of another model, before anything changes.
        """
        given = {**state["parameters"], **state["buffers"]}
        wanted = self._names_of(state["layers"])
        if given.keys() != wanted or len(state["optimizers"]) != len(self._optimizers):
            different = sorted(given.keys() ^ wanted)
            raise ValueError(f"a state of layers {state['layers']} is of another model: it differs in {different}")
        for name, tensor in given.items():
            if tensor.shape != self._shapes[name]:
                raise ValueError(
                    f"{name} has the shape {tuple(tensor.shape)} in a state, and {tuple(self._shapes[name])} here"
                )
        for name, tensor in given.items():
            own = self._parameters[name] if name in self._parameters else self._buffers[name]
            own.data = tensor.to(own.device)
            self._dropped.discard(name)
            self._awaited.discard(name)
        self._share_memory()
        for optimizer, values in zip(self.optimizers, state["optimizers"], strict=True):
            for name, value in values.items():
                optimizer.state[self._parameters[name]] = _beside(self._parameters[name], optimizer, value)
        self.held |= frozenset(state["layers"])

    def expect(self, layers: Iterable[int]) -> None:
        """These layers come later, by ``take``: have a place for their gradients already. ``hold`` gives them up."""
        here = self._names_of(self.held)
        for layer in layers:
            for name, own in self._named(layer):
                if name not in here:
                    shape, device = self._shapes[name], self._device or own.device
                    zero = torch.zeros((), dtype=own.dtype, device=device)
                    own.data = zero.expand(shape) if isinstance(own, nn.Parameter) else zero.repeat(shape)
                    self._awaited.add(name)
        self._share_memory()

    def miss(self, layers: Iterable[int]) -> Missed:
        """Keep what counts from now on of these layers, whose state is on its way, until ``take`` or ``hold``."""
        if not self._missed:
            self._hooks = [
                each.register_step_pre_hook(partial(self._steps, number)) for number, each in enumerate(self.optimizers)
            ]
        self._missed.append(Missed(self._names_of(layers) - self._names_of(self.held)))
        return self._missed[-1]

    def _steps(self, number: int, optimizer: Optimizer, *given: object) -> None:
        for each in self._missed:
            each.stepped(number, optimizer, self._parameters)

    def _forget_missed(self, missed: Sequence[Missed]) -> None:
        self._missed = [each for each in self._missed if each not in missed]
        if not self._missed:
            for hook in self._hooks:
                hook.remove()

    def take(self, state: StateDict, missed: Missed | None = None) -> None:
        """Hold the layers of ``capture``'s state, too, from now on, after what they have missed since it was captured.

        What is here already stays as it is: a parameter that other layers have, too. Raises as ``put``.
        """
        here, wanted = self._names_of(self.held), self._names_of(state["layers"])
        own = self.capture(self.held)
        self.put(
            {
                "layers": state["layers"],
                **{key: _both(state[key], own[key], here & wanted) for key in ("parameters", "buffers")},
                "optimizers": [
                    _both(theirs, mine, here & wanted)
                    for theirs, mine in zip(state["optimizers"], own["optimizers"], strict=True)
                ],
            }
        )
        self._place(state["layers"])
        self._share_memory()
        self._ahead |= frozenset(state["layers"])
        if missed is not None:
            new = wanted - here
            parameters = {name: each for name, each in self._parameters.items() if name in new}
            buffers = {name: each for name, each in self._buffers.items() if name in new}
            catch_up(missed, parameters, buffers, self._optimizers)
            self._forget_missed([missed])
        self._give_optimizers()

    def size_bytes_of(self, layers: Iterable[int]) -> int:
        """Return the size of the tensors of ``capture``'s state."""
        state = self.capture(layers)
        values = [*state["parameters"].values(), *state["buffers"].values()]
        values += [value for each in state["optimizers"] for of_one in each.values() for value in of_one.values()]
        return sum(each.nbytes for each in values if isinstance(each, Tensor))

    def capture_own(self) -> StateDict:
        """Return the state of the layers that are computed here, for a checkpoint."""
        state = self.capture(self.held - self._ahead)
        optimizers = {str(number): each for number, each in enumerate(state["optimizers"])}
        return {"parameters": state["parameters"], "buffers": state["buffers"], "optimizers": optimizers}

    def restore_all(self, leaves: StateDict) -> None:
        """Take all layers from a checkpoint that several processes may have saved. Raises ValueError for one of another
        model.
        """
        optimizers: list[dict[str, StateDict]] = [{} for _ in self._optimizers]
        found: dict[str, StateDict] = {"parameters": {}, "buffers": {}}
        for name, leaf in leaves.items():
            kind, _, rest = name.partition(".")
            if kind in found:
                found[kind][rest] = leaf
                continue
            number, _, rest = rest.partition(".")
            parameter, _, key = rest.rpartition(".")
            if int(number) >= len(optimizers):
                raise ValueError(f"it has {int(number) + 1} optimizers, and this training {len(optimizers)}")
            optimizers[int(number)].setdefault(parameter, {})[key] = leaf
        self.put({"layers": list(range(self.num_layers)), **found, "optimizers": optimizers})

    def forget(self) -> None:
        """What is here is not what the others have: it gives way to what comes."""
        self.held = self._ahead = frozenset()
        self._forget_missed(self._missed)
        for optimizer in self.optimizers:
            optimizer.state.clear()

    def hold_all(self) -> None:
        """Hold the whole model, where the program has built it: others get their layers from here."""
        assert self.is_whole, "some layer is not here"
        self._keep(range(self.num_layers), ())

    def hold(self, layers: Iterable[int], ahead: Iterable[int] = ()) -> None:
        """Keep these layers only, all of which are held, on the device; give the memory of the others back.

        ``ahead``: more of them, which are not computed here yet.
        """
        self._keep(layers, ahead)
        self._place(self.held)
        self._share_memory()

    def _keep(self, layers: Iterable[int], ahead: Iterable[int]) -> None:
        computed = frozenset(layers)
        wanted = computed.union(ahead)
        assert wanted <= self.held or self.is_whole, "a layer can only be kept that is held"
        kept = self._names_of(wanted)
        for name, own in (*self._parameters.items(), *self._buffers.items()):
            if name not in kept and (name not in self._dropped or name in self._awaited):
                self._dropped.add(name)
                own.data = torch.empty(0, dtype=own.dtype, device=self._homes[name])
                if isinstance(own, nn.Parameter):
                    own.grad = None
        for (name, _), leaf in self._leaves.items():
            if name not in kept:  # of a step that did not end
                leaf.grad = None
        self._share_memory()
        self._awaited.clear()
        self._forget_missed(self._missed)
        self.held, self._ahead = wanted, wanted - computed
        self._give_optimizers()

    def _place(self, layers: Iterable[int]) -> None:
        """Have these layers on the device, with constants and the optimizers' states."""
        if self._device is None:
            return
        moved = set()
        for layer in layers:
            own = [each for _, each in self._named(layer)]
            for tensor in (*own, *self._layers[layer].module.buffers()):
                if tensor.device != self._device:
                    tensor.data = tensor.data.to(self._device)
                    moved.add(tensor)
        for optimizer in self.optimizers if moved else ():
            for parameter in moved.intersection(optimizer.state):
                optimizer.state[parameter] = _beside(parameter, optimizer, optimizer.state[parameter])

    def _give_optimizers(self) -> None:
        held = self._names_of(self.held)
        mine = [each for name, each in self._parameters.items() if name in held and each.requires_grad]
        for optimizer, factory in self._optimizers:
            _give(optimizer, factory, mine)

    def _share_memory(self) -> None:
        for (name, _), leaf in self._leaves.items():
            leaf.data = self._parameters[name].data

    def state_dict(self) -> StateDict:
        """Return what is the same on all members: the options of each optimizer's groups, which schedulers change."""
        return {"groups": list(map(options_of, self.optimizers))}

    def load_state_dict(self, state: StateDict) -> None:
        for optimizer, groups in zip(self.optimizers, state["groups"], strict=True):
            for group, options in zip(optimizer.param_groups, groups, strict=True):
                group.update(options)

    def _names_of(self, layers: Iterable[int]) -> set[str]:
        return {name for layer in layers for name, _ in self._named(layer)}

    def _named(self, layer: int) -> list[tuple[str, Tensor]]:
        """Return the parameters and buffers of a layer, as this process has them."""
        of_layer = self._layers[layer]
        return [
            *((name, self._parameters[name]) for name in of_layer.parameters),
            *((name, self._buffers[name]) for name in of_layer.buffers),
        ]


def _beside(parameter: Tensor, optimizer: Optimizer, state: StateDict) -> StateDict:
    """Return an optimizer's state of a parameter on its device. Counts of steps stay where the optimizer reads them.

    That is the CPU, but with ``capturable`` or ``fused``, as in ``Optimizer.load_state_dict``.
    """
    counts_there = optimizer.defaults.get("capturable") or optimizer.defaults.get("fused")
    return {
        key: value.to(parameter.device) if isinstance(value, Tensor) and (key != "step" or counts_there) else value
        for key, value in state.items()
    }


def _both(theirs: StateDict, mine: StateDict, names: Collection[str]) -> StateDict:
    """Return what others have, but what this process has of these names."""
    others = {name: value for name, value in theirs.items() if name not in names}
    return {**others, **{name: mine[name] for name in names if name in mine}}


def _give(optimizer: Optimizer, factory: OptimizerFactory, parameters: list[nn.Parameter]) -> None:
    """Let an optimizer have these parameters, in the groups in which its factory puts them.

    The program and its schedulers keep the optimizer that they have, and its rates.
    """
    for group in optimizer.param_groups:
        group["params"] = []
    if parameters:
        model = factory(parameters)
        if len(model.param_groups) != len(optimizer.param_groups):
            raise ValueError(
                f"the optimizer's factory made {len(optimizer.param_groups)} groups of all parameters, and "
                f"{len(model.param_groups)} of those of some layers: make the same groups always, empty ones, too"
            )
        for group, template in zip(optimizer.param_groups, model.param_groups, strict=True):
            group["params"] = list(template["params"])
    mine = set(parameters)
    for parameter in [each for each in optimizer.state if each not in mine]:
        del optimizer.state[parameter]
