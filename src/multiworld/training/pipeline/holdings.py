"""The layers that this process holds: their parameters, buffers and optimizer state, by layer, under stable names.

A parameter has the name that it has in the whole model, however the layers are divided. So a state of layers fits into
any process, and a checkpoint into any division. What a process does not hold has no memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..state import StateDict
from .contents import Contents
from .missed import Missed, OptimizerFactory, catch_up
from .optimizers import Optimizers, beside


class Holdings:
    """``contents``: of the model. At first this process holds all layers.

    ``device``: on which layers are computed; what is held and not computed stays where the model was built, which may
    be larger than a device. None: all of it is on one device.
    """

    def __init__(self, contents: Contents, *, device: torch.device | None = None) -> None:
        self.contents, self._device = contents, device
        self.held: frozenset[int] = frozenset(range(contents.num_layers))
        self._dropped: set[str] = set()
        """Names of what has no memory here."""
        self._ahead: frozenset[int] = frozenset()
        """Of those that are held, the ones that this process does not compute yet: others save them."""
        self._awaited: set[str] = set()
        """Names of what is on its way. It has its shape, so that it can have gradients, and no values."""
        self._missed: list[Missed] = []
        self._hooks: list[RemovableHandle] = []
        """On the optimizers, as long as something is missed."""
        self._parameters, self._buffers = contents.parameters, contents.buffers
        self._shapes = {name: each.shape for name, each in self._all()}
        self._homes = {name: each.device for name, each in self._all()}
        """Where the program has built what it is."""
        self.max_grad_norm: float | None = None
        """To which the gradients of all members together are scaled before an optimizer runs; None: they are not."""
        self.optimizers = Optimizers()

    def _all(self) -> list[tuple[str, Tensor]]:
        return [*self._parameters.items(), *self._buffers.items()]

    @property
    def is_whole(self) -> bool:
        """Whether every layer has memory here, be it held or not: so the program's own model is still there."""
        return not self._dropped

    def add_optimizer(self, factory: OptimizerFactory) -> Optimizer:
        """Return the optimizer that it makes of all trained parameters; ``hold`` lets it have those that are here."""
        return self.optimizers.add(factory, [each for each in self._parameters.values() if each.requires_grad])

    # ---- states of layers

    def capture(self, layers: Iterable[int]) -> StateDict:
        """Return references, not copies: ``{"parameters": {name: tensor}, "buffers": ..., "optimizers": [...]}``."""
        wanted = sorted(set(layers))
        named = {name: each for layer in wanted for name, each in self.contents.named(layer)}
        parameters = {name: each.data for name, each in named.items() if isinstance(each, nn.Parameter)}
        buffers = {name: each for name, each in named.items() if not isinstance(each, nn.Parameter)}
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
        wanted = self.contents.names_of(state["layers"])
        if given.keys() != wanted or len(state["optimizers"]) != len(self.optimizers):
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
        self.contents.share_memory()
        for optimizer, values in zip(self.optimizers, state["optimizers"], strict=True):
            for name, value in values.items():
                optimizer.state[self._parameters[name]] = beside(self._parameters[name], optimizer, value)
        self.held |= frozenset(state["layers"])

    def expect(self, layers: Iterable[int]) -> None:
        """These layers come later, by ``take``: have a place for their gradients already. ``hold`` gives them up."""
        here = self.contents.names_of(self.held)
        for layer in layers:
            for name, own in self.contents.named(layer):
                if name not in here:
                    shape, device = self._shapes[name], self._device or own.device
                    zero = torch.zeros((), dtype=own.dtype, device=device)
                    own.data = zero.expand(shape) if isinstance(own, nn.Parameter) else zero.repeat(shape)
                    self._awaited.add(name)
        self.contents.share_memory()

    def miss(self, layers: Iterable[int]) -> Missed:
        """Keep what counts from now on of these layers, whose state is on its way, until ``take`` or ``hold``."""
        if not self._missed:
            self._hooks = [
                each.register_step_pre_hook(partial(self._steps, number)) for number, each in enumerate(self.optimizers)
            ]
        self._missed.append(Missed(self.contents.names_of(layers) - self.contents.names_of(self.held)))
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
        here, wanted = self.contents.names_of(self.held), self.contents.names_of(state["layers"])
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
        self.contents.share_memory()
        self._ahead |= frozenset(state["layers"])
        if missed is not None:
            new = wanted - here
            parameters = {name: each for name, each in self._parameters.items() if name in new}
            buffers = {name: each for name, each in self._buffers.items() if name in new}
            catch_up(missed, parameters, buffers, self.optimizers.made)
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
        optimizers: list[dict[str, StateDict]] = [{} for _ in self.optimizers]
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
        self.put({"layers": list(range(self.contents.num_layers)), **found, "optimizers": optimizers})

    def forget(self) -> None:
        """What is here is not what the others have: it gives way to what comes."""
        self.held = self._ahead = frozenset()
        self._forget_missed(self._missed)
        self.optimizers.forget()

    def hold_all(self) -> None:
        """Hold the whole model, where the program has built it: others get their layers from here."""
        assert self.is_whole, "some layer is not here"
        self._keep(range(self.contents.num_layers), ())

    def hold(self, layers: Iterable[int], ahead: Iterable[int] = ()) -> None:
        """Keep these layers only, all of which are held, on the device; give the memory of the others back.

        ``ahead``: more of them, which are not computed here yet.
        """
        self._keep(layers, ahead)
        self._place(self.held)
        self.contents.share_memory()

    def _keep(self, layers: Iterable[int], ahead: Iterable[int]) -> None:
        computed = frozenset(layers)
        wanted = computed.union(ahead)
        assert wanted <= self.held or self.is_whole, "a layer can only be kept that is held"
        kept = self.contents.names_of(wanted)
        for name, own in self._all():
            if name not in kept and (name not in self._dropped or name in self._awaited):
                self._dropped.add(name)
                own.data = torch.empty(0, dtype=own.dtype, device=self._homes[name])
                if isinstance(own, nn.Parameter):
                    own.grad = None
        self.contents.drop_gradients_but(kept)
        self.contents.share_memory()
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
            own = [each for _, each in self.contents.named(layer)]
            (module,) = self.contents.modules_of([layer])
            for tensor in (*own, *module.buffers()):
                if tensor.device != self._device:
                    tensor.data = tensor.data.to(self._device)
                    moved.add(tensor)
        for optimizer in self.optimizers if moved else ():
            for parameter in moved.intersection(optimizer.state):
                optimizer.state[parameter] = beside(parameter, optimizer, optimizer.state[parameter])

    def _give_optimizers(self) -> None:
        held = self.contents.names_of(self.held)
        self.optimizers.give([each for name, each in self._parameters.items() if name in held and each.requires_grad])


def _both(theirs: StateDict, mine: StateDict, names: Collection[str]) -> StateDict:
    """Return what others have, but what this process has of these names."""
    others = {name: value for name, value in theirs.items() if name not in names}
    return {**others, **{name: mine[name] for name in names if name in mine}}
