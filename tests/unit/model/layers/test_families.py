"""Tests that layers compute what the whole model computes, for each family of models."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from multiworld.model.layers import LayeredModel, layers_of
from multiworld.model.layers.batches import arguments_of

from .families import FAMILIES

NAMES = tuple(FAMILIES)


@cache
def cut(name: str) -> tuple[nn.Module, nn.Module, LayeredModel]:
    """Return a model, an equal one that stays whole, and the layers of the first. Cut once: it takes seconds."""
    make, batch = FAMILIES[name]
    torch.manual_seed(5)
    model = make()
    whole = copy.deepcopy(model)
    return model, whole, layers_of(model, batch(3))


def total(output: Any) -> torch.Tensor:
    tensors = output.values() if isinstance(output, dict) else [output]
    return torch.stack([(value * value).sum() for value in tensors]).sum()


def grads(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: value.grad for name, value in model.named_parameters()}


def backward_in_stages(layered: LayeredModel, batch: Any, sizes: tuple[int, ...]) -> torch.Tensor:
    """Run forward and backward in stages of so many layers, each with tensors of its own, as processes would."""
    values: tuple[torch.Tensor, ...] = layered.inputs_of(batch)
    chain: list[tuple[tuple[torch.Tensor, ...], Any]] = []
    start = 0
    for size in sizes:
        given, result = values, values
        for layer in layered.layers[start : start + size]:
            result = layer.module(*result)
        start += size
        chain.append((given, result))
        if start < len(layered.layers):
            crossings = layered.layers[start - 1].outputs
            assert crossings is not None
            values = tuple(
                value.detach().clone().requires_grad_(crossing.needs_grad)
                for value, crossing in zip(result, crossings, strict=True)
            )
    loss = total(chain[-1][1])
    loss.backward()  # type: ignore[no-untyped-call]
    for (given, _), (_, result) in zip(chain[:0:-1], chain[-2::-1], strict=True):
        pairs = [(out, one.grad) for out, one in zip(result, given, strict=True) if one.grad is not None]
        torch.autograd.backward([out for out, _ in pairs], [grad for _, grad in pairs if grad is not None])
    return loss.detach()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [3, 5])
def test_stages_compute_what_the_whole_computes(name: str, rows: int) -> None:
    model, whole, layered = cut(name)
    batch = FAMILIES[name][1](rows)
    given = arguments_of(whole, batch)
    num_layers = len(layered.layers)
    whole.load_state_dict(model.state_dict())
    torch.manual_seed(7)
    wanted = total(given.call(whole, given.tensors))
    whole.zero_grad()
    wanted.backward()  # type: ignore[no-untyped-call]
    for sizes in ((num_layers,), (1,) * num_layers, (2, num_layers - 3, 1)):
        model.zero_grad()
        torch.manual_seed(7)
        assert torch.equal(backward_in_stages(layered, batch, sizes), wanted.detach()), sizes
        for key, grad in grads(whole).items():
            found = model.get_parameter(key).grad
            assert (found is None) == (grad is None), key
            if grad is not None and found is not None:
                torch.testing.assert_close(found, grad, rtol=1e-5, atol=1e-6 * float(grad.abs().max()), msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_layers_hold_the_models_own_parameters_by_its_names(name: str) -> None:
    model, _, layered = cut(name)
    assert len(layered.layers) >= 4
    own = dict(model.named_parameters())
    assert layered.parameters().keys() == own.keys()
    assert all(value is own[key] for layer in layered.layers for key, value in layer.parameters.items())
    buffers = dict(model.named_buffers())
    assert all(value is buffers[key] for layer in layered.layers for key, value in layer.buffers.items())
    assert {key for layer in layered.layers for key in layer.buffers} == set(buffers)
    assert len({layer.name for layer in layered.layers}) == len(layered.layers)


def test_running_statistics_are_updated_in_place() -> None:
    model, whole, layered = cut("resnet")
    batch = FAMILIES["resnet"][1](3)
    whole.load_state_dict(model.state_dict())
    whole(batch[0])
    backward_in_stages(layered, batch, (2, len(layered.layers) - 2))
    for name, value in whole.named_buffers():
        assert torch.equal(model.get_buffer(name), value), name
    assert model.get_buffer("stem.1.num_batches_tracked").item() > 0


def test_tied_weights_are_in_the_first_and_the_last_layer() -> None:
    _, _, layered = cut("gpt")
    holders = [place for place, layer in enumerate(layered.layers) if "words.weight" in layer.parameters]
    assert holders == [0, len(layered.layers) - 1]


def test_blocks_are_divided_where_one_tensor_crosses() -> None:
    _, _, layered = cut("gpt")
    names = [layer.name for layer in layered.layers]
    assert names[2:-1] == ["blocks.0.attention", "blocks.0.mlp", "blocks.1.attention", "blocks.1.mlp"]
    assert all(len(layer.outputs) == 1 for layer in layered.layers if layer.outputs)


def test_masks_ride_along_without_gradients() -> None:
    _, _, layered = cut("bert")
    outputs = layered.layers[0].outputs
    assert outputs is not None
    assert {(each.dtype, each.needs_grad) for each in outputs} == {
        (torch.int64, False),
        (torch.bool, False),
        (torch.float32, True),
    }


def test_a_learned_bias_that_all_blocks_use_is_computed_once() -> None:
    _, _, layered = cut("t5")
    with_bias = [layer for layer in layered.layers if "bias.weight" in layer.parameters]
    assert len(with_bias) == 2  # one for the encoder, one for the decoder
