"""A small GPT over bytes (Radford et al., 2019): as a whole for training, and cut in stages for serving."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import BadRequestError
from .rows import attend, in_tiles
from .stage import Advance, GenerationStage


@dataclass(frozen=True, kw_only=True)
class GptConfig:
    """``context``: how many tokens a sequence may have."""

    vocabulary: int = 256
    context: int = 256
    width: int = 128
    heads: int = 4
    layers: int = 4


class Block(nn.Module):
    """Causal attention that fades with distance, then two layers with GELU between, each beside its residual."""

    slopes: Tensor

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.register_buffer("slopes", torch.tensor([0.25**head for head in range(config.heads)]), persistent=False)
        self.norm_attention, self.norm_layers = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.project = nn.Linear(config.width, 3 * config.width)
        self.merge = nn.Linear(config.width, config.width)
        self.widen = nn.Linear(config.width, 4 * config.width)
        self.narrow = nn.Linear(4 * config.width, config.width)

    def forward(self, rows: Tensor) -> Tensor:
        """``rows``: ``[batch, n, width]``, from position 0."""
        queries, keys, values = (part.transpose(1, 2) for part in self._heads(rows))
        attended = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=self._bias(rows.shape[1]))
        return self._after(rows, attended.transpose(1, 2).flatten(2))

    def advance(self, batch: Sequence[Advance], rows: Tensor, layer: int) -> Tensor:
        """``rows``: those of all parts, ``[sum of n, width]``; returns as many."""
        queries, keys, values = in_tiles(lambda tile: torch.stack(self._heads(tile), 1), rows).unbind(1)
        attended: list[Tensor] = []
        begin = 0
        for part in batch:
            end = begin + part.rows.shape[0]
            part.state.put(layer, part.position, keys[begin:end], values[begin:end])
            known = part.state.up_to(layer, part.position + end - begin)
            attended.append(attend(queries[begin:end], *known, part.position, slopes=self.slopes).flatten(1))
            begin = end
        both = torch.cat((rows, torch.cat(attended)), 1)
        return in_tiles(lambda tile: self._after(*tile.chunk(2, 1)), both)

    def _bias(self, number: int) -> Tensor:
        """Return ``[heads, n, n]``: what is added to the scores, -inf for what comes later."""
        places = torch.arange(float(number), device=self.slopes.device)
        distances = places[:, None] - places
        return -self.slopes[:, None, None] * distances.masked_fill(distances < 0, math.inf)

    def _heads(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        projected = self.project(self.norm_attention(rows))
        queries, keys, values = projected.unflatten(-1, (3, self.heads, -1)).unbind(-3)
        return queries, keys, values

    def _after(self, rows: Tensor, attended: Tensor) -> Tensor:
        rows = rows + self.merge(attended)
        return rows + self.narrow(functional.gelu(self.widen(self.norm_layers(rows))))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """The whole model: ``[batch, n]`` tokens to ``[batch, n, vocabulary]`` logits."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = nn.Sequential(nn.LayerNorm(config.width), nn.Linear(config.width, config.vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.embedding(tokens)
        for block in self.blocks:
            rows = block(rows)
        return self.head(rows)  # type: ignore[no-any-return]

    def stages(self, num_blocks: Sequence[int], *, capacity_tokens: int) -> list[GptStage]:
        """Cut it: ``num_blocks`` in each stage, the embedding before the first, the head after the last.

        They share the weights of this model until they are sent to another process.
        """
        if sum(num_blocks) != len(self.blocks) or len(num_blocks) < 1:
            raise ValueError(f"num_blocks={list(num_blocks)} are {sum(num_blocks)} in all, expected {len(self.blocks)}")
        blocks = iter(self.blocks)
        return [
            GptStage(
                self.config,
                [next(blocks) for _ in range(number)],
                embedding=self.embedding if index == 0 else None,
                head=self.head if index == len(num_blocks) - 1 else None,
                capacity_tokens=capacity_tokens if number else None,
            )
            for index, number in enumerate(num_blocks)
        ]


class GptStage(GenerationStage):
    """Some blocks in a row. With ``embedding`` its rows are tokens, with ``head`` it gives logits."""

    def __init__(
        self,
        config: GptConfig,
        blocks: Sequence[nn.Module],
        *,
        embedding: nn.Module | None,
        head: nn.Module | None,
        capacity_tokens: int | None,
    ) -> None:
        super().__init__(capacity_tokens=capacity_tokens, max_length=config.context)
        self.vocabulary = config.vocabulary
        self.blocks, self.embedding, self.head = nn.ModuleList(blocks), embedding, head

    def setup(self) -> None:
        """In a replica: its products are so small that threads would wait for each other longer than they compute."""
        torch.set_num_threads(1)

    def check(self, rows: Tensor) -> None:
        if self.embedding is None:
            return
        if rows.dtype != torch.int64 or rows.dim() != 1 or not rows.numel():
            raise BadRequestError("", f"expected tokens [n] of torch.int64, got {rows.dtype} {list(rows.shape)}")
        if int(rows.min()) < 0 or int(rows.max()) >= self.vocabulary:
            raise BadRequestError("", f"expected tokens from 0 to {self.vocabulary - 1}")

    def advance(self, batch: list[Advance]) -> list[Tensor]:
        rows = torch.cat([self._embedded(part) for part in batch])
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            rows = block.advance(batch, rows, layer)
        parts = torch.split_with_sizes(rows, [part.rows.shape[0] for part in batch])
        if self.head is None:
            return list(parts)
        return list(in_tiles(self.head, torch.stack([part[-1] for part in parts])))

    def _embedded(self, part: Advance) -> Tensor:
        return part.rows if self.embedding is None else self.embedding(part.rows)
