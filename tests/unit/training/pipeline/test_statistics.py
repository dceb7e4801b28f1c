"""Buffers that a forward changes, while several forwards go before a backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from multiworld.model.layers import layers_by_hand
from multiworld.training.pipeline.statistics import Statistics, changing


class Counting(nn.Module):
    """Uses a buffer in its result, and changes it: backward needs the value that the forward has left."""

    sum: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("sum", torch.ones(1))
        self.register_buffer("never", torch.ones(1))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.sum += values.sum()
        return values * self.weight * self.sum


def test_the_step_adds_the_mean_change_and_backward_sees_each_forwards_value() -> None:
    module = Counting()
    statistics = Statistics({"sum": module.sum}, [module], separate=False)
    statistics.begin_step()
    results = []
    for number, value in enumerate((1.0, 3.0, 7.0, 9.0)):
        statistics.begin_forward()
        results.append(module(torch.tensor([value])))
        statistics.end_forward(number)
    assert module.sum.item() == 1.0  # as the step began
    assert [bucket.sums.tolist() for bucket in statistics.buckets] == [[0.0]]  # no backward is over
    statistics.end_backward(0)
    statistics.drop(2)  # another member has it
    statistics.end_backward(1)
    gradients = [torch.autograd.grad(each, module.weight)[0].item() for each in results]
    assert gradients == [1.0 * 2.0, 3.0 * 4.0, 7.0 * 8.0, 9.0 * 10.0]
    for bucket in statistics.buckets:
        bucket.reduced.copy_(bucket.sums / 2)
    statistics.apply()
    assert module.sum.item() == 1.0 + (1.0 + 3.0) / 2


@pytest.mark.parametrize("begin", ["begin_forward", "begin_recompute"])
def test_a_forward_that_does_not_count_changes_nothing(begin: str) -> None:
    module = Counting()
    before = module.sum
    statistics = Statistics({"sum": module.sum}, [module], separate=False)
    statistics.begin_step()
    getattr(statistics, begin)()
    module(torch.ones(1))
    statistics.undo()
    assert module.sum is before
    assert module.sum.item() == 1.0
    assert [bucket.sums.tolist() for bucket in statistics.buckets] == [[0.0]]


def test_buffers_that_change_are_found_and_stay_as_they_were() -> None:
    module = Counting()
    model = layers_by_hand([nn.Linear(1, 1), module, nn.Linear(1, 1)], (torch.ones(2, 1), torch.ones(2, 1)))
    assert changing(model, (torch.ones(2, 1), torch.ones(2, 1))) == {"1.sum"}
    assert module.sum.item() == 1.0
