"""The model that the main job serves: a small residual CNN in three stages, trained in seconds on one thread."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

STAGES = ("a", "b", "c")


class Residual(nn.Module):
    """Two 3×3 convolutions beside a shortcut; ``stride=2`` halves height and width."""

    def __init__(self, channels_in: int, channels_out: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        same = channels_in == channels_out and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map ``[batch, channels_in, height, width]`` to ``[batch, channels_out, height / stride, width / stride]``."""
        return functional.relu(self.body(images) + self.shortcut(images))


def build_model(*, seed: int) -> nn.Sequential:
    """Return the untrained model, equal for equal seeds: images ``[batch, 1, 8, 8]`` to logits ``[batch, 10]``.

    Its children ``a``, ``b`` and ``c`` are the stages; ``b`` is the heaviest, which is why it runs as two replicas.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        stage_a = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        stage_b = nn.Sequential(Residual(16, 32), Residual(32, 32))
        stage_c = nn.Sequential(Residual(32, 48, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))
    return nn.Sequential(OrderedDict(zip(STAGES, (stage_a, stage_b, stage_c), strict=True)))


def stage_of(model: nn.Sequential, name: str) -> nn.Sequential:
    """Return one stage of a model from ``build_model``, sharing its weights."""
    stage = model.get_submodule(name)
    assert isinstance(stage, nn.Sequential)
    return stage


def train(
    model: nn.Sequential,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int,
    num_epochs: int = 5,
    batch_size: int = 50,
    on_epoch: Callable[[int, float], None] = lambda epoch, loss: None,
) -> None:
    """Train in place on ``[num_images, 1, 8, 8]``, and leave the model in evaluation mode.

    ``on_epoch(epoch, mean_loss)`` is called after each epoch; what it raises ends the training.
    """
    num_steps = num_epochs * math.ceil(len(images) / batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=num_steps)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for epoch in range(num_epochs):
        losses = []
        for batch in torch.split(torch.randperm(len(images), generator=generator), batch_size):
            loss = functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        on_epoch(epoch, math.fsum(losses) / len(losses))
    model.eval()


def predict(model: nn.Module, batches: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the logits ``[batch, 10]`` of each micro-batch, computed in this process."""
    with torch.inference_mode():
        return [model(images) for images in batches]
