"""Copies of a training's state to roll back to."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from multiworld.training.health.snapshot import Snapshot


def trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    go_on(model, optimizer, steps)
    return model, optimizer


def go_on(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 3, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()


def test_a_training_that_was_rolled_back_goes_on_with_the_same_bits() -> None:
    model, optimizer = trained(3)
    snapshot = Snapshot(lambda: {"model": model, "optimizer": optimizer})
    snapshot.take(3)
    go_on(model, optimizer, 2)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(2):  # what follows a rollback must not change the copy
        assert snapshot.restore() == 3
        go_on(model, optimizer, 2)
        for name, value in model.state_dict().items():
            assert torch.equal(value, expected[name])


def test_the_next_copy_takes_the_memory_of_the_one_before() -> None:
    model, optimizer = trained(1)
    snapshot = Snapshot(lambda: {"model": model, "optimizer": optimizer})
    snapshot.take(1)
    kept = snapshot.state_dict()["parts"]["model"]["0.weight"]
    go_on(model, optimizer, 1)
    snapshot.take(2)
    assert snapshot.state_dict()["parts"]["model"]["0.weight"].data_ptr() == kept.data_ptr()
    assert torch.equal(kept, model.state_dict()["0.weight"])
    assert snapshot.step == 2


def test_a_newcomer_gets_the_copy_with_the_state() -> None:
    model, optimizer = trained(2)
    snapshot = Snapshot(lambda: {"model": model, "optimizer": optimizer})
    snapshot.take(2)
    expected = model.state_dict()["0.weight"].clone()
    other_model, other_optimizer = trained(5)
    other = Snapshot(lambda: {"model": other_model, "optimizer": other_optimizer})
    other.load_state_dict(snapshot.state_dict())
    go_on(model, optimizer, 1)
    snapshot.take(3)
    assert other.restore() == 2
    assert torch.equal(other_model.state_dict()["0.weight"], expected)


def test_without_a_copy_nothing_is_rolled_back() -> None:
    with pytest.raises(RuntimeError, match="no snapshot"):
        Snapshot(dict).restore()
