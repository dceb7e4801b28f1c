"""The program's optimizers, which stay the same objects while the layers of a process change."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.optim import Optimizer

from ..state import StateDict
from .missed import OptimizerFactory, options_of


class Optimizers:
    """Each optimizer, with the factory that makes it.

    ``state_dict`` has what is the same on all members; what belongs to a layer is a part of ``Holdings.capture``.
    """

    def __init__(self) -> None:
        self.made: list[tuple[Optimizer, OptimizerFactory]] = []

    def __len__(self) -> int:
        return len(self.made)

    def __iter__(self) -> Iterator[Optimizer]:
        return (each for each, _ in self.made)

    def add(self, factory: OptimizerFactory, parameters: list[nn.Parameter]) -> Optimizer:
        """Return the optimizer that it makes of these."""
        optimizer = factory(parameters)
        self.made.append((optimizer, factory))
        return optimizer

    def give(self, parameters: list[nn.Parameter]) -> None:
        """Let all have these parameters, in the groups in which their factories put them, with the rates of now.

        Raises ValueError for a factory that makes other groups of them.
        """
        for optimizer, factory in self.made:
            _give(optimizer, factory, parameters)

    def forget(self) -> None:
        """Drop the state of all parameters: other values come in their place."""
        for optimizer in self:
            optimizer.state.clear()

    def state_dict(self) -> StateDict:
        """Return the options of each one's groups, which schedulers change."""
        return {"groups": list(map(options_of, self))}

    def load_state_dict(self, state: StateDict) -> None:
        for optimizer, groups in zip(self, state["groups"], strict=True):
            for group, options in zip(optimizer.param_groups, groups, strict=True):
                group.update(options)


def beside(parameter: Tensor, optimizer: Optimizer, state: StateDict) -> StateDict:
    """Return an optimizer's state of a parameter on its device. Counts of steps stay where the optimizer reads them.

    That is the CPU, but with ``capturable`` or ``fused``, as in ``Optimizer.load_state_dict``.
    """
    counts_there = optimizer.defaults.get("capturable") or optimizer.defaults.get("fused")
    return {
        key: value.to(parameter.device) if isinstance(value, Tensor) and (key != "step" or counts_there) else value
        for key, value in state.items()
    }


def _give(optimizer: Optimizer, factory: OptimizerFactory, parameters: list[nn.Parameter]) -> None:
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
