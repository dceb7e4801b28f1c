"""How a step travels through a pipeline: tokens, or what a stage made of them, and a header beside them."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from ...channel.base import Payload
from ..errors import BadRequestError
from .cache import Step

SEQUENCE_BYTES = 16
HALVES = struct.Struct("<qq")
NUM_FIELDS = 5
LAST = 1


def pack(step: Step, rows: Tensor, *, is_last: bool = False) -> Payload:
    """Return the payload of a step. ``is_last``: no step of this sequence follows, its state may be freed."""
    high, low = HALVES.unpack(step.sequence)
    return {"rows": rows, "step": torch.tensor([high, low, step.attempt, step.position, LAST if is_last else 0])}


def unpack(payload: Payload) -> tuple[Step, Tensor]:
    """Return the step and its rows ``[n, *any]``; BadRequestError for what is no step."""
    if not isinstance(payload, dict) or payload.keys() != {"rows", "step"}:
        raise BadRequestError("", "expected a step of a generation: ask through a Generator")
    header, rows = payload["step"], payload["rows"]
    if header.shape != (NUM_FIELDS,) or header.dtype != torch.int64 or not rows.dim():
        raise BadRequestError("", f"malformed step: header {list(header.shape)}, rows {list(rows.shape)}")
    high, low, attempt, position, _ = _fields(header)
    if position < 0 or attempt < 0:
        raise BadRequestError("", f"malformed step: position {position}, attempt {attempt}")
    return Step(HALVES.pack(high, low), attempt, position, rows.shape[0]), rows


def is_last(payload: Payload) -> bool:
    """Return whether a payload that ``unpack`` has taken says that its sequence is over."""
    return isinstance(payload, dict) and _fields(payload["step"])[-1] == LAST


def _fields(header: Tensor) -> list[Any]:
    return header.tolist()
