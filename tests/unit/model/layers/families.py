"""Small models of the families that are trained as pipelines, written plainly, each with a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, WORDS, RATE = 16, 2, 23, 0.2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.pair = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.out, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(RATE)

    def forward(self, hidden: torch.Tensor, other: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query = self.query(hidden).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        key, value = self.pair(other).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=RATE if self.training else 0.0
        )
        joined: torch.Tensor = self.drop(self.out(mixed.transpose(1, 2).flatten(2)))
        return joined


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norms = nn.ModuleDict({name: nn.LayerNorm(WIDTH) for name in ("attention", "mlp")})
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(RATE))

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        normed = self.norms["attention"](hidden)
        hidden = hidden + self.attention(normed, normed, mask)
        result: torch.Tensor = hidden + self.mlp(self.norms["mlp"](hidden))
        return result


class SmallGPT(nn.Module):
    """Its head has the weights of its embedding."""

    def __init__(self, num_blocks: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(32, WIDTH)
        self.drop = nn.Dropout(RATE)
        self.blocks = nn.ModuleList(Block() for _ in range(num_blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        hidden = self.drop(self.words(ids) + self.places(torch.arange(length, device=ids.device)))
        mask = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        for block in self.blocks:
            hidden = block(hidden, mask)
        result: torch.Tensor = self.head(self.norm(hidden))
        return result


class SmallBERT(nn.Module):
    """Masks padding, and normalizes after each sum."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.layer = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, RATE, batch_first=True) for _ in range(2)
        )
        self.pooler, self.classifier = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.norm(self.words(input_ids))
        for layer in self.layer:
            hidden = layer(hidden, src_key_padding_mask=attention_mask == 0)
        return {"hidden": hidden, "logits": self.classifier(torch.tanh(self.pooler(hidden[:, 0])))}


class CrossBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.norm, self.cross = Block(), nn.LayerNorm(WIDTH), Attention()

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor, other: torch.Tensor, seen: torch.Tensor) -> Any:
        hidden = self.block(hidden, mask)
        return hidden + self.cross(self.norm(hidden), other, seen)


class SmallT5(nn.Module):
    """An encoder and a decoder that looks at it. Biases of positions are learned once, and used by all blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.bias = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, HEADS)
        self.encoder = nn.ModuleList(Block() for _ in range(2))
        self.decoder = nn.ModuleList(CrossBlock() for _ in range(2))

    def forward(self, input_ids: torch.Tensor, decoder_input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        seen = torch.where(attention_mask[:, None, None] == 0, -1e9, 0.0)
        hidden, mask = self.shared(input_ids), seen + self._bias(input_ids)
        for block in self.encoder:
            hidden = block(hidden, mask)
        result, bias = self.shared(decoder_input_ids), self._bias(decoder_input_ids)
        for block in self.decoder:
            result = block(result, bias, hidden, seen)
        return {"logits": result @ self.shared.weight.T * WIDTH**-0.5, "encoded": hidden}

    def _bias(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        bias: torch.Tensor = self.bias(places[:, None] - places[None] + 32).permute(2, 0, 1)
        return bias


class Residual(nn.Module):
    def __init__(self, channels: int, wider: int) -> None:
        super().__init__()
        stride = 1 if channels == wider else 2
        self.first = nn.Sequential(nn.Conv2d(channels, wider, 3, stride, 1, bias=False), nn.BatchNorm2d(wider))
        self.second = nn.Sequential(nn.Conv2d(wider, wider, 3, padding=1, bias=False), nn.BatchNorm2d(wider))
        self.short = nn.Identity() if stride == 1 else nn.Conv2d(channels, wider, 1, stride)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.first(image), inplace=True)
        hidden = self.second(hidden)
        hidden += self.short(image)
        return functional.relu(hidden, inplace=True)


class SmallResNet(nn.Module):
    """Its statistics are buffers; its sums and activations are computed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.stages = nn.Sequential(Residual(8, 8), Residual(8, 16), Residual(16, 16))
        self.fc = nn.Linear(16, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc(self.stages(self.stem(image)).mean((2, 3)))
        return result


class Experts(nn.Module):
    """Sends each word to its two best experts. How many words an expert gets depends on the words."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(3)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        words = hidden.flatten(0, 1)
        weights, chosen = self.router(words).softmax(-1).topk(2)
        result = torch.zeros_like(words)
        for place, expert in enumerate(self.experts):
            rows, ranks = torch.where(chosen == place)
            result = result.index_add(0, rows, expert(words[rows]) * weights[rows, ranks, None])
        return result.view_as(hidden)


class SmallMoE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Experts() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.words(ids)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        result: torch.Tensor = self.head(hidden)
        return result


def words(rows: int = 3, length: int = 7) -> torch.Tensor:
    return torch.randint(0, WORDS, (rows, length), generator=torch.Generator().manual_seed(rows * length))


def padding(rows: int = 3, length: int = 7) -> torch.Tensor:
    return (torch.arange(length)[None] < length - torch.arange(rows)[:, None] % 3).long()


def image(rows: int = 3, size: int = 8) -> torch.Tensor:
    return torch.randn(rows, 3, size, size, generator=torch.Generator().manual_seed(rows))


FAMILIES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any]]] = {
    "gpt": (SmallGPT, lambda rows: (words(rows), words(rows))),
    "bert": (
        SmallBERT,
        lambda rows: {"input_ids": words(rows), "attention_mask": padding(rows), "labels": torch.zeros(rows)},
    ),
    "t5": (
        SmallT5,
        lambda rows: {
            "input_ids": words(rows),
            "attention_mask": padding(rows),
            "decoder_input_ids": words(rows, 5),
        },
    ),
    "resnet": (SmallResNet, lambda rows: (image(rows), torch.zeros(rows))),
    "moe": (SmallMoE, lambda rows: (words(rows), words(rows))),
}
