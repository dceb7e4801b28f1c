"""Computes row by row: what comes out for a token does not depend on what else is computed beside it.

A matrix product rounds differently for another number of rows, so the same sequence would give other bits alone than
in a batch, and others when it is sent again as a whole than token by token. Here every product has the same shape each
time: 16 rows, filled up with zeros. And each token attends by itself, over as many keys as come before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

TILE = 16


def in_tiles(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Return ``function(rows)`` ``[n, *out]`` for ``rows`` ``[n, *in]``, calling it with 16 rows at a time.

    ``function`` must treat each row by itself.
    """
    number = rows.shape[0]
    if number % TILE:
        padding = rows.new_zeros((TILE - number % TILE, *rows.shape[1:]))
        rows = torch.cat((rows, padding))
    if rows.shape[0] <= TILE:
        return function(rows)[:number]
    return torch.cat([function(rows[at : at + TILE]) for at in range(0, number, TILE)])[:number]


def attend(queries: Tensor, keys: Tensor, values: Tensor, position: int, *, slopes: Tensor | None = None) -> Tensor:
    """Return ``[n, heads, size]``: causal attention of the tokens from ``position`` on, one after the other.

    ``queries``: ``[n, heads, size]``; ``keys``, ``values``: ``[position + n, heads, size]``. ``slopes``: ``[heads]``,
    how much less each head looks at a token per step of distance (ALiBi; Press et al., 2022); None: not less.
    """
    scale = 1.0 / math.sqrt(queries.shape[-1])
    queries, keys, values = queries.unsqueeze(2) * scale, keys.permute(1, 2, 0), values.transpose(0, 1)
    attended = torch.empty_like(queries)
    bias = None
    if slopes is not None:
        bias = slopes[:, None, None] * torch.arange(1.0 - keys.shape[-1], 1.0, device=slopes.device)
    for index in range(queries.shape[0]):
        end = position + index + 1
        scores = torch.matmul(queries[index], keys[..., :end])
        if bias is not None:
            scores += bias[..., -end:]
        torch.matmul(scores.softmax(-1), values[:, :end], out=attended[index])
    return attended.squeeze(2)
