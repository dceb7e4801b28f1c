"""Trace a function without running it anywhere: its forward, and its backward, each become one message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from ..errors import CaptureError
from ..protocol.records import Kind
from ..protocol.specs import number_of
from ..session.origins import here
from ..session.session import Session, next_id
from ..tensor.generators import STATE_SPEC
from ..tensor.remote_tensor import RemoteTensor
from ..tensor.wrapping import make
from .aliases import roots_of
from .block import Block
from .recording import Recorded
from .replay import Replay

Function: TypeAlias = Callable[[Sequence[RemoteTensor]], Sequence[Tensor]]
"""Takes the tensors of one call, and returns those that are its results."""
Argument: TypeAlias = tuple[int, bool]
"""The number of its spec, and whether it wants a gradient."""


class Backward(NamedTuple):
    """``needs``: the ids, in the trace, of its inputs. ``of``: places, among what wants gradients, of its outputs."""

    replay: Replay
    needs: tuple[int, ...]
    of: tuple[int, ...]


class Traced:
    """What a function does with such arguments.

    ``outsiders``: tensors from outside of the function that get gradients. ``differentiable``: of each result, whether
    it has a gradient. ``checked``: places of arguments and results, and tensors from outside, that must not be written
    between forward and backward.
    """

    def __init__(
        self, function: Function, session: Session, arguments: Sequence[Argument], *, is_compiled: bool = False
    ) -> None:
        """``is_compiled``: whether the node is to compile forward and backward.

        Raises CaptureError for what can't be replayed, and what the function raises.
        """
        self._session, self._is_compiled = session, is_compiled
        self._arguments = [_stand_in(session, spec, wants) for spec, wants in arguments]
        self._modules: dict[nn.Module, bool] = {}
        block = Block(session, is_issued=False)
        hook = register_module_forward_pre_hook(self._note_module)
        try:
            with block:
                results = [_tensor_of(session, each) for each in function(self._arguments)]
                self._results = _with_own_memory(results, block, {})
        finally:
            hook.remove()
        seen = {id_: each.tensor() for id_, each in block.watch.seen.items()}
        given = {each._id for each in self._arguments}
        outside = {id_: tensor for id_, tensor in seen.items() if tensor is not None and id_ not in given}
        self._roots = roots_of(block.recorder.recorded)
        self._flags = [(tensor, tensor.requires_grad) for tensor in outside.values()]
        self._versions = [(tensor, tensor._version) for tensor in outside.values()]
        self._check_arguments(block, arguments)
        self.differentiable = [torch.is_grad_enabled() and each.requires_grad for each in self._results]
        self.outsiders: list[RemoteTensor] = []
        saved: dict[int, int] = {}
        if any(self.differentiable):
            self.outsiders = [tensor for tensor in outside.values() if tensor.requires_grad]
            specs = _specs_of(block.recorder.recorded)
            results_ids = {each._id for each in self._results}
            saved = {id_: specs[id_] for id_ in sorted(block.made - results_ids)}
        self._saved = list(saved)
        outputs = [(each._id, each._spec) for each in self._results] + list(saved.items())
        self._forward = block.replay(
            [each._id for each in self._arguments], outputs, name="a compiled call", is_compiled=is_compiled
        )
        self._backwards: dict[tuple[int | None, ...], Backward] = {}
        self.checked = _Checked((), (), ())
        if any(self.differentiable):
            usual = tuple(
                each._spec if has else None for each, has in zip(self._results, self.differentiable, strict=True)
            )
            self.checked = self._to_check(self._backward_for(usual).needs, outside)

    def fits(self) -> bool:
        """Whether what the function takes from outside is what it was when it was traced."""
        return (
            self._forward.fits()
            and all(tensor.requires_grad is flag for tensor, flag in self._flags)
            and all(module.training is flag for module, flag in self._modules.items())
        )

    def forward(self, arguments: Sequence[RemoteTensor]) -> tuple[list[RemoteTensor], list[RemoteTensor]]:
        """Run the forward; return its results, and what the backward needs beside them."""
        made = self._forward.results(arguments, {}, 1)
        count = len(self._results)
        return made[:count], made[count:]

    def backward(
        self, gradients: Sequence[Tensor | None], available: Mapping[int, RemoteTensor]
    ) -> list[RemoteTensor | None]:
        """Run the backward; return the gradients of arguments and outsiders. ``available``: by id in the trace."""
        given = [None if each is None else _tensor_of(self._session, each) for each in gradients]
        backward = self._backward_for(tuple(None if each is None else each._spec for each in given))
        present = [each for each in given if each is not None]
        inputs = [*present, *[available[id_] for id_ in backward.needs]]
        found: list[RemoteTensor | None] = [None] * (len(self._arguments) + len(self.outsiders))
        for place, gradient in zip(backward.of, backward.replay.results(inputs, {}, 1), strict=True):
            found[place] = gradient
        return found

    def available_of(self, kept: Sequence[RemoteTensor]) -> dict[int, RemoteTensor]:
        """Return what a call kept by the ids in the trace: checked arguments, checked results, what was saved."""
        checked = self.checked
        known = (
            *[self._arguments[place]._id for place in checked.arguments],
            *[self._results[place]._id for place in checked.results],
            *self._saved,
        )
        return dict(zip(known, kept, strict=False))  # behind them are tensors from outside

    def _note_module(self, module: nn.Module, inputs: object) -> None:
        self._modules.setdefault(module, module.training)

    def _backward_for(self, specs: tuple[int | None, ...]) -> Backward:
        known = self._backwards.get(specs)
        if known is None:
            known = self._backwards[specs] = self._trace_backward(specs)
        return known

    def _trace_backward(self, specs: tuple[int | None, ...]) -> Backward:
        """Trace the derivative for gradients of these specs; None: there is none of that result."""
        wanted = [*self._arguments, *self.outsiders]
        places = [place for place, each in enumerate(wanted) if each.requires_grad]
        gradients = [_stand_in(self._session, spec) for spec in specs if spec is not None]
        results = [each for each, spec in zip(self._results, specs, strict=True) if spec is not None]
        block = Block(self._session, is_issued=False)
        with block, torch.enable_grad(), _at_versions(self._versions):
            found = torch.autograd.grad(
                results, [wanted[place] for place in places], gradients, retain_graph=True, allow_unused=True
            )
            there = [place for place, each in zip(places, found, strict=True) if each is not None]
            known = [_tensor_of(self._session, each) for each in found if each is not None]
            known = _with_own_memory(known, block, self._roots)
        used = {id_ for each in block.recorder.recorded for id_ in each.inputs}
        stand_ins = [*[each._id for each in self._arguments], *[each._id for each in self._results], *self._saved]
        needs = tuple(id_ for id_ in stand_ins if id_ in used)
        replay = block.replay(
            [*[each._id for each in gradients], *needs],
            [(each._id, each._spec) for each in known],
            name="the backward of a compiled call",
            is_compiled=self._is_compiled,
        )
        return Backward(replay, needs, tuple(there))

    def _to_check(self, needs: Iterable[int], outside: Mapping[int, RemoteTensor]) -> _Checked:
        roots = {self._roots.get(id_, id_) for id_ in needs} | set(needs)
        roots |= {id_ for id_ in self._backwards[next(iter(self._backwards))].replay.external_ids if id_ in outside}
        return _Checked(
            tuple(place for place, each in enumerate(self._arguments) if each._id in roots),
            tuple(place for place, each in enumerate(self._results) if each._id in roots),
            tuple(outside[id_] for id_ in sorted(roots & outside.keys())),
        )

    def _check_arguments(self, block: Block, arguments: Sequence[Argument]) -> None:
        for place, (each, (_, wanted)) in enumerate(zip(self._arguments, arguments, strict=True)):
            if each.requires_grad is not wanted or (wanted and block.watch.is_written(each._id)):
                raise CaptureError(
                    "remote.compile",
                    here(),
                    f"the function writes its argument {place} in place, and a gradient goes through it",
                    "Write a copy: x = x.clone()",
                )
        for tensor in block.watch.seen.values():
            outsider = tensor.tensor()
            if outsider is not None and outsider._backward_hooks and outsider.requires_grad:
                raise CaptureError(
                    "remote.compile",
                    here(),
                    f"a tensor of shape {tuple(outsider.shape)} that it uses has hooks, which would be called twice",
                    "Remove them, or call the function without remote.compile",
                )


class _Checked(NamedTuple):
    """Places of arguments and of results, and tensors from outside."""

    arguments: tuple[int, ...]
    results: tuple[int, ...]
    outside: tuple[RemoteTensor, ...]


def _stand_in(session: Session, spec: int, wants_gradient: bool = False) -> RemoteTensor:
    """Return a tensor that exists nowhere."""
    tensor: RemoteTensor = make(RemoteTensor, session, spec, next_id())
    return tensor.requires_grad_() if wants_gradient else tensor  # type: ignore[return-value]


@contextmanager
def _at_versions(versions: Sequence[tuple[RemoteTensor, int]]) -> Iterator[None]:
    """Inside, tensors have the versions that they had in the trace: only the shapes of what was saved then matter."""
    tensors = tuple(tensor for tensor, _ in versions)
    now = tuple(tensor._version for tensor in tensors)
    torch._C._autograd._unsafe_set_version_counter(tensors, tuple(version for _, version in versions))
    try:
        yield
    finally:
        torch._C._autograd._unsafe_set_version_counter(tensors, now)


def _tensor_of(session: Session, value: object) -> RemoteTensor:
    if isinstance(value, RemoteTensor) and value._session is session:
        return value
    raise CaptureError(
        "remote.compile",
        here(),
        f"a result, or a gradient, is no tensor of node {session.number}: {type(value).__name__}",
        "Return tensors of that node, and values that are no tensors",
    )


def _with_own_memory(tensors: Sequence[RemoteTensor], block: Block, known: Mapping[int, int]) -> list[RemoteTensor]:
    """Return tensors none of which shares memory with another one, or with one from before the block: copies of those.

    Autograd takes each result for a tensor of its own, and may add to a gradient in place. Inside of the block.
    """
    found: list[RemoteTensor] = []
    taken: set[int] = set()
    made = {id_ for each in block.recorder.recorded for id_ in each.outputs}
    roots = roots_of(block.recorder.recorded, known)
    for tensor in tensors:
        root = roots.get(tensor._id, tensor._id)
        if root in taken or root not in made:
            tensor = tensor.clone()  # type: ignore[assignment]
            root = tensor._id
        taken.add(root)
        found.append(tensor)
    return found


_STATE: Final = number_of(STATE_SPEC)


def _specs_of(recorded: Iterable[Recorded]) -> dict[int, int]:
    """Return the number of the spec that each tensor has at the end, by id."""
    specs: dict[int, int] = {}
    for each in recorded:
        if isinstance(each.calls, Kind):
            specs.update(dict.fromkeys(each.outputs, _STATE))
            continue
        template = each.calls.template
        made = [number_of(spec) for spec in template.outputs if spec is not None]
        specs.update(zip(each.outputs, made, strict=True))
        for place, spec in template.reshapes:
            specs[each.inputs[place]] = number_of(spec)
    return specs
