"""The images that the main job serves: scikit-learn's 1,797 handwritten digits, split by a seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Digits:
    """Images are float32 ``[num_images, 1, 8, 8]`` in 0..1, labels int64 ``[num_images]`` in 0..9."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    held_out_images: torch.Tensor
    held_out_labels: torch.Tensor


def load_digits(*, seed: int, held_out: float = 1 / 3) -> Digits:
    """Return the data set shuffled by ``seed``, its last ``held_out`` part kept from training. Reads no network."""
    if not 0 < held_out < 1:
        raise ValueError(f"held_out must lie between 0 and 1, got {held_out}")
    from sklearn import datasets  # slow to import, and an optional dependency

    bunch = datasets.load_digits()
    images = torch.from_numpy(bunch.images).to(torch.float32).div_(16).unsqueeze_(1)
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    train, rest = order[: -round(len(images) * held_out)], order[-round(len(images) * held_out) :]
    return Digits(images[train], labels[train], images[rest], labels[rest])


def micro_batches(images: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Cut ``[num_images, ...]`` into micro-batches of ``size`` images; the last one may be smaller."""
    if size < 1:
        raise ValueError(f"a micro-batch needs at least one image, got size={size}")
    return list(torch.split(images, size))
