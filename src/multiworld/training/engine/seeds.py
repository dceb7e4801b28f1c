"""Random numbers that depend on the step and the micro-batch, and not on who computes it."""

from __future__ import annotations

import functools

import torch


def seed_of(seed: int, step: int, micro_batch: int) -> int:
    """Return a seed for each (seed, step, micro-batch): SplitMix64's finalizer over the three (Steele et al. 2014)."""
    mixed = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + (micro_batch + 1) * 0x94D049BB133111EB) % 2**64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
    return (mixed ^ (mixed >> 31)) % 2**63


def seed_torch(seed: int) -> None:
    """Seed the generators of all devices. Without an accelerator only the CPU's: ``torch.manual_seed`` looks for others
    each time, which takes some 100 µs.
    """
    if _has_accelerator():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@functools.cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()
