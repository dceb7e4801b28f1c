"""What the demo trains: a byte-level GPT, on the source of Python's standard library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

CONTEXT, WIDTH, HEADS, LAYERS, DROPOUT = 32, 48, 4, 2, 0.1
NUM_BYTES = 400_000


class StandardLibrary(Dataset[Tensor]):
    """Pieces of ``CONTEXT + 1`` bytes, ``[CONTEXT + 1]``, int64."""

    def __init__(self) -> None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        text = bytearray()
        for path in sorted(folder.glob("*.py")):
            text += path.read_bytes()
            if len(text) >= NUM_BYTES:
                break
        self._bytes = torch.frombuffer(text, dtype=torch.uint8)

    def __len__(self) -> int:
        return (len(self._bytes) - 1) // CONTEXT

    def __getitem__(self, index: int) -> Tensor:
        return self._bytes[index * CONTEXT : (index + 1) * CONTEXT + 1].long()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        heads = self.queries_keys_values(self.before_attention(hidden)).view(batch, length, 3, HEADS, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.dropout(self.projection(attended.transpose(1, 2).reshape(batch, length, WIDTH)))
        result: Tensor = hidden + self.dropout(self.mlp(self.before_mlp(hidden)))
        return result


class ByteGPT(nn.Module):
    """``[batch, length]`` bytes in, ``[batch, length, 256]`` logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.bytes(text) + self.places.weight[: text.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(hidden)))
        return logits


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    """``batch``: ``[batch, CONTEXT + 1]``. The mean negative log-likelihood of each next byte."""
    logits = model(batch[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
