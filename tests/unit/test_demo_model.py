"""The model of the main job is reproducible, and its three stages in a row are the whole model."""

from __future__ import annotations

import pytest
import torch

from multiworld.demo.model import STAGES, build_model, predict, stage_of, train
from multiworld.demo.trained import load_digits, micro_batches


def test_stages_in_a_row_give_the_logits_of_the_whole_model_bit_by_bit() -> None:
    model = build_model(seed=3).eval()
    batches = micro_batches(torch.rand(35, 1, 8, 8, generator=torch.Generator().manual_seed(3)), 16)
    values = batches
    for name in STAGES:
        values = predict(stage_of(model, name), values)
    assert [len(logits) for logits in values] == [16, 16, 3]
    for staged, whole in zip(values, predict(model, batches), strict=True):
        assert torch.equal(staged, whole)


def test_model_depends_on_the_seed_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first, second, other = (build_model(seed=seed).state_dict() for seed in (5, 5, 6))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["a.0.weight"], other["a.0.weight"])


def test_data_set_is_split_by_seed_without_overlap() -> None:
    first, second, other = load_digits(seed=1), load_digits(seed=1), load_digits(seed=2)
    assert first.train_images.shape == (1198, 1, 8, 8)
    assert first.held_out_images.shape == (599, 1, 8, 8)
    assert float(first.held_out_images.max()) == 1.0
    assert torch.equal(first.held_out_images, second.held_out_images)
    assert not torch.equal(first.held_out_labels, other.held_out_labels)
    images = torch.cat([first.train_images, first.held_out_images]).flatten(1)
    assert len(torch.unique(images, dim=0)) == len(images)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="size=0"):
        micro_batches(torch.zeros(4, 1), 0)
    with pytest.raises(ValueError, match="held_out"):
        load_digits(seed=0, held_out=1.0)


def test_training_is_reproducible_and_learns() -> None:
    digits = load_digits(seed=0)
    losses: list[float] = []
    weights = []
    for _ in range(2):
        model = build_model(seed=0)
        images, labels = digits.train_images[:200], digits.train_labels[:200]
        train(model, images, labels, seed=0, num_epochs=2, on_epoch=lambda epoch, loss: losses.append(loss))
        assert not model.training
        weights.append(model.state_dict())
    assert losses[:2] == losses[2:]
    assert losses[1] < losses[0]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
