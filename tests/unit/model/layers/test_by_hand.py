"""Tests of layers made of the stages that a user gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from multiworld.model.errors import CutError, PayloadMismatchError
from multiworld.model.layers import LayeredModel, layers_by_hand
from multiworld.model.layers.batches import example_of, home_of


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return self.table(ids), torch.ones_like(ids) if mask is None else mask


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        new = self.norm(self.linear(hidden).transpose(1, 2)).transpose(1, 2)
        return hidden + new * mask[..., None], mask


class Head(nn.Module):
    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": hidden @ self.table.weight.T}


def stages() -> list[nn.Module]:
    embed = Embed()
    return [embed, Block(), Block(), Head(embed.table)]


def run(layered: LayeredModel, batch: Any) -> Any:
    values = layered.inputs_of(batch)
    for layer in layered.layers:
        values = layer.module(*values)
    return values


def test_layers_are_the_stages_with_names_of_the_whole() -> None:
    parts = stages()
    layered = layers_by_hand(parts, {"ids": torch.arange(6).view(2, 3), "labels": torch.zeros(2)})
    assert [layer.name for layer in layered.layers] == ["0", "1", "2", "3"]
    assert list(layered.layers[1].parameters) == ["1.linear.weight", "1.linear.bias", "1.norm.weight", "1.norm.bias"]
    assert layered.layers[1].parameters["1.linear.weight"] is parts[1].get_parameter("linear.weight")
    assert layered.layers[1].buffers["1.norm.running_mean"] is parts[1].get_buffer("norm.running_mean")
    assert list(layered.layers[3].parameters) == ["0.table.weight"]  # tied: the first name
    assert layered.parameters().keys() == dict(nn.Sequential(*parts).named_parameters()).keys()


def test_needs_of_gradients_are_known_for_each_boundary() -> None:
    layered = layers_by_hand(stages(), (torch.arange(6).view(2, 3), torch.zeros(2)))
    outputs = layered.layers[0].outputs
    assert outputs is not None
    assert [(each.shape, each.needs_grad) for each in outputs] == [((2, 3, 8), True), ((2, 3), False)]
    assert outputs[0].size_bytes == 2 * 3 * 8 * 4
    assert layered.layers[-1].outputs is None


def test_the_example_leaves_stages_and_random_numbers_as_they_were() -> None:
    parts = [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)), nn.Linear(4, 2)]
    before = {name: value.clone() for name, value in parts[0].named_buffers()}
    state = torch.get_rng_state()
    layers_by_hand(parts, torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in parts[0].named_buffers())
    assert all(value.grad is None for value in parts[0].parameters())
    assert parts[0].training


@pytest.mark.parametrize("kind", ["dict", "tuple", "tensor"])
def test_a_batch_is_split_into_inputs_and_target(kind: str) -> None:
    ids, target = torch.arange(6).view(2, 3), torch.ones(2, 3)
    batch: Any = {"dict": {"ids": ids, "labels": target}, "tuple": [ids, target], "tensor": ids}[kind]
    parts = stages()
    layered = layers_by_hand(parts, batch)
    wanted = parts[0](ids)
    for part in parts[1:]:
        wanted = part(*wanted)
    assert torch.allclose(run(layered, batch)["logits"], wanted["logits"], atol=1e-6)
    found = layered.target_of(batch)
    assert found is {"dict": batch, "tuple": target, "tensor": ids}[kind]


def test_a_batch_with_other_entries_is_refused() -> None:
    layered = layers_by_hand(stages(), {"ids": torch.arange(6).view(2, 3)})
    with pytest.raises(PayloadMismatchError, match=r"ids: \[2, 3\].*mask: \[2, 3\]"):
        layered.inputs_of({"ids": torch.arange(6).view(2, 3), "mask": torch.ones(2, 3)})


def test_a_batch_without_tensors_is_refused() -> None:
    with pytest.raises(PayloadMismatchError, match="labels"):
        layers_by_hand(stages(), {"labels": torch.zeros(2)})


class ReturnsText(nn.Module):
    def forward(self, hidden: torch.Tensor) -> Any:
        return hidden, "text"


def test_a_stage_that_returns_no_tensor_is_named() -> None:
    with pytest.raises(CutError, match=r"stage 0 \(ReturnsText\): it returned str"):
        layers_by_hand([ReturnsText(), nn.Linear(2, 2)], torch.ones(1, 2))


def test_a_stage_that_takes_other_tensors_is_named() -> None:
    with pytest.raises(CutError, match=r"stage 1 \(Linear\).*given tensors of \[2, 3, 8\], \[2, 3\]"):
        layers_by_hand([Embed(), nn.Linear(8, 8)], torch.arange(6).view(2, 3))


def test_a_stage_without_values_is_named() -> None:
    with pytest.raises(
        CutError, match=r"stage 1 \(Sequential\): Linear '0': its 'weight' is on the meta device"
    ) as raised:
        layers_by_hand([nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2, device="meta"))], torch.ones(1, 2))
    assert "stage.to_empty(device='cpu')" in str(raised.value)
    assert "give the stages yourself" not in str(raised.value)


def test_an_example_is_taken_to_the_device_of_the_model() -> None:
    """A loader yields tensors on the CPU, wherever the model is."""
    parts: list[nn.Module] = [nn.Flatten(), nn.Linear(4, 2)]
    given = example_of(
        parts[0], (torch.ones(1, 4), torch.ones(1)), home_of(nn.Linear(4, 2, device="meta").parameters())
    )
    assert [each.device.type for each in given.tensors] == ["meta"]
    assert home_of(parts[0].parameters()) is None
    assert layers_by_hand(parts, torch.ones(1, 4)).home == torch.device("cpu")


def test_statistics_that_two_stages_share_are_refused() -> None:
    norm = nn.BatchNorm1d(4)
    with pytest.raises(CutError, match=r"running_mean' of layer 0 and .*running_mean' of layer 1"):
        layers_by_hand([norm, norm], torch.randn(3, 4))


def test_digests_tell_stages_apart() -> None:
    example = torch.ones(2, 4)
    digests = {
        layers_by_hand([nn.Linear(4, width), nn.Dropout(rate), nn.Linear(width, 2)], example).digest
        for width, rate in ((4, 0.1), (8, 0.1), (4, 0.2))
    }
    assert len(digests) == 3
    again = layers_by_hand([nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 2)], example).digest
    assert again in digests


def test_a_model_is_no_list_of_stages() -> None:
    with pytest.raises(TypeError, match="str"):
        layers_by_hand(["linear"], torch.ones(1))  # type: ignore[list-item]
