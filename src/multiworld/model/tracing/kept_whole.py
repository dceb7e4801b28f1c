"""Keeps parts of a model whole while torch.export follows the rest: each call of one becomes one operation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx, nn

from ..structure import PLAIN, Structure, taken_apart

CONSTANT = (*PLAIN, torch.dtype, torch.device)
_calls: dict[int, tuple[torch.Tensor, ...]] = {}
"""What the calls that are being followed returned with the example, by their numbers."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Call:
    """One call of a part with the example."""

    path: str
    given: Structure
    returned: Structure
    outputs: tuple[torch.Tensor, ...]


class WholePart(nn.Module):
    """Calls a part with tensors alone, and returns a tuple of tensors."""

    def __init__(self, part: nn.Module, call: Call) -> None:
        super().__init__()
        self.part, self._given, self._returned, self._path = part, call.given, call.returned, call.path

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = self._given.fill(tensors)
        outputs, returned = taken_apart(self.part(*args, **kwargs))
        if self._returned.differs(returned):
            raise RuntimeError(f"{self._path} returned another structure than with the example for which it was cut")
        return tuple(outputs)


def recorded_calls(model: nn.Module, paths: Collection[str], run: Callable[[], object]) -> list[Call]:
    """Run a model, and return the calls of its parts in order. The parts have no other forward afterwards.

    Raises TypeError for a part that is given or returns anything but tensors and plain values, ValueError for one that
    writes into a tensor that it is given.
    """
    calls: list[Call] = []

    def recording(path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            tensors, given = taken_apart((args, kwargs))
            versions = [value._version for value in tensors]
            result = forward(*args, **kwargs)
            if versions != [value._version for value in tensors]:
                raise ValueError(f"{path} writes into a tensor that it is given")
            outputs, returned = taken_apart(result)
            for structure, allowed in ((given, CONSTANT), (returned, PLAIN)):
                other = next((value for _, value in structure.others if not isinstance(value, allowed)), None)
                if other is not None:
                    raise TypeError(f"{path} is given or returns a {type(other).__name__}, and not tensors alone")
            calls.append(Call(path, given, returned, tuple(value.detach() for value in outputs)))
            return result

        return recorded

    with _forwards_replaced(model, paths, recording):
        run()
    return calls


@contextmanager
def kept_whole(model: nn.Module, calls: Sequence[Call]) -> Iterator[Mapping[int, Call]]:
    """Let the parts of these calls, made in this order, stand for one operation each. Yield the calls by number."""
    numbered = {next(_numbers): call for call in calls}
    left = iter(numbered.items())

    def standing(path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def stand(*args: Any, **kwargs: Any) -> Any:
            number, call = next(left)
            tensors, given = taken_apart((args, kwargs))
            if call.path != path or given.differs(call.given):
                raise RuntimeError(f"{path} is not called as it was with the example")
            return call.returned.fill(_operation()(number, tensors))

        return stand

    _calls.update({number: call.outputs for number, call in numbered.items()})
    try:
        with _forwards_replaced(model, {call.path for call in calls}, standing):
            yield numbered
    finally:
        for number in numbered:
            del _calls[number]


def put_parts_back(module: fx.GraphModule, numbered: Mapping[int, Call], parts: Mapping[str, nn.Module]) -> None:
    """Replace the operations by calls of the parts."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and getattr(node.target, "namespace", "") == "multiworld":
            number, tensors = node.args
            name = f"whole_part_{node.name}"
            module.add_submodule(name, WholePart(parts[numbered[number].path], numbered[number]))
            with module.graph.inserting_before(node):
                call = module.graph.call_module(name, tuple(tensors))
            call.meta = node.meta
            node.replace_all_uses_with(call)
            module.graph.erase_node(node)
    module.recompile()


def twin_of(part: nn.Module, modes: Mapping[nn.Module, bool]) -> nn.Module:
    """Return a module with the same tensors, whose parts have these modes."""
    made: nn.Module = object.__new__(type(part))  # copy.copy refuses a module with parametrizations
    vars(made).update(vars(part))
    vars(made)["_modules"] = {
        name: None if child is None else twin_of(child, modes) for name, child in part._modules.items()
    }
    vars(made)["training"] = modes[part]
    return made


@contextmanager
def _forwards_replaced(
    model: nn.Module, paths: Collection[str], by: Callable[[str, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    parts = [(path, model.get_submodule(path)) for path in paths]
    for path, part in parts:
        vars(part)["forward"] = by(path, part.forward)
    try:
        yield
    finally:
        for _, part in parts:
            del vars(part)["forward"]


@cache
def _operation() -> Callable[[int, Sequence[torch.Tensor]], list[torch.Tensor]]:
    """Return the operation, which stands in graphs alone. It is registered once, when the first part is kept whole."""

    def run(call: int, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        raise NotImplementedError("a part that is kept whole is called itself")

    def like_with_the_example(call: int, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.empty_like(value, device=value.device) for value in _calls[call]]

    made = torch.library.custom_op(
        "multiworld::whole_part", run, mutates_args=(), schema="(int call, Tensor[] tensors) -> Tensor[]"
    )
    made.register_fake(like_with_the_example)
    return made
