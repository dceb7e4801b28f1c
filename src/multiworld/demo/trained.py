"""The trained model of the main job with its own answers: what the pipeline serves, and what it is compared with."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass

import torch
from torch import nn

from .model import build_model, predict, train


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The held-out images as micro-batches ``[batch, 1, 8, 8]`` with their labels and the whole model's logits."""

    model: nn.Sequential
    batches: list[torch.Tensor]
    labels: list[torch.Tensor]
    logits: list[torch.Tensor]
    took_s: float

    @property
    def num_images(self) -> int:
        """The number of held-out images."""
        return sum(map(len, self.labels))

    @property
    def accuracy(self) -> float:
        """The share of held-out images that the whole model recognizes."""
        correct = torch.cat(self.logits).argmax(dim=1) == torch.cat(self.labels)
        return float(correct.float().mean())


async def train_model(*, seed: int, micro_batch_size: int) -> Trained:
    """Train on one torch thread beside the event loop; cancelling ends the training after its current epoch."""
    cancelled = threading.Event()
    try:
        return await asyncio.to_thread(_train, seed, micro_batch_size, cancelled)
    finally:
        cancelled.set()


def _train(seed: int, micro_batch_size: int, cancelled: threading.Event) -> Trained:
    def on_epoch(epoch: int, loss: float) -> None:
        if cancelled.is_set():
            raise RuntimeError(f"training was cancelled after epoch {epoch}, at a loss of {loss:.3f}")

    torch.set_num_threads(1)  # the replicas do the same: equal arithmetic, and a core each
    digits = load_digits(seed=seed)
    model = build_model(seed=seed)
    began = time.monotonic()
    train(model, digits.train_images, digits.train_labels, seed=seed, on_epoch=on_epoch)
    took_s = time.monotonic() - began
    batches = micro_batches(digits.held_out_images, micro_batch_size)
    labels = micro_batches(digits.held_out_labels, micro_batch_size)
    return Trained(model=model, batches=batches, labels=labels, logits=predict(model, batches), took_s=took_s)


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
