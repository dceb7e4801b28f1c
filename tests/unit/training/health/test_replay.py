"""A micro-batch that is computed twice."""

from __future__ import annotations

import torch
from torch import nn

from multiworld.training.health.replay import GradientReplay


def test_a_second_time_with_dropout_and_batch_statistics_is_equal() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    replay = of(model)
    means = []
    replay.begin()
    for again in (False, True):
        if again:
            replay.again()
        model(torch.ones(3, 4) * torch.arange(3)[:, None]).sum().backward()
        means.append(model.get_buffer("1.running_mean").clone())
    assert replay.differing() == ""
    assert torch.equal(*means)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_one_bit_in_a_gradient_is_found_and_the_parameter_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    replay = of(model)
    replay.begin()
    model(torch.ones(2, 4)).sum().backward()
    replay.again()
    model(torch.ones(2, 4)).sum().backward()
    grad = model.get_parameter("1.weight").grad
    assert grad is not None
    grad.view(torch.int32)[0, 2] ^= 1
    assert replay.differing() == "1.weight"


def test_a_gradient_that_is_missing_the_second_time_is_a_difference() -> None:
    model = nn.Linear(2, 1)
    replay = of(model)
    replay.begin()
    model(torch.ones(1, 2)).sum().backward()
    replay.again()
    assert replay.differing() == "weight"


def test_equal_gradients_that_are_not_numbers_are_equal() -> None:
    model = nn.Linear(2, 1)
    replay = of(model)
    replay.begin()
    model(torch.full((1, 2), torch.nan)).sum().backward()
    replay.again()
    model(torch.full((1, 2), torch.nan)).sum().backward()
    assert replay.differing() == ""


def of(model: nn.Module) -> GradientReplay:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return GradientReplay(parameters, names, [*model.buffers()])
