"""States from checkpoints, and what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from multiworld.training.checkpoint.loading import load
from multiworld.training.errors import CheckpointDamagedError, CheckpointMismatchError
from tests.checkpoints import Trained, only, write


class Loader:
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state != self.state_dict():
            raise ValueError(f"the checkpoint has seed={state['seed']}, and the loader has seed={self.seed}")


def test_all_of_a_state_comes_back_bit_equal_random_numbers_included(tmp_path: Path) -> None:
    trained = Trained().train(5)
    write(tmp_path, trained.state)
    drawn = torch.rand(3)
    other = Trained(seed=1).train(1)
    load(only(tmp_path), other.state)
    assert other == trained
    assert other.state.step == 5
    assert torch.equal(torch.rand(3), drawn)
    assert other.train(3) == trained.train(3)


def test_a_new_optimizer_without_state_takes_it(tmp_path: Path) -> None:
    trained, fresh = Trained().train(2), Trained(seed=1)
    write(tmp_path, trained.state)
    load(only(tmp_path), fresh.state)
    assert fresh == trained


def differences(tmp_path: Path, other: Trained) -> str:
    write(tmp_path, Trained().train(1).state)
    before = {name: tensor.clone() for name, tensor in other.model.state_dict().items()}
    with pytest.raises(CheckpointMismatchError) as raised:
        load(only(tmp_path), other.state)
    after = other.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert other.state.step == 0
    return str(raised.value)


def test_other_shapes_are_named_and_nothing_has_changed(tmp_path: Path) -> None:
    said = differences(tmp_path, Trained(width=5))
    assert "model.net: 0.weight has [4, 3] float32 in the checkpoint and [5, 3] float32 here" in said
    assert "and 2 more" in said


def test_other_parameters_are_named(tmp_path: Path) -> None:
    other = Trained()
    other.model.append(torch.nn.Linear(1, 1))
    del other.model[1]
    said = differences(tmp_path, other)
    assert "tensors of model.net that are unknown here: 1.num_batches_tracked, 1.running_mean, 1.running_var" in said


def test_missing_and_unknown_parts_are_named(tmp_path: Path) -> None:
    other = Trained()
    other.state.add("tracked.ema", Loader(1))
    assert "parts that the checkpoint lacks: tracked.ema" in differences(tmp_path, other)


def test_another_number_of_parameters_in_the_optimizer_is_named(tmp_path: Path) -> None:
    other = Trained()
    other.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    said = differences(tmp_path, other)
    assert "optimizer.adamw: it had groups of [6] parameters, and has groups of [6, 1]" in said


def test_what_a_loader_with_other_settings_raises_comes_through(tmp_path: Path) -> None:
    saved, other = Trained(), Trained()
    saved.state.add("loader", Loader(seed=0))
    other.state.add("loader", Loader(seed=1))
    write(tmp_path, saved.state)
    with pytest.raises(ValueError, match="the checkpoint has seed=0, and the loader has seed=1"):
        load(only(tmp_path), other.state)


def test_damage_is_found_before_anything_changes(tmp_path: Path) -> None:
    write(tmp_path, Trained().train(2).state)
    file = tmp_path / "step-00000002" / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[-100] ^= 4
    file.write_bytes(data)
    other = Trained(seed=1)
    with pytest.raises(CheckpointDamagedError, match=r"__0_0\.distcp"):
        load(only(tmp_path), other.state)
    assert other == Trained(seed=1)
