"""The rows of requests: what is executed together is one tensor of all rows, whose results are told apart again."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

import torch
from torch import Tensor

from ...channel.base import Payload
from ..flow.packets import Item
from ..flow.payloads import map_tensors, tensors_of


def shape_of(items: Sequence[Item]) -> tuple[int, Hashable]:
    """Return the rows of one request, and what it must share with others to be concatenated with them."""
    rows: set[int] = set()
    kind: list[Hashable] = []
    for item in items:
        payload = item.payload
        if isinstance(payload, dict):
            kind.append(tuple(payload))
        kind.append(type(payload).__name__)
        for tensor in tensors_of(payload):
            rows.add(tensor.shape[0] if tensor.dim() else -1)
            kind.append((tensor.dtype, tuple(tensor.shape[1:])))
    if len(rows) != 1 or -1 in rows or 0 in rows:  # nothing that rows could be told apart by
        return 1, items[0].id
    return rows.pop(), tuple(kind)


def concatenate(payloads: list[Payload]) -> Payload:
    """Return payloads of one shape as one, row after row."""
    first = payloads[0]
    if isinstance(first, Tensor):
        return torch.cat(payloads)  # type: ignore[arg-type]
    if isinstance(first, dict):
        return {name: torch.cat([payload[name] for payload in payloads]) for name in first}  # type: ignore[call-overload, index]
    return [torch.cat(column) for column in zip(*payloads, strict=True)]


def split(payload: Payload, rows: list[int], num_jobs: int) -> list[Payload]:
    """Return the results of so many requests, of ``rows`` each; ValueError if a tensor has not all their rows."""
    if num_jobs == 1:
        return [payload]
    for tensor in tensors_of(payload):
        if tensor.dim() == 0 or tensor.shape[0] != sum(rows):
            raise ValueError(
                f"a batch of {num_jobs} requests with {sum(rows)} rows in all gave a tensor of shape "
                f"{list(tensor.shape)}: expected {sum(rows)} in dimension 0"
            )
    return [
        map_tensors(payload, partial(_rows, begin=sum(rows[:index]), number=number))
        for index, number in enumerate(rows)
    ]


def _rows(tensor: Tensor, *, begin: int, number: int) -> Tensor:
    return tensor[begin : begin + number]
