"""Reads what a client asks to have generated from the tensors of its request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...channel.base import Payload
from ..errors import BadRequestError
from .sampling import Sampling

FIELDS = {"tokens", "max_new_tokens", "temperature", "seed", "top_k", "stop"}
DEFAULT_NEW_TOKENS = 64
MAX_TOKEN = (1 << 63) - 1
MAX_TOKENS = 1 << 20
MAX_STOP_TOKENS = 4096
"""Of a list of Python's, each takes some forty bytes, and its making holds the event loop up."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """``tokens`` ``[n]``, and numbers in tensors of one element: ``max_new_tokens``, ``temperature``, ``seed``,
    ``top_k``; ``stop`` ``[m]``: tokens that end it."""

    tokens: list[int]
    max_new_tokens: int
    sampling: Sampling
    stop: frozenset[int]

    @classmethod
    def of(cls, payload: Payload) -> Question:
        """Read it; a bare tensor is ``tokens``. Raises BadRequestError."""
        fields = {"tokens": payload} if isinstance(payload, Tensor) else payload
        if not isinstance(fields, dict) or "tokens" not in fields or not fields.keys() <= FIELDS:
            raise BadRequestError("", f"expected tokens, and maybe {', '.join(sorted(FIELDS - {'tokens'}))}")
        top_k = _number(fields, "top_k", None)
        try:
            sampling = Sampling(
                temperature=float(_number(fields, "temperature", 0.0)),
                seed=int(_number(fields, "seed", 0)),
                top_k=None if top_k is None else int(top_k),
            )
        except (ValueError, OverflowError) as error:
            raise BadRequestError("", str(error)) from None
        question = cls(
            tokens=_tokens(fields["tokens"], "tokens", MAX_TOKENS),
            max_new_tokens=int(_number(fields, "max_new_tokens", DEFAULT_NEW_TOKENS)),
            sampling=sampling,
            stop=frozenset(_tokens(fields["stop"], "stop", MAX_STOP_TOKENS) if "stop" in fields else ()),
        )
        if not question.tokens or question.max_new_tokens < 1:
            raise BadRequestError("", "expected at least one token to go on from, and max_new_tokens of at least 1")
        return question


def _number(fields: Mapping[str, Tensor], name: str, default: Any) -> Any:
    if name not in fields:
        return default
    if fields[name].numel() != 1:
        raise BadRequestError("", f"{name} must be one number, got a tensor of shape {list(fields[name].shape)}")
    value = fields[name].item()
    if isinstance(value, complex):
        raise BadRequestError("", f"{name} must be a real number, got {value!r}")
    if name != "temperature" and value != value // 1:
        raise BadRequestError("", f"{name} must be a whole number, got {value!r}")
    return value


def _tokens(tensor: Tensor, name: str, max_tokens: int) -> list[int]:
    if not tensor.numel():
        return []  # of whatever type: an empty list in JSON has none
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dim() > 1:
        raise BadRequestError("", f"{name} must be whole numbers [n], got {tensor.dtype} {list(tensor.shape)}")
    if tensor.numel() > max_tokens:
        raise BadRequestError("", f"{name} may have {max_tokens} elements, got {tensor.numel()}")
    if tensor.dtype == torch.bool:
        tensor = tensor.long()
    tokens: list[int] = tensor.reshape(-1).tolist()
    if (largest := max(tokens)) > MAX_TOKEN:
        raise BadRequestError("", f"{name} must be at most {MAX_TOKEN}, got {largest}")
    return tokens
