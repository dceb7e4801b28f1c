"""Chooses the next token from the last stage's logits; the same each time it is asked for the same position."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ServingError

TINY = 1e-300


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """``temperature`` 0: always the most probable token. ``top_k``: only among so many of the most probable."""

    temperature: float = 0.0
    seed: int = 0
    top_k: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be a number from 0, got {self.temperature!r}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be a number of tokens from 1, got {self.top_k!r}")

    def choose(self, logits: Tensor, position: int) -> int:
        """Return the token at ``position`` of a sequence. ``logits``: ``[vocabulary]``, -inf for what must not come.

        By the maximum of logits and Gumbel noise, which depends on seed and position alone: logits that differ in
        their last bits, as those of another batch may, give the same token but for near ties. Raises ServingError for
        logits that are none.
        """
        if logits.dim() != 1 or not logits.is_floating_point() or not logits.numel():
            raise ServingError(f"the last stage must give logits [vocabulary], got {logits.dtype} {list(logits.shape)}")
        scores = logits.double()
        best = float(scores.max())
        if not math.isfinite(best):  # the maximum is NaN if any of them is
            raise ServingError(f"the last stage's logits of token {position} have the maximum {best}")
        if self.temperature:
            scores = (self._cut(scores) - best) / self.temperature + self._noise(scores.numel(), position)
        return int(scores.argmax())

    def _cut(self, scores: Tensor) -> Tensor:
        if self.top_k is None or self.top_k >= scores.numel():
            return scores
        kept = scores.topk(self.top_k)
        return torch.full_like(scores, -math.inf).scatter(0, kept.indices, kept.values)

    def _noise(self, number: int, position: int) -> Tensor:
        digest = hashlib.blake2b(f"{self.seed} {position}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
        uniform = torch.rand(number, dtype=torch.float64, generator=generator).clamp_min(TINY)
        return -torch.log(-torch.log(uniform))
