"""A residual network on images, cut into stages of equal cost by itself: measured, cut, served, compared.

    python examples/serve_resnet.py [IMAGE.npy] [--weights FILE] [--stages 3]

Without weights they are random, without an image so is that: it shows how a whole model is served, not what it sees.
An image is ``[3, height, width]`` or a batch of such, float32.
"""

from __future__ import annotations

import argparse
import asyncio

import torch
from torch import Tensor, nn

import multiworld as mw


class Block(nn.Module):
    """Two convolutions beside a shortcut (He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(hidden)) + self.shortcut(x))


class ResNet18(nn.Module):
    """``[batch, 3, height, width]`` to ``[batch, num_classes]``."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks: list[nn.Module] = []
        for inputs, outputs, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
            blocks += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.blocks(self.stem(x))
        answer: Tensor = self.head(hidden.mean((2, 3)))
        return answer


def make_model(weights: str | None) -> nn.Module:
    torch.manual_seed(0)
    model = ResNet18().eval()
    if weights is not None:
        model.load_state_dict(torch.load(weights, weights_only=True))
    return model


def read_image(path: str | None) -> Tensor:
    """Return ``[batch, 3, height, width]``."""
    if path is None:
        return torch.randn(1, 3, 64, 64)
    import numpy as np

    image = torch.from_numpy(np.load(path, allow_pickle=False)).float()
    return image if image.dim() == 4 else image.unsqueeze(0)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?", help="an .npy file")
    parser.add_argument("--weights", help="a state_dict of this model, as torch.save wrote it")
    parser.add_argument("--stages", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)  # as the replicas compute, so that the answers are the same bits
    model, image = make_model(options.weights), read_image(options.image)
    pipeline = mw.serving.Pipeline.from_module(model, image, options.stages, name="resnet")
    for stage in pipeline.stages:
        num_weights = sum(weight.numel() for weight in stage.work.parameters())
        print(f"stage {stage.name}: {num_weights / 1e6:.1f} million weights")
    async with pipeline.deploy() as served:
        answer = await served.infer(image)
    with torch.no_grad():
        whole = model(image)
    assert isinstance(answer, Tensor)
    assert torch.equal(answer, whole), "not what the whole model says"
    print(f"class {answer[0].argmax()}; bitwise equal to the whole model: {torch.equal(answer, whole)}")


if __name__ == "__main__":
    asyncio.run(main())
