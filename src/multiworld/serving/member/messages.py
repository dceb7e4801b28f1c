"""What a controller and its members say to each other: JSON objects as tensors of bytes, and the worlds they go over.

Every member of a deployment shares a world of two with the controller, every edge of the graph is a world of two, and
so is every hand-over of weights. Names of stages hold neither ":" nor "-", so no two of these names meet.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from ...channel.base import Payload
from ...errors import ProtocolError
from ..control.members import CONTROLLER

__all__ = [
    "CONTROLLER",
    "CONTROLLER_RANK",
    "CONTROL_BACKEND",
    "DONOR_RANK",
    "DOWNSTREAM_RANK",
    "MEMBER_RANK",
    "TAKER_RANK",
    "UPSTREAM_RANK",
    "Message",
    "control_world",
    "decode",
    "edge_world",
    "encode",
    "weights_world",
]

Message = dict[str, Any]

CONTROLLER_RANK, MEMBER_RANK = 0, 1
UPSTREAM_RANK, DOWNSTREAM_RANK = 0, 1
DONOR_RANK, TAKER_RANK = 0, 1
CONTROL_BACKEND = "authenticated"  # orders name files, and who is whose neighbour
MAX_BYTES = 16 * 1024 * 1024


def control_world(member: str) -> str:
    """Return the name of the world between the controller and a member."""
    return f"control:{member}"


def edge_world(upstream: str, downstream: str) -> str:
    """Return the name of the world of one edge between two members."""
    return f"edge:{upstream}:{downstream}"


def weights_world(donor: str, member: str) -> str:
    """Return the name of the world over which ``member`` takes its weights from ``donor`` (or from CONTROLLER)."""
    return f"weights:{donor}:{member}"


def encode(message: Message) -> Tensor:
    """Return a message as uint8 ``[n]``. Raises TypeError for what is no JSON, ValueError for more than 16 MiB."""
    text = json.dumps(message, separators=(",", ":")).encode()
    if len(text) > MAX_BYTES:
        raise ValueError(f"a control message of {len(text)} bytes is longer than {MAX_BYTES}")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def decode(payload: Payload) -> Message:
    """Return the message that ``encode`` made a tensor of. Raises ProtocolError for anything else."""
    if not isinstance(payload, Tensor) or payload.dtype is not torch.uint8 or payload.dim() != 1:
        raise ProtocolError(f"a control message is a tensor of bytes, not {type(payload).__name__}")
    try:
        message = json.loads(bytes(payload.tolist()))
    except ValueError as error:
        raise ProtocolError(f"a control message is no JSON: {error}") from error
    if not isinstance(message, dict):
        raise ProtocolError(f"a control message is an object, not {type(message).__name__}")
    return message
