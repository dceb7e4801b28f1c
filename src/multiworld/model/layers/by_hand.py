"""Makes layers of the stages that a user gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..checks import check_values
from ..errors import CutError, PayloadMismatchError
from .batches import Arguments, arguments_of, described, example_of, home_of
from .digest import digest_of
from .layer import Crossing, LayeredModel, ModelLayer
from .ownership import check_buffers, held_by
from .trial import left_as_it_was, run_chain

MODEL = CutError.STAGES


def layers_by_hand(stages: Sequence[nn.Module], example: Any, *, name: str = "stages") -> LayeredModel:
    """Return the stages as layers. Each takes the tensors that the one before it returns, one or a tuple of several.

    ``example``: a micro-batch of a loader, on any device. The first stage takes it as a model would: see
    ``arguments_of``. The last stage may return anything. Parameters have the names that they have in
    ``nn.Sequential(*stages)``. The stages keep their mode.

    Raises CutError for a stage that has no values yet, fails with the example, returns anything but tensors, or changes
    a buffer that another stage has, too; TypeError for what is no module.
    """
    if not stages or not all(isinstance(stage, nn.Module) for stage in stages):
        raise TypeError(f"stages: expected one module or more, got {[type(stage).__name__ for stage in stages]}")
    for place, stage in enumerate(stages):
        _check_values(stage, place)
    chain = nn.Sequential(*stages)
    given = example_of(stages[0], example, home_of(chain.parameters()))
    modules: list[nn.Module] = [
        _Stage(stage, place, given if place == 0 else None, is_last=place == len(stages) - 1)
        for place, stage in enumerate(stages)
    ]
    with left_as_it_was(modules, given.tensors):
        before = [{name: value.clone() for name, value in module.named_buffers()} for module in modules]
        trial = run_chain(modules, given.tensors)
        check_buffers(MODEL, modules, before)
    held = held_by(chain, modules)
    layers = tuple(
        ModelLayer(f"{place}", module, *tensors, outputs)
        for place, (module, tensors, outputs) in enumerate(zip(modules, held, [*trial.crossings, None], strict=True))
    )
    inputs = tuple(Crossing(tuple(value.shape), value.dtype, False) for value in given.tensors)
    return LayeredModel(name, layers, inputs, digest_of(inputs, layers), _Take(stages[0], given))


def _check_values(stage: nn.Module, place: int) -> None:
    try:
        check_values(stage, "stage")
    except ValueError as error:
        raise CutError(MODEL, str(error), _where(stage, place)) from None


def _where(stage: nn.Module, place: int) -> str:
    return f"stage {place} ({type(stage).__name__})"


class _Take:
    """Takes the inputs of the first stage from a batch, and refuses one with other entries than the example."""

    def __init__(self, first: nn.Module, example: Arguments) -> None:
        self._first, self._structure, self._entries = first, example.structure, described(example)

    def __call__(self, batch: Any) -> tuple[torch.Tensor, ...]:
        found = arguments_of(self._first, batch)
        if self._structure.differs(found.structure):
            raise PayloadMismatchError(
                f"the stages were given an example with {self._entries}, and got a batch with {described(found)}; a "
                "batch needs the same entries"
            )
        return found.tensors


class _Stage(nn.Module):
    """A user's stage, called with tensors; returns a tuple of tensors unless it is the last one."""

    def __init__(self, stage: nn.Module, place: int, example: Arguments | None, *, is_last: bool) -> None:
        super().__init__()
        self.training = stage.training
        self.stage, self._place, self._example, self._is_last = stage, place, example, is_last

    def forward(self, *tensors: torch.Tensor) -> Any:
        where = _where(self.stage, self._place)
        try:
            result = self.stage(*tensors) if self._example is None else self._example.call(self.stage, tensors)
        except TypeError as error:
            shapes = ", ".join(str(list(value.shape)) for value in tensors)
            raise CutError(MODEL, f"it raised TypeError: {error}; it was given tensors of {shapes}", where) from error
        if self._is_last:
            return result
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        wrong = [type(value).__name__ for value in outputs if not isinstance(value, torch.Tensor)]
        if wrong or not outputs:
            raise CutError(MODEL, f"it returned {', '.join(wrong) or 'nothing'} and not tensors alone", where)
        return tuple(outputs)
