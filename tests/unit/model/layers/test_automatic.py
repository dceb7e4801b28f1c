"""Tests of what cannot be cut, of batches that do not fit, and of what a cut leaves as it was."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from multiworld.model.errors import CutError, PayloadMismatchError
from multiworld.model.layers import layers_of

from .families import SmallGPT, words


def chain(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), *middle, nn.Linear(4, 2))


EXAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


class Branches(nn.Module):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if hidden.sum() > 0:
            return hidden * 2
        return hidden


class Counts(nn.Module):
    calls = 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return hidden * (1 if self.calls < 10 else 2)


class DrawsFromPython(nn.Module):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * random.random()


class Breaks(nn.Module):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("no luck")


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.round()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


class Rounds(nn.Module):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = StraightThrough.apply(hidden * 3)  # type: ignore[no-untyped-call]
        return result


class ReturnsObject(nn.Module):
    def forward(self, hidden: torch.Tensor) -> Any:
        return object()


class Detaches(nn.Module):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.detach()


class BranchesItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self.first(hidden)
        if hidden.sum() > 0:
            hidden = hidden * 2
        result: torch.Tensor = self.last(hidden)
        return result


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (BranchesItself(), r"at test_automatic.py:\d+: what it computes is chosen by values in the batch"),
        (chain(Counts()), r"forward changes its attribute '1.calls' with each call"),
        (chain(DrawsFromPython()), "random numbers from Python's random module"),
        (chain(Breaks()), r"at 1 \(test_automatic.py:\d+\): with the example it raises ArithmeticError: no luck"),
        (nn.Sequential(Branches(), nn.Linear(4, 4)), "no place to cut is left beside 0, which cannot be divided"),
    ],
)
def test_what_cannot_be_cut_is_named_with_its_place_and_what_to_do(model: nn.Module, said: str) -> None:
    with pytest.raises(CutError, match=said) as caught:
        layers_of(model, EXAMPLE)
    assert "stages=[embed, *blocks, head]" in str(caught.value)


@pytest.mark.parametrize("part", [Branches(), Rounds()], ids=["chosen by values", "with gradients of its own"])
@pytest.mark.parametrize("factor", [1.0, -1.0])
def test_a_part_that_cannot_be_followed_is_kept_whole(part: nn.Module, factor: float) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.part, self.norm = nn.Linear(4, 4), part, nn.BatchNorm1d(4)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.norm(self.part(self.linear(hidden))) + hidden
            return result

    model = nn.Sequential(Block(), Block(), nn.Linear(4, 2))
    layered = layers_of(model, EXAMPLE)
    assert [layer.name for layer in layered.layers] == ["0", "1", "2"]
    values: Any = layered.inputs_of(EXAMPLE * factor)
    for layer in layered.layers:
        values = layer.module(*values)
    values.sum().backward()
    found = {name: value.grad for name, value in model.named_parameters()}
    model.zero_grad()
    wanted = model(EXAMPLE * factor)
    assert torch.equal(values, wanted)
    wanted.sum().backward()
    for name, value in model.named_parameters():
        torch.testing.assert_close(found[name], value.grad, msg=name)
    with pytest.raises(PayloadMismatchError, match="example's shapes alone"):
        layered.inputs_of(torch.ones(2, 4))


def test_a_part_that_is_kept_whole_has_the_mode_of_training() -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(4)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            dropped = self.drop(hidden)
            return self.norm(dropped if hidden.sum() > 0 else -dropped)  # type: ignore[no-any-return]

    model = chain(Drops()).eval()
    layered = layers_of(model, EXAMPLE)
    [norm] = [part for layer in layered.layers for part in layer.module.modules() if isinstance(part, nn.BatchNorm1d)]
    assert norm.training
    assert not model[1].norm.training  # type: ignore[index]
    assert norm.running_mean is model[1].norm.running_mean  # type: ignore[index]
    assert {name for layer in layered.layers for name in layer.buffers} == dict(model.named_buffers()).keys()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Linear(4, 4), ReturnsObject()), "forward returned a value of type object"),
        (Rounds(), "depends on no parameter"),
        (nn.Sequential(nn.Linear(4, 4), Detaches()), "depends on no parameter"),
        (nn.DataParallel(nn.Linear(4, 4)), "model.module"),
    ],
)
def test_models_without_a_usable_output_are_refused(model: nn.Module, said: str) -> None:
    with pytest.raises(CutError, match=said):
        layers_of(model, EXAMPLE)


def test_a_shared_batch_norm_keeps_its_uses_in_one_layer() -> None:
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 4), norm, nn.Linear(4, 2))
    layered = layers_of(model, EXAMPLE)
    assert sum("1.running_mean" in layer.buffers for layer in layered.layers) == 1
    assert [layer.name for layer in layered.layers][-1] == "4"


def test_a_cut_leaves_the_model_and_the_random_numbers_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model[0].weight.grad = torch.ones(4, 4)
    state = torch.get_rng_state()
    layered = layers_of(model, EXAMPLE)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(part.training for part in model.modules())
    assert all(layer.module.training for layer in layered.layers)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.ones(4, 4))
    assert model[3].weight.grad is None


def test_a_part_in_evaluation_mode_stays_so() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[1].eval()
    layered = layers_of(model, EXAMPLE)
    mean = model[1].running_mean
    assert isinstance(mean, torch.Tensor)
    values: Any = layered.inputs_of(EXAMPLE)
    for layer in layered.layers:
        values = layer.module(*values)
    assert torch.equal(mean, torch.zeros(4))


def test_layers_have_no_evaluation_mode() -> None:
    layered = layers_of(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)), EXAMPLE)
    for layer in layered.layers:
        with pytest.raises(RuntimeError, match="no evaluation mode"):
            layer.module.eval()


def test_dropout_follows_the_global_random_numbers() -> None:
    layered = layers_of(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)), EXAMPLE)

    def run(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        values: Any = layered.inputs_of(EXAMPLE)
        for layer in layered.layers:
            values = layer.module(*values)
        return values  # type: ignore[no-any-return]

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


class FixedSizes(nn.Module):
    """Computes with a size in Python: other sizes take another branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self.first(hidden)
        if hidden.shape[1] > 5:
            hidden = hidden * 2
        result: torch.Tensor = self.last(functional.relu(hidden))
        return result


