"""Cutting leaves the caller's model, and all of PyTorch's settings, as they were."""

import random
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from multiworld.model.copying import private_copy
from multiworld.model.cut import cut, profile
from multiworld.serving import Pipeline


class Trained(nn.Module):
    """In the middle of its training, and fx cannot follow it, so that both ways are gone."""

    def __init__(self, *, is_followed: bool) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.last = (
            nn.Linear(8, 8),
            nn.BatchNorm1d(8),
            nn.Dropout(0.5),
            nn.Linear(8, 8),
        )
        self.is_followed, self.seen = is_followed, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_followed and x.dim() != 2:
            raise ValueError
        hidden = self.drop(self.norm(self.first(x)))
        if self.is_followed:
            self.seen = hidden
        return self.last(hidden)  # type: ignore[no-any-return]


def everything_of(model: nn.Module) -> dict[str, Any]:
    """Return what is to stay: flags, values, who they are, gradients, hooks, attributes."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "modes": {name: part.training for name, part in model.named_modules()},
        "parts": {name: id(part) for name, part in model.named_modules()},
        "tensors": {name: (id(value), value.data_ptr(), value.tolist()) for name, value in tensors.items()},
        "versions": {name: value._version for name, value in tensors.items()},
        "wants gradients": {name: value.requires_grad for name, value in tensors.items()},
        "gradients": {name: None if value.grad is None else value.grad.tolist() for name, value in tensors.items()},
        "hooks": {
            name: [list(hooks) for hooks in (part._forward_hooks, part._backward_hooks, part._state_dict_hooks)]
            for name, part in model.named_modules()
        },
        "attributes": {
            (name, key): id(value)
            for name, part in model.named_modules()
            for key, value in vars(part).items()
            if not key.startswith("_")
        },
    }


def settings() -> dict[str, Any]:
    return {
        "random": torch.get_rng_state().tolist(),
        "of Python": random.getstate(),
        "type": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "cudnn": (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "autocast": torch.is_autocast_enabled("cpu"),
        "threads": torch.get_num_threads(),
    }


def trained(*, is_followed: bool) -> Trained:
    torch.manual_seed(1)
    model = Trained(is_followed=is_followed)
    model(torch.randn(4, 8)).sum().backward()
    model.norm.eval()  # frozen, while the rest is trained
    model.first.bias.requires_grad_(False)
    model.last.register_full_backward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize("is_followed", [True, False], ids=["fx", "export"])
def test_a_model_in_training_stays_as_it_is(is_followed: bool) -> None:
    model, example = trained(is_followed=is_followed), torch.randn(3, 8)
    before, set_before, example_before = everything_of(model), settings(), example.clone()
    Pipeline.from_module(model, example, 2)
    profile(model, example, repeats=1)
    for wrong, num_stages in ((example, 50), (torch.zeros(3, 7), 2)):
        with pytest.raises(ValueError, match="cannot be cut"):
            cut(model, wrong, num_stages)
    assert everything_of(model) == before
    assert settings() == set_before
    assert torch.equal(example, example_before)


def test_random_numbers_go_on_as_if_nothing_had_been_cut() -> None:
    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(functional.dropout(x, 0.5, training=True)) * random.random()  # type: ignore[no-any-return]

    example = torch.randn(3, 8)
    model = Drawing()
    before = settings()
    with pytest.raises(ValueError, match="draws random numbers"):
        cut(model, example, 2)
    assert settings() == before


def test_a_part_does_not_follow_the_modes_of_the_model() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    parts = cut(model, torch.randn(3, 8), 2, repeats=1)
    model.train()
    assert not any(module.training for part in parts for module in part.modules())


class Odd(nn.Module):
    """Has what Python cannot copy, and what refuses to be."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.lock, self.again = threading.Lock(), [self.layer]
        self.scaled = self.layer.weight * 2  # no leaf
        self.whole = {"scaled": self.scaled, "lock": self.lock}
        self.method: Any = self.twice

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.layer(x)  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.method(x) @ self.scaled  # type: ignore[no-any-return]


def test_a_private_copy_shares_parameters_and_refers_to_itself() -> None:
    model = Odd().train()
    made = private_copy(model)
    assert [id(value) for value in made.parameters()] == [id(value) for value in model.parameters()]
    assert made.again[0] is made.layer is not model.layer
    assert made.method.__self__ is made
    assert made.whole["scaled"] is made.scaled is not model.scaled
    assert made.lock is model.lock
    assert (made.training, model.training, model.layer.training) == (False, True, True)
    x = torch.randn(2, 8)
    assert torch.equal(made(x), model(x))
