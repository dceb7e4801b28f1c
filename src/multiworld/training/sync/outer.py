"""The arithmetic of an outer step on one member: what it sends of a fragment, and what it does with the mean of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ..engine.gradients import like, local
from ..state import StateDict
from .fragments import split_into_fragments
from .strategies import DiLoCo, LocalSGD


class OuterStep(Protocol):
    """Payloads are flat tensors, one a fragment, of the same length on all members; their mean comes back.

    ``state_dict`` and ``load_state_dict`` make it a part of the training's state. It is the same on all members after
    each outer step, though they differ in between.
    """

    def payload(self, fragment: int) -> Tensor:
        """Return a new tensor: it does not change while it is under way and the member computes on."""

    def apply(self, fragment: int, mean: Tensor, *, is_last: bool = False) -> None: ...

    def return_to_anchor(self) -> None:
        """Set the local parameters to what all members have in common: a newcomer begins with it."""

    def state_dict(self) -> StateDict: ...

    def load_state_dict(self, state: StateDict) -> None: ...


def make_outer_step(strategy: LocalSGD | DiLoCo, modules: Sequence[nn.Module]) -> OuterStep:
    """Its anchors are copies of the parameters as they are now. Raises ValueError, TypeError if they do not fit."""
    model = modules[0] if len(modules) == 1 else nn.ModuleDict({f"model_{i}": each for i, each in enumerate(modules)})
    return ParameterMean(model) if isinstance(strategy, LocalSGD) else PseudoGradients(strategy, model)


class ParameterMean:
    """LocalSGD: all parameters, and the buffers that count or average, are replaced by their means."""

    def __init__(self, model: nn.Module) -> None:
        self._tensors = [*trained(model).values(), *averaged_buffers(model)]

    def payload(self, fragment: int) -> Tensor:
        return flatten(local_of(tensor) for tensor in self._tensors)

    @torch.no_grad()
    def apply(self, fragment: int, mean: Tensor, *, is_last: bool = False) -> None:
        unflatten(mean, [local_of(tensor) for tensor in self._tensors])

    def return_to_anchor(self) -> None:
        """Nothing to do: after each outer step the parameters are the same on all members."""

    def state_dict(self) -> StateDict:
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        if state:
            raise ValueError(f"LocalSGD keeps no outer state, but was given {sorted(state)}: it is of DiLoCo")


class PseudoGradients:
    """DiLoCo: anchors that all members share, and an outer optimizer that moves them by the mean pseudo-gradient.

    An anchor is sharded as its parameter is, so the outer optimizer's state is, too, and checkpoints have all of it.
    """

    def __init__(self, strategy: DiLoCo, model: nn.Module) -> None:
        params = trained(model)
        self._alpha = strategy.share_kept
        self._names = split_into_fragments({name: param.numel() for name, param in params.items()}, strategy.fragments)
        self._params = params
        self._anchors = {name: nn.Parameter(in_full(param.detach())) for name, param in params.items()}
        self._buffers = averaged_buffers(model)
        self._outer = strategy.outer(list(self._anchors.values()))
        if not isinstance(self._outer, torch.optim.Optimizer):
            raise TypeError(f"outer returned {type(self._outer).__name__}: it must return a torch.optim.Optimizer")

    @property
    def fragments(self) -> Sequence[Sequence[str]]:
        """The names of the parameters in each fragment."""
        return self._names

    @property
    def param_groups(self) -> list[StateDict]:
        """Of the outer optimizer: by them a checkpoint finds how the state of each anchor is sharded."""
        return self._outer.param_groups

    @torch.no_grad()
    def payload(self, fragment: int) -> Tensor:
        """Return anchor minus local of each parameter; the last fragment also carries the buffers."""
        names = self._names[fragment]
        deltas = [local_of(self._anchors[name]) - local_of(self._params[name]) for name in names]
        return flatten([*deltas, *self._buffers_with(fragment)])

    @torch.no_grad()
    def apply(self, fragment: int, mean: Tensor, *, is_last: bool = False) -> None:
        names = self._names[fragment]
        anchors = [self._anchors[name] for name in names]
        gradients = [torch.empty_like(local_of(anchor)) for anchor in anchors]
        unflatten(mean, [*gradients, *self._buffers_with(fragment)])
        for anchor, gradient in zip(anchors, gradients, strict=True):
            anchor.grad = like(anchor, gradient)
        self._outer.step()  # the other fragments' anchors have no gradient, so they and their state stay
        for anchor in anchors:
            anchor.grad = None
        kept = 0.0 if is_last else self._alpha
        for name in names:
            self._mix(name, kept)

    @torch.no_grad()
    def return_to_anchor(self) -> None:
        for name in self._params:
            self._mix(name, 0.0)

    def state_dict(self) -> StateDict:
        return {
            "anchors": {name: anchor.detach() for name, anchor in self._anchors.items()},
            **self._outer.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: StateDict) -> None:
        """Raises ValueError if the anchors are of another model, or there are none."""
        anchors: Mapping[str, Tensor] = state.get("anchors", {})
        if anchors.keys() != self._anchors.keys():
            different = sorted(anchors.keys() ^ self._anchors.keys())
            raise ValueError(f"the outer state is of another model or of LocalSGD; the difference: {different[:5]}")
        for name, anchor in self._anchors.items():
            local_of(anchor).copy_(local_of(anchors[name]))
        self._outer.load_state_dict({key: value for key, value in state.items() if key != "anchors"})

    def _buffers_with(self, fragment: int) -> list[Tensor]:
        is_carrier = fragment == len(self._names) - 1
        return [local_of(buffer) for buffer in self._buffers] if is_carrier else []

    def _mix(self, name: str, kept: float) -> None:
        own, anchor = local_of(self._params[name]), local_of(self._anchors[name])
        if kept:
            own.copy_(kept * own + (1 - kept) * anchor)
        else:
            own.copy_(anchor)


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: param for name, param in model.named_parameters() if param.requires_grad}


def averaged_buffers(model: nn.Module) -> list[Tensor]:
    """Return the buffers that training changes (a BatchNorm's means and counts): numbers that a checkpoint keeps."""
    kept = model.state_dict(keep_vars=True)
    return [buffer for name, buffer in model.named_buffers() if name in kept and buffer.dtype != torch.bool]


def local_of(tensor: Tensor) -> Tensor:
    """Return the memory of this process: of a DTensor its shard, else the tensor itself, without its gradient."""
    return local(tensor).detach()


def in_full(tensor: Tensor) -> Tensor:
    """Return a copy in float32 or wider: an outer step is too small for half precision."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32), copy=True)


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """Return a new float32 tensor ``[elements]``; float64 if a tensor is."""
    parts = [tensor.reshape(-1) for tensor in tensors]
    wide = torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32
    return torch.cat([part.to(wide) for part in parts]) if parts else torch.zeros(0)


def unflatten(flat: Tensor, tensors: Iterable[Tensor]) -> None:
    """Write the parts of ``flat`` into ``tensors``, whole numbers rounded. Raises ValueError if the lengths differ."""
    targets = list(tensors)
    wanted = sum(target.numel() for target in targets)
    if flat.numel() != wanted:
        raise ValueError(f"{flat.numel()} elements came for tensors of {wanted}: the members' models differ")
    at = 0
    for target in targets:
        part = flat[at : at + target.numel()].view(target.shape)
        target.copy_(part if target.dtype.is_floating_point else part.round())
        at += target.numel()
