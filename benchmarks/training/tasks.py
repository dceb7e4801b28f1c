"""What is trained: a byte-level GPT on the standard library, a CNN on the digits of scikit-learn, and a tiny one."""

from __future__ import annotations

import functools
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

__all__ = ["TASKS", "Batch", "Clusters", "Digits", "Gpt", "Sample", "SourceBytes", "Task", "loss_of"]

Batch = list[Tensor]
Sample = tuple[Tensor, Tensor, int]
NUM_BYTES = 256
CORPUS_BYTES = 4_000_000


@functools.cache
def corpus() -> Tensor:
    """Return the first bytes of the source of the standard library, ``[CORPUS_BYTES]``, uint8: the same everywhere."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in folder.glob("*.py") if path.is_file())
    content, size = bytearray(), 0
    for path in paths:
        content += path.read_bytes()
        size = len(content)
        if size >= CORPUS_BYTES:
            break
    return torch.frombuffer(content[:CORPUS_BYTES], dtype=torch.uint8)


class SourceBytes(Dataset[Sample]):
    """Windows of ``length`` bytes that do not overlap, each with the bytes that follow: ``[length]`` int64 both.

    The third part of a sample is its index.
    """

    def __init__(self, length: int = 32) -> None:
        self.length = length
        self._bytes = corpus()

    def __len__(self) -> int:
        return (len(self._bytes) - 1) // self.length

    def __getitem__(self, index: int) -> Sample:
        window = self._bytes[index * self.length : (index + 1) * self.length + 1].long()
        return window[:-1], window[1:], index


class Digits(Dataset[Sample]):
    """1,797 digits: ``[1, 8, 8]`` float32 between 0 and 1, the class, and the index of the sample."""

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        self._images = torch.tensor(digits.images, dtype=torch.float32).div(16).unsqueeze(1)
        self._classes = torch.tensor(digits.target, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self._classes)

    def __getitem__(self, index: int) -> Sample:
        return self._images[index], self._classes[index], index


class Clusters(Dataset[Sample]):
    """Points around four centres, ``[8]`` float32, with the number of the centre, and the index: cheap to learn."""

    def __init__(self, num_samples: int = 480) -> None:
        drawn = torch.Generator().manual_seed(0)
        self._classes = torch.arange(num_samples) % 4
        centres = torch.randn(4, 8, generator=drawn)
        self._points = centres[self._classes] + torch.randn(num_samples, 8, generator=drawn)

    def __len__(self) -> int:
        return len(self._classes)

    def __getitem__(self, index: int) -> Sample:
        return self._points[index], self._classes[index], index


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden``: ``[batch, seq, width]``."""
        batch, seq, width = hidden.shape
        qkv = self.qkv(self.before_attention(hidden)).view(batch, seq, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = self.out(mixed.transpose(1, 2).reshape(batch, seq, width))
        hidden = hidden + functional.dropout(mixed, self.dropout, self.training)
        return hidden + functional.dropout(self.mlp(self.before_mlp(hidden)), self.dropout, self.training)


class Gpt(nn.Module):
    """Decoder-only, on bytes: ``[batch, seq]`` int64 to logits ``[batch, seq, 256]``."""

    def __init__(self, *, layers: int = 2, width: int = 64, heads: int = 4, seq: int = 32, dropout: float = 0.1):
        super().__init__()
        self.token, self.position = nn.Embedding(NUM_BYTES, width), nn.Parameter(torch.zeros(seq, width))
        self.blocks = nn.ModuleList(_Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, NUM_BYTES)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.token(tokens) + self.position
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class _Embedding(nn.Module):
    def __init__(self, width: int, seq: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(NUM_BYTES, width), nn.Parameter(torch.zeros(seq, width))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.token(tokens) + self.position
        return hidden


def _gpt_chain(dropout: float, *, layers: int = 4, width: int = 64, heads: int = 4, seq: int = 32) -> list[nn.Module]:
    """Return the same network, deeper, as modules one after the other."""
    blocks = [_Block(width, heads, dropout) for _ in range(layers)]
    return [_Embedding(width, seq), *blocks, nn.Sequential(nn.LayerNorm(width), nn.Linear(width, NUM_BYTES))]


def _cnn(dropout: float) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(dropout), nn.Linear(32 * 16, 10)),
    )


def _perceptron(dropout: float) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(dropout), nn.Linear(32, 4))


@dataclass(frozen=True)
class Task:
    """``make``: a model with that dropout. ``middle``: the module of it in whose forward and backward faults happen.

    ``make_chain``: what pipelines are made of.
    """

    make: Callable[[float], nn.Module]
    dataset: Callable[[], Dataset[Any]]
    middle: Callable[[nn.Module], nn.Module]
    lr: float
    make_chain: Callable[[float], list[nn.Module]]

    def model(self, seed: int = 0, dropout: float = 0.1) -> nn.Module:
        torch.manual_seed(seed)
        return self.make(dropout)

    def chain(self, seed: int = 0, dropout: float = 0.1) -> list[nn.Module]:
        """Return modules that compute the model one after the other."""
        torch.manual_seed(seed)
        return self.make_chain(dropout)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets, _ = batch
        return loss_of(model(inputs), targets)


def loss_of(output: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, -2), targets.flatten())


def _children(make: Callable[[float], nn.Module]) -> Callable[[float], list[nn.Module]]:
    return lambda dropout: list(make(dropout).children())


TASKS = {
    "gpt": Task(
        lambda dropout: Gpt(dropout=dropout),
        SourceBytes,
        lambda model: model.get_submodule("blocks.1"),
        3e-4,
        _gpt_chain,
    ),
    "digits": Task(_cnn, Digits, lambda model: model.get_submodule("2"), 1e-3, _children(_cnn)),
    "clusters": Task(_perceptron, Clusters, lambda model: model.get_submodule("1"), 1e-3, _children(_perceptron)),
}
