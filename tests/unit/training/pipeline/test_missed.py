"""What a process applies to layers that were on their way while steps counted: the same as where they came from."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from multiworld.model.layers import layers_by_hand
from multiworld.training.pipeline.contents import Contents
from multiworld.training.pipeline.holdings import Holdings

EXAMPLE = torch.arange(6.0).reshape(2, 3)
MEAN = "1.running_mean"


class Process:
    """Trains four layers, of which the first two have the same parameter if they are ``tied``."""

    def __init__(self, seed: int, *, tied: bool = False) -> None:
        torch.manual_seed(seed)
        stages: list[nn.Module] = [nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Linear(3, 1)]
        if tied:
            stages[2].weight = stages[0].weight
        self.stages = stages
        self.held = Holdings(Contents(layers_by_hand(stages, (EXAMPLE, EXAMPLE)).layers, {MEAN}))
        self.optimizer = self.held.add_optimizer(partial(torch.optim.AdamW, lr=0.1))
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)

    def step(self, gradients: dict[str, Tensor]) -> None:
        for name, use in self.held.contents.uses_of(range(4)).items():
            use.leaf.grad = gradients[name].clone()
        nn.utils.clip_grad_value_([use.leaf for use in self.held.contents.uses_of(range(4)).values()], 0.3)
        self.optimizer.step()
        self.scheduler.step()


def some_gradients(process: Process) -> dict[str, Tensor]:
    return {name: torch.randn(use.leaf.shape) for name, use in process.held.contents.uses_of(range(4)).items()}


@pytest.mark.parametrize("num_late", [0, 1, 3])
@pytest.mark.parametrize("tied", [False, True])
def test_layers_that_are_late_catch_up(num_late: int, tied: bool) -> None:
    """With the rates of then, with what the program made of the gradients, and with what buffers have changed by."""
    source, late = Process(0, tied=tied), Process(0, tied=tied)
    gradients = [some_gradients(source) for _ in range(num_late + 2)]
    for each in (source, late):
        each.step(gradients[0])
    late.held.hold([2, 3])
    late.held.expect([0, 1])
    state, missed = copy.deepcopy(source.held.capture([0, 1])), late.held.miss([0, 1])
    for number in range(num_late):
        change = torch.full((3,), 0.1 * (number + 1))
        source.held.capture([1])["buffers"][MEAN].add_(change)
        missed.step_counts({MEAN: change})
        for each in (source, late):
            each.step(gradients[number + 1])
    late.held.take(state, missed)
    for each in (source, late):
        each.step(gradients[-1])
    assert missed.num_steps == num_late
    assert str(source.held.capture(range(4))) == str(late.held.capture(range(4)))


def test_nothing_is_kept_of_layers_that_are_given_up() -> None:
    late = Process(0)
    late.held.hold([2, 3])
    late.held.expect([0, 1])
    missed = late.held.miss([0, 1])
    late.step({name: torch.ones_like(use.leaf) for name, use in late.held.contents.uses_of(range(4)).items()})
    assert len(missed.events) == 1
    late.held.hold([2, 3])
    late.optimizer.step()
    assert len(missed.events) == 1
