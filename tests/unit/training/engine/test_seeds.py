"""Seeds of steps and micro-batches, and what they make of torch's random numbers."""

from __future__ import annotations

import torch

from multiworld.training.engine.seeds import seed_of, seed_torch


def test_steps_micro_batches_and_seeds_have_seeds_of_their_own() -> None:
    seeds = {seed_of(seed, step, number) for seed in range(4) for step in range(50) for number in range(-1, 8)}
    assert len(seeds) == 4 * 50 * 9
    assert all(0 <= each < 2**63 for each in seeds)


def test_the_same_seed_gives_the_same_numbers() -> None:
    seed_torch(2**63 - 1)
    first = torch.rand(8)
    seed_torch(1)
    other = torch.rand(8)
    seed_torch(2**63 - 1)
    assert torch.equal(torch.rand(8), first)
    assert not torch.equal(other, first)
