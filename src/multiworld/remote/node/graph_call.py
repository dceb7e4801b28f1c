"""One call of a graph on its node: how it takes its arguments from the list of values, and where its results go."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, Protocol, TypeAlias

import torch

from ..protocol.graphs import GraphCall
from ..protocol.template import FLOAT, GENERATOR, TENSOR, Slot, Template
from .plan import Plan

Values: TypeAlias = list[Any]
"""The tensors of all slots, then the floats, then constants of calls."""


class CompiledCall(Protocol):
    """``inputs``, ``outputs``, ``written``, ``drops``: slots. ``is_settled``: ``run`` will not become faster."""

    @property
    def inputs(self) -> tuple[int, ...]: ...
    @property
    def outputs(self) -> tuple[int, ...]: ...
    @property
    def written(self) -> tuple[int, ...]: ...
    @property
    def drops(self) -> tuple[int, ...]: ...
    @property
    def is_settled(self) -> bool: ...
    @property
    def run(self) -> Callable[[Values], object]: ...

    def settled(self) -> CompiledCall:
        """Return the like of it, after a run, that does not look again at what its operator returns."""


class PlannedCall:
    """A call by a plan. The first run looks at what the operator returns; others need not, if that was foreseen."""

    def __init__(self, call: GraphCall, plan: Plan, values: Values, first_float: int) -> None:
        """``values``: where its constants are appended."""
        self.inputs, self.outputs, self.drops = call.inputs, call.outputs, call.drops
        self.written = tuple(call.inputs[place] for place in plan.writes)
        self._plan = plan
        self._floats = tuple(first_float + place for place in call.floats)
        self._quick = _quick(plan.template, plan.function, self.inputs, self._floats, values)
        self.run: Callable[[Values], object] = self._run
        self.is_settled = False

    def settled(self) -> PlannedCall:
        if not self._plan.is_settled:
            return self
        self.is_settled = True
        if self._quick is not None:
            self.run = _storing(self._quick, self.outputs, self._plan)
        return self

    def _run(self, values: Values) -> None:
        plan = self._plan
        returned = plan.call([values[slot] for slot in self.inputs], [values[place] for place in self._floats])
        for slot, tensor in zip(self.outputs, plan.results(returned), strict=True):
            values[slot] = tensor


class KeepGenerator:
    """Keep the state of the generator of the node's CPU."""

    inputs = written = ()
    is_settled = True

    def __init__(self, call: GraphCall) -> None:
        self.outputs, self.drops = call.outputs, call.drops

    def run(self, values: Values) -> None:
        (slot,) = self.outputs
        values[slot] = torch.get_rng_state()

    def settled(self) -> KeepGenerator:
        return self


class RestoreGenerator:
    """Give the generator a state that was kept."""

    outputs = written = ()
    is_settled = True

    def __init__(self, call: GraphCall) -> None:
        self.inputs, self.drops = call.inputs, call.drops

    def run(self, values: Values) -> None:
        (slot,) = self.inputs
        torch.set_rng_state(values[slot])

    def settled(self) -> RestoreGenerator:
        return self


Quick: TypeAlias = Callable[[Values], Any]


def _quick(
    template: Template, function: Callable[..., Any], inputs: tuple[int, ...], floats: tuple[int, ...], values: Values
) -> Quick | None:
    """Return what calls the function with arguments that are picked from the values; None if some have to be built.

    Arguments that are the same in each run are appended to ``values``.
    """
    if template.reshapes or any(_has_slot(item) for item in template.kwargs.values()):
        return None
    if any(type(item) is list and _has_slot(item) for item in template.args):
        return None
    if template.kwargs:
        function = partial(function, **template.kwargs)
    of_tensors, of_floats = iter(inputs), iter(floats)
    places = []
    for item in template.args:
        if item is TENSOR:
            places.append(next(of_tensors))
        elif item is FLOAT:
            places.append(next(of_floats))
        else:
            values.append(None if item is GENERATOR else item)
            places.append(len(values) - 1)
    if not places:
        return lambda values: function()
    if len(places) == 1:
        (place,) = places
        return lambda values: function(values[place])
    pick = itemgetter(*places)
    return lambda values: function(*pick(values))


def _storing(quick: Quick, outputs: tuple[int, ...], plan: Plan) -> Callable[[Values], object]:
    """Return what calls, and puts the results into their slots."""
    if not outputs:
        return quick
    if plan.is_usual:
        (slot,) = outputs

        def store(values: Values) -> None:
            values[slot] = quick(values)

        return store

    def store_results(values: Values) -> None:
        for slot, tensor in zip(outputs, plan.results(quick(values)), strict=True):
            values[slot] = tensor

    return store_results


def _has_slot(item: object) -> bool:
    return type(item) is Slot or (type(item) is list and any(_has_slot(each) for each in item))
