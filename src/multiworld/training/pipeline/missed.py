"""What counted while some layers were on their way to this process: it is applied to them once they are here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from ..state import StateDict
from .statistics import add_change

OptimizerFactory = Callable[[list[nn.Parameter]], Optimizer]


@dataclass(frozen=True)
class Changed:
    """By the name of a buffer, what a step has added to it."""

    changes: Mapping[str, Tensor]


@dataclass(frozen=True)
class Stepped:
    """Optimizer ``number`` ran, with these options of its groups. ``gradients``: by name, as it was given them."""

    number: int
    options: Sequence[StateDict]
    gradients: Mapping[str, Tensor | None]


class Missed:
    """Of some layers, in the order in which it happened. ``names``: their parameters and buffers."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self.events: list[Changed | Stepped] = []
        self.num_steps = 0

    def step_counts(self, changes: Mapping[str, Tensor]) -> None:
        """``changes``: of any buffers in a step, see ``Changed``. They are copied."""
        self.num_steps += 1
        mine = {name: each.clone() for name, each in changes.items() if name in self._names}
        if mine:
            self.events.append(Changed(mine))

    def stepped(self, number: int, optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> None:
        """An optimizer is about to run. ``parameters``: all of the model; their gradients are copied."""
        gradients = {
            name: None if parameter.grad is None else parameter.grad.clone()
            for name, parameter in parameters.items()
            if name in self._names and parameter.requires_grad
        }
        self.events.append(Stepped(number, options_of(optimizer), gradients))


def options_of(optimizer: Optimizer) -> list[StateDict]:
    """Return for each group of an optimizer all but its parameters: copies, as schedulers change them."""
    return [
        {key: value.clone() if isinstance(value, Tensor) else value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def catch_up(
    missed: Missed,
    parameters: Mapping[str, nn.Parameter],
    buffers: Mapping[str, Tensor],
    optimizers: Sequence[tuple[Optimizer, OptimizerFactory]],
) -> None:
    """Apply what was missed to these parameters and buffers, whose state is as it was before.

    Each optimizer keeps the state of the parameters, and is not run: it has others, too, that missed nothing. One of
    the same kind runs in its place, with the options of then.
    """
    trained = {name: each for name, each in parameters.items() if each.requires_grad}
    stand_ins: dict[int, Optimizer] = {}
    for event in missed.events:
        if isinstance(event, Changed):
            for name, change in event.changes.items():
                if name in buffers:
                    add_change(buffers[name], change)
        elif trained:
            optimizer, factory = optimizers[event.number]
            if event.number not in stand_ins:
                stand_ins[event.number] = factory(list(trained.values()))
                stand_ins[event.number].state.update(
                    {each: optimizer.state[each] for each in trained.values() if each in optimizer.state}
                )
            _step_again(stand_ins[event.number], event, trained)
    for number, stand_in in stand_ins.items():
        optimizers[number][0].state.update(stand_in.state)


def _step_again(stand_in: Optimizer, stepped: Stepped, parameters: Mapping[str, nn.Parameter]) -> None:
    for group, options in zip(stand_in.param_groups, stepped.options, strict=True):
        group.update(options)
    for name, parameter in parameters.items():
        parameter.grad = stepped.gradients[name]
    stand_in.step()
    for parameter in parameters.values():
        parameter.grad = None
