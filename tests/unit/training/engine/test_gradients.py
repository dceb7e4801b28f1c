"""Sums of micro-batches are what plain PyTorch accumulates, however the program computes them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from multiworld.training.engine import gradients as module
from multiworld.training.engine.buckets import lay_out
from multiworld.training.engine.gradients import Gradients

Backward = Callable[[nn.Module, Tensor], None]
NUM_MICRO_BATCHES, NUM_STEPS = 3, 4


class Shared(nn.Module):
    """One weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.second(self.first(inputs))
        return outputs


class Unused(nn.Module):
    """A part that no forward uses, and one that only some do."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.never, self.rarely = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.used(inputs)
        return self.rarely(outputs) if inputs[0, 0] > 0 else outputs


class Mixed(nn.Module):
    """Three dtypes, a parameter without elements, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.float_layer, self.bfloat_layer = nn.Linear(4, 4), nn.Linear(4, 4).bfloat16()
        self.double_layer = nn.Linear(4, 4).double()
        self.nothing = nn.Parameter(torch.zeros(0, 4))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.bfloat_layer(self.float_layer(inputs).bfloat16())
        return self.double_layer(outputs.double()) * self.scale + self.nothing.sum()  # type: ignore[no-any-return]


class Convolution(nn.Module):
    """A weight whose elements do not lie in the order of its indices."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs.reshape(-1, 2, 2, 2).to(memory_format=torch.channels_last))
        return outputs


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].weight.requires_grad_(False)
    return model


def once(model: nn.Module, inputs: Tensor) -> None:
    model(inputs).square().mean().backward()


def twice(model: nn.Module, inputs: Tensor) -> None:
    once(model, inputs)
    model(2 * inputs).abs().mean().backward()


def sometimes_twice(model: nn.Module, inputs: Tensor) -> None:
    (twice if inputs[0, 1] > 0 else once)(model, inputs)


def after_zero_grad(model: nn.Module, inputs: Tensor) -> None:
    model.zero_grad()
    once(model, inputs)


def after_zeros(model: nn.Module, inputs: Tensor) -> None:
    """Only of what is there: the sums of finished micro-batches must not become zero."""
    model.zero_grad(set_to_none=False)
    once(model, inputs)


def not_always(model: nn.Module, inputs: Tensor) -> None:
    if inputs[0, 2] > 0:
        once(model, inputs)


def inputs_of(step: int, micro_batch: int) -> Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + micro_batch))


def plain(model: nn.Module, backward: Backward, step: int) -> list[Tensor | None]:
    """Return the sums of the gradients as PyTorch alone accumulates them."""
    sums: list[Tensor | None] = [None for each in model.parameters() if each.requires_grad]
    for number in range(NUM_MICRO_BATCHES):
        model.zero_grad()
        backward(model, inputs_of(step, number))
        for index, parameter in enumerate(each for each in model.parameters() if each.requires_grad):
            if parameter.grad is not None:
                before = sums[index]
                sums[index] = parameter.grad if before is None else before + parameter.grad
    return sums


class Alone:
    """Does what the engine does with the gradients of one member."""

    def __init__(self, model: nn.Module, *, overlaps: bool, separate: bool) -> None:
        self.model = model
        named = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
        self.parameters = [each for _, each in named]
        self.gradients = Gradients(self.parameters, [name for name, _ in named], separate=separate)
        self.overlaps, self.separate = overlaps, separate
        self.handed_over: list[int] = []
        self.num_in_backward = 0

    def step(self, backward: Backward, step: int) -> list[Tensor | None]:
        gradients = self.gradients
        gradients.begin_step()
        self.handed_over = []
        reduced = [torch.zeros_like(bucket.sums) for bucket in gradients.buckets]
        for number in range(NUM_MICRO_BATCHES):
            is_last = number == NUM_MICRO_BATCHES - 1
            gradients.begin_micro_batch(self.hand_over if is_last and self.overlaps else None)
            backward(self.model, inputs_of(step, number))
            self.num_in_backward += len(self.handed_over)
            gradients.end_micro_batch()
            if self.separate:
                for sums, bucket in zip(reduced, gradients.buckets, strict=True):
                    sums.add_(bucket.sums)
        gradients.fill_up()
        if not self.separate:
            for number, bucket in enumerate(gradients.buckets):
                if number not in self.handed_over or number in gradients.late:
                    bucket.reduced.copy_(bucket.sums)
        else:
            for sums, bucket in zip(reduced, gradients.buckets, strict=True):
                bucket.reduced.copy_(sums)
        gradients.apply(set(range(len(self.parameters))) - gradients.used)
        return [each.grad for each in self.parameters]

    def hand_over(self, bucket: int) -> None:
        assert bucket == len(self.handed_over), "in the same order on all members"
        self.handed_over.append(bucket)
        flat = self.gradients.buckets[bucket]
        flat.reduced.copy_(flat.sums)  # what comes later is not in it


def check(found: list[Tensor | None], expected: list[Tensor | None]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours.dtype == theirs.dtype
            tolerance = 0.02 if ours.dtype is torch.bfloat16 else 1e-6
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 4), Shared, Unused, Mixed, Convolution, frozen])
@pytest.mark.parametrize("backward", [once, twice, sometimes_twice, after_zero_grad, after_zeros, not_always])
@pytest.mark.parametrize(("overlaps", "separate"), [(False, False), (True, False), (False, True)])
def test_sums_are_those_of_plain_pytorch(
    make: Callable[[], nn.Module], backward: Backward, overlaps: bool, separate: bool
) -> None:
    torch.manual_seed(0)
    model = make()
    alone = Alone(copy.deepcopy(model), overlaps=overlaps, separate=separate)
    for step in range(NUM_STEPS):
        check(alone.step(backward, step), plain(model, backward, step))


def test_buckets_are_handed_over_in_backward_once_their_order_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "lay_out", lambda shapes: lay_out(shapes, bucket_bytes=64, first_bucket_bytes=16))
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    alone = Alone(copy.deepcopy(model), overlaps=True, separate=False)
    alone.step(once, 0)
    assert alone.num_in_backward == 0
    check(alone.step(once, 1), plain(model, once, 1))
    assert alone.num_in_backward == len(alone.gradients.buckets) > 2


def test_a_gradient_after_its_bucket_was_handed_over_is_known_as_late() -> None:
    alone = Alone(nn.Linear(4, 4), overlaps=True, separate=False)
    alone.step(once, 0)
    alone.step(once, 1)
    assert not alone.gradients.late
    alone.step(twice, 2)
    assert alone.gradients.late == {0}
    alone.step(once, 3)
    assert not alone.gradients.late


def test_sparse_gradients_are_added_up() -> None:
    torch.manual_seed(0)
    model = nn.Embedding(10, 3, sparse=True)
    alone = Alone(copy.deepcopy(model), overlaps=False, separate=False)

    def backward(model: nn.Module, inputs: Tensor) -> None:
        model(inputs.abs().long()).sum().backward()

    found = alone.step(backward, 0)[0]
    expected = plain(model, backward, 0)[0]
    assert found is not None
    assert expected is not None
    torch.testing.assert_close(found, expected.to_dense())


def test_no_hook_is_left_after_the_end() -> None:
    model = nn.Linear(4, 4)
    alone = Alone(model, overlaps=True, separate=False)
    alone.step(once, 0)
    alone.gradients.begin_step()
    alone.gradients.begin_micro_batch(lambda bucket: None)
    alone.gradients.close()
    assert not any(each._post_accumulate_grad_hooks for each in model.parameters())