def test_sizes_that_take_another_branch_are_refused() -> None:
    model = FixedSizes()
    layered = layers_of(model, torch.ones(3, 4, 4))
    assert len(layered.layers) == 2
    for shape in ((3, 4, 4), (2, 5, 4), (1, 3, 4)):
        values: Any = layered.inputs_of(torch.ones(shape))
        for layer in layered.layers:
            values = layer.module(*values)
        assert torch.equal(values, model(torch.ones(shape)))
    with pytest.raises(PayloadMismatchError, match=r"\[3, 6, 4\]: it holds where .*shape\[1\] <= 5"):
        layered.inputs_of(torch.ones(3, 6, 4))


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"ids": words()}, "needs the same entries"),
        ((words().float(), words()), "float32"),
        ((words()[0], words()), "1 dimensions"),
        ((words(3, 1), words()), "dimension 1 of input 0 has 1 entries, and has to have 2 or more"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(batch: Any, said: str) -> None:
    layered = layers_of(SmallGPT(1), (words(), words()))
    with pytest.raises(PayloadMismatchError, match=said):
        layered.inputs_of(batch)


def test_digests_are_those_of_structure_and_shapes() -> None:
    digests = [layers_of(model, EXAMPLE).digest for model in (chain(), chain(nn.ReLU()), chain())]
    assert digests[0] == digests[2] != digests[1]


class Outer(nn.Module):
    """Gives its part a value in Python that comes from the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scales()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(hidden, Scale(hidden))
        return result


class Scale:
    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden


class Scales(nn.Module):
    def forward(self, hidden: torch.Tensor, scale: Scale) -> torch.Tensor:
        return hidden * 2 if scale.hidden.sum() > 0 else hidden


def test_a_part_that_is_given_no_tensors_alone_is_kept_whole_with_the_part_around_it() -> None:
    layered = layers_of(nn.Sequential(nn.Linear(4, 4), Outer(), nn.Linear(4, 2)), EXAMPLE)
    assert len(layered.layers) == 2
    assert any(isinstance(part, Outer) for layer in layered.layers for part in layer.module.modules())


def test_a_part_with_a_parametrization_can_be_kept_whole() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.linear(hidden if hidden.sum() > 0 else -hidden)
            return result

    model = chain(Block())
    layered = layers_of(model, EXAMPLE)
    assert layered.parameters().keys() == dict(model.named_parameters()).keys()
    assert len(layered.layers) == 3


def test_nothing_is_printed_about_parts_that_are_kept_whole(capfd: pytest.CaptureFixture[str]) -> None:
    layers_of(chain(Branches()), EXAMPLE)
    assert "def forward" not in capfd.readouterr().err
