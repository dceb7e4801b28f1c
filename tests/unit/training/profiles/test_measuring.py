"""Tests of what is measured of layers: bytes exactly, times by what has to hold between them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from multiworld.model.layers import layers_by_hand
from multiworld.training.profiles import measure_layers

ROWS = 32


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, 16, generator=generator), torch.randn(ROWS, 2, generator=generator)


def stages() -> list[nn.Module]:
    return [nn.Linear(16, 16, bias=False), nn.Sequential(nn.Linear(16, 512), nn.ReLU()), nn.Linear(512, 2)]


def test_bytes_are_those_of_weights_states_and_saved_tensors() -> None:
    profile = measure_layers(layers_by_hand(stages(), batch()), batch())
    first, second, third = profile.layers
    assert (profile.model, profile.micro_batch) == ("stages", ROWS)
    assert first.state_bytes == 16 * 16 * 4 * 4  # weights, gradients, and two tensors of AdamW
    assert first.move_bytes == 16 * 16 * 4 * 3
    assert [each.output_bytes for each in profile.layers] == [ROWS * 16 * 4, ROWS * 512 * 4, 0]
    assert first.activation_bytes == ROWS * 16 * 4  # the input
    assert second.activation_bytes == ROWS * (16 + 512) * 4  # the input, and what ReLU returned
    assert third.activation_bytes == ROWS * 512 * 4
    assert first.put_off_bytes == ROWS * (16 + 16) * 4  # the input, and the gradient of the output
    assert second.put_off_bytes == ROWS * (16 + 512) * 4


def test_another_optimizer_has_other_states() -> None:
    profile = measure_layers(layers_by_hand(stages(), batch()), batch(), optimizer_states=0)
    assert profile.layers[0].state_bytes == 16 * 16 * 4 * 2
    assert profile.layers[0].move_bytes == 16 * 16 * 4


def test_frozen_weights_have_no_gradients_and_states() -> None:
    parts = stages()
    parts[1].requires_grad_(False)
    layer = measure_layers(layers_by_hand(parts, batch()), batch()).layers[1]
    assert layer.state_bytes == layer.move_bytes == (16 * 512 + 512) * 4
    assert layer.weight_backward_s == 0.0
    assert layer.backward_s > 0.0


def test_buffers_count_as_state_that_moves() -> None:
    parts = [nn.Linear(16, 16), nn.BatchNorm1d(16)]
    layer = measure_layers(layers_by_hand(parts, batch()), batch(), optimizer_states=0).layers[1]
    assert layer.move_bytes == (4 * 16) * 4 + 8


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute in one thread: several wait for each other, and with other load on the machine that takes long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_times_grow_with_the_work() -> None:
    parts = [nn.Linear(16, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 2)]
    layers = measure_layers(layers_by_hand(parts, batch()), batch()).layers
    assert layers[1].forward_s > layers[2].forward_s
    assert layers[1].backward_s > layers[2].backward_s
    for layer in layers:
        assert 0.0 <= layer.weight_backward_s <= layer.backward_s


def test_what_a_split_backward_puts_off_is_the_weights() -> None:
    parts = [nn.Linear(16, 16), nn.Linear(16, 16)]
    parts[1].weight.register_hook(lambda _: time.sleep(0.02))  # type: ignore[no-untyped-call]
    first, second = measure_layers(layers_by_hand(parts, batch()), batch()).layers
    assert second.backward_s >= second.weight_backward_s > 0.01
    assert first.weight_backward_s < 0.01


def test_what_a_split_backward_cannot_put_off_is_not_the_weights() -> None:
    parts = [nn.Linear(16, 16), nn.Sequential(nn.Unflatten(1, (4, 4)), nn.Conv1d(4, 8, 3), nn.LayerNorm(2))]
    layer = measure_layers(layers_by_hand(parts, batch()), batch()).layers[1]
    assert layer.backward_s > 0.0
    assert layer.weight_backward_s == 0.0


def test_an_example_that_is_a_part_of_a_dataset_counts_as_that_part() -> None:
    parts = [nn.Linear(16, 16), nn.Linear(16, 16)]
    example = torch.ones(1000, 16)[:ROWS]
    first, _ = measure_layers(layers_by_hand(parts, example), example).layers
    assert first.activation_bytes == ROWS * 16 * 4
    assert first.put_off_bytes == 2 * ROWS * 16 * 4


def test_the_loss_counts_as_the_last_layers() -> None:
    layered = layers_by_hand(stages(), batch())
    profile = measure_layers(layered, batch(), loss=lambda output, target: (output.exp() - target).exp().sum())
    assert profile.layers[-1].activation_bytes == ROWS * (512 + 2 + 2) * 4
    assert profile.layers[-1].output_bytes == 0


@pytest.mark.parametrize("device", [None, torch.device("cpu", 0)], ids=["there", "copied"])
def test_measuring_changes_nothing(device: torch.device | None) -> None:
    """Each copy to ``cpu:0`` is a new one, so it stands for another device."""
    parts = [nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 2))]
    parts[0].weight.grad = torch.ones(16, 16)
    layered = layers_by_hand(parts, batch())
    before = {name: value.clone() for name, value in nn.Sequential(*parts).state_dict().items()}
    places = {name: value.data_ptr() for name, value in layered.parameters().items()}
    state = torch.get_rng_state()
    measure_layers(layered, batch(), device=device)
    assert places == {name: value.data_ptr() for name, value in layered.parameters().items()}
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in nn.Sequential(*parts).state_dict().items())
    gradients = {name: value.grad for name, value in layered.parameters().items()}
    assert torch.equal(gradients.pop("0.weight"), torch.ones(16, 16))  # type: ignore[arg-type]
    assert set(gradients.values()) == {None}


class Called(nn.Module):
    def __init__(self, name: str, calls: list[str]) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self._name, self._calls = name, calls

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self._calls.append(self._name)
        output: torch.Tensor = self.linear(values)
        return output


def test_layers_are_run_in_turn() -> None:
    calls: list[str] = []
    layered = layers_by_hand([Called(name, calls) for name in "abc"], torch.ones(2, 16))
    calls.clear()
    measure_layers(layered, torch.ones(2, 16), runs=3)
    order = [name for name, _ in itertools.groupby(calls)]
    assert order[:9] == list("abc" * 3)


def test_no_run_begins_after_the_limit() -> None:
    calls: list[str] = []
    layered = layers_by_hand([Called(name, calls) for name in "abc"], torch.ones(2, 16))
    calls.clear()
    profile = measure_layers(layered, torch.ones(2, 16), limit_s=0.0)
    assert [name for name, _ in itertools.groupby(calls)] == list("abcabc")  # once without a clock, and once with it
    assert all(each.forward_s > 0.0 for each in profile.layers)


class Asleep(Called):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        return super().forward(values)


def test_a_layer_that_waits_takes_the_time_in_which_it_waits() -> None:
    layered = layers_by_hand([Asleep("a", []), Called("b", [])], torch.ones(2, 16))
    assert measure_layers(layered, torch.ones(2, 16)).layers[0].forward_s >= 0.01


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="runs=0"):
        measure_layers(layers_by_hand(stages(), batch()), batch(), runs=0)
