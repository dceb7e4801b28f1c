"""Tied weights: a gradient for each layer, and their sum in the end."""

from __future__ import annotations

import torch
from torch import nn

from multiworld.model.layers import layers_by_hand
from multiworld.training.pipeline.contents import Contents, Use
from multiworld.training.pipeline.holdings import Holdings

EXAMPLE = torch.arange(6.0).reshape(2, 3)


def tied_chain(*, same_module: bool) -> list[nn.Module]:
    torch.manual_seed(0)
    first = nn.Linear(3, 3)
    last = first if same_module else nn.Linear(3, 3)
    if not same_module:
        last.weight = first.weight
    return [first, nn.Sequential(nn.Tanh()), nn.Sequential(last)]


def gradient(stages: list[nn.Module]) -> torch.Tensor:
    values = EXAMPLE
    for stage in stages:
        values = stage(values)
    values.square().mean().backward()  # type: ignore[no-untyped-call]
    first = stages[0]
    assert isinstance(first, nn.Linear)
    assert first.weight.grad is not None
    return first.weight.grad


def test_each_layer_has_a_leaf_and_their_gradients_add_up_to_that_of_the_parameter() -> None:
    for same_module in (True, False):
        expected = gradient(tied_chain(same_module=same_module)).clone()
        stages = tied_chain(same_module=same_module)
        layers = layers_by_hand(stages, (EXAMPLE, EXAMPLE)).layers
        held = Holdings(Contents(layers, exact=True))
        weights = [each for each in held.contents.uses_of([0]).values() if each.parameter == "0.weight"]
        assert [(each.held_in, each.computed_in) for each in weights] == [((0, 2), (0,)), ((0, 2), (2,))]
        values: tuple[torch.Tensor, ...] = (EXAMPLE,)
        for layer in layers[:-1]:
            values = layer.module(*values)
        layers[-1].module(*values).square().mean().backward()
        assert all(each.leaf.grad is not None for each in weights)
        held.contents.add_up()
        first = stages[0]
        assert isinstance(first, nn.Linear)
        assert first.weight.grad is not None
        assert torch.equal(first.weight.grad, expected)
        assert weights[1].leaf.grad is None


def test_leaves_share_the_parameters_memory_wherever_that_goes() -> None:
    held = Holdings(Contents(layers_by_hand(tied_chain(same_module=False), (EXAMPLE, EXAMPLE)).layers, exact=True))
    held.add_optimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    state = held.capture([2])
    state["parameters"] = {name: torch.full_like(each, 7.0) for name, each in state["parameters"].items()}
    held.put(state)
    assert {each.leaf.data_ptr() for each in _weights(held)} == {state["parameters"]["0.weight"].data_ptr()}
    held.hold([1])
    assert [each.leaf.numel() for each in _weights(held)] == [0, 0]


def test_gradients_of_a_step_that_did_not_end_go_with_their_layers() -> None:
    held = Holdings(Contents(layers_by_hand(tied_chain(same_module=False), (EXAMPLE, EXAMPLE)).layers, exact=True))
    held.add_optimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    for use in held.contents.uses_of([2]).values():
        use.leaf.grad = torch.ones_like(use.leaf)
    held.hold([1])
    held.contents.add_up()
    assert held.contents.gradients() == []


def test_without_exact_a_parameter_is_one_leaf() -> None:
    held = Holdings(Contents(layers_by_hand(tied_chain(same_module=False), (EXAMPLE, EXAMPLE)).layers))
    assert [(each.held_in, each.computed_in) for each in _weights(held)] == [((0, 2), (0, 2))]


def _weights(held: Holdings) -> list[Use]:
    return [each for each in held.contents.uses_of([0]).values() if each.parameter == "0.weight"]
