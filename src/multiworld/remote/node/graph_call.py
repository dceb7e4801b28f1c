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
    """Return what calls the function with arguments that are picked from the values; None if it has to do more.

    Arguments that are the same in each run are appended to ``values``.
    """
    if template.reshapes:
        return None
    picker = _Picker(inputs, floats, values)
    args = [picker.pick(item) for item in template.args]
    keywords = {name: picker.pick(item) for name, item in template.kwargs.items() if _has_slot(item)}
    fixed = {name: item for name, item in template.kwargs.items() if name not in keywords}
    if fixed:
        function = partial(function, **fixed)
    if keywords:
        names, of_names = tuple(keywords), [_picked(each) for each in keywords.values()]
        of_args = [_picked(each) for each in args]
        return lambda values: function(
            *[pick(values) for pick in of_args],
            **dict(zip(names, [pick(values) for pick in of_names], strict=True)),
        )
    places = [each for each in args if isinstance(each, int)]
    if len(places) < len(args):
        of_args = [_picked(each) for each in args]
        return lambda values: function(*[pick(values) for pick in of_args])
    if len(places) < 2:
        return lambda values: function(*[values[place] for place in places])
    pick_all = itemgetter(*places)
    return lambda values: function(*pick_all(values))


class _Picker:
    """Takes the places of tensors and floats in the order of the slots of a template."""

    def __init__(self, inputs: tuple[int, ...], floats: tuple[int, ...], values: Values) -> None:
        self._inputs, self._floats, self._values = iter(inputs), iter(floats), values

    def pick(self, item: object) -> int | Quick:
        """Return where an argument is among the values, or what makes a list of it."""
        if item is TENSOR:
            return next(self._inputs)
        if item is FLOAT:
            return next(self._floats)
        if type(item) is list and _has_slot(item):
            parts = [_picked(self.pick(each)) for each in item]
            return lambda values: [part(values) for part in parts]
        self._values.append(None if item is GENERATOR else item)
        return len(self._values) - 1


def _picked(pick: int | Quick) -> Quick:
    return itemgetter(pick) if isinstance(pick, int) else pick


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
