"""What a program hands over to be trained, and what it must not change afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from multiworld.training.errors import StepError
from multiworld.training.parts import TrainedParts, digest_of
from multiworld.training.recovery.agreement import differences


def parts_of(*modules: nn.Module) -> TrainedParts:
    parts = TrainedParts()
    for module in modules:
        parts.add_module(module)
    return parts


def sgd(*parameters: torch.Tensor) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def test_parameters_of_a_second_module_have_its_number_and_shared_ones_come_once() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    assert list(parts_of(first, second).parameters) == ["weight", "bias", "1.bias"]


def test_only_buffers_that_a_state_dict_has_are_kept_equal() -> None:
    module = nn.BatchNorm1d(2)
    module.register_buffer("scratch", torch.zeros(2), persistent=False)
    assert list(parts_of(module).buffers) == ["running_mean", "running_var", "num_batches_tracked"]


def test_an_optimizer_of_another_module_is_refused() -> None:
    parts = parts_of(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"shape \(3, 2\)"):
        parts.add_optimizer(sgd(*nn.Linear(2, 3).parameters()))
    assert not parts.optimizers


def test_an_optimizer_may_have_a_frozen_parameter() -> None:
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    parts = parts_of(module)
    parts.add_optimizer(sgd(*module.parameters()))
    assert list(parts.parameters) == ["weight"]


def test_there_is_nothing_to_train_without_module_or_optimizer() -> None:
    module = nn.Linear(2, 2)
    parts = TrainedParts()
    with pytest.raises(StepError, match="no module"):
        parts.check_complete()
    parts.add_module(module)
    with pytest.raises(StepError, match="no optimizer"):
        parts.check_complete()
    parts.add_optimizer(sgd(*module.parameters()))
    parts.check_complete()


def test_a_parameter_that_comes_after_the_beginning_is_refused() -> None:
    module = nn.Linear(2, 2)
    parts = parts_of(module)
    optimizer = sgd(*module.parameters())
    parts.add_optimizer(optimizer)
    parts.begin()
    parts.check_unchanged()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with pytest.raises(StepError, match="have 3 parameters, and had 2"):
        parts.check_unchanged()


def test_a_parameter_that_is_no_longer_frozen_is_refused() -> None:
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    parts = parts_of(module)
    parts.add_optimizer(sgd(module.weight))
    parts.begin()
    module.bias.requires_grad_(True)
    with pytest.raises(StepError, match="'bias' requires gradients"):
        parts.check_unchanged()


def test_a_digest_tells_which_part_differs() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 3)
    digests = []
    for module in (one, one, other):
        parts = parts_of(module)
        parts.add_optimizer(sgd(*module.parameters()))
        digests.append(digest_of(parts.described()))
    assert digests[0] == digests[1]
    assert differences(digests[0], digests[2]) == ["the model"]
