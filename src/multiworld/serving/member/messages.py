"""The worlds over which a controller and its members talk, and their messages as tensors of bytes.

Every member of a deployment shares a world of two with the controller, every edge of the graph is a world of two, and
so is every hand-over of weights. Names of stages hold neither ":" nor "-", so no two of these names meet.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...channel.base import Payload
from ...errors import ProtocolError

CONTROLLER_RANK, MEMBER_RANK = 0, 1
UPSTREAM_RANK, DOWNSTREAM_RANK = 0, 1
DONOR_RANK, TAKER_RANK = 0, 1
CONTROL_BACKEND = "authenticated"  # orders name files, and who is whose neighbour


def control_world(member: str) -> str:
    """Return the name of the world between the controller and a member."""
    return f"control:{member}"


def edge_world(upstream: str, downstream: str) -> str:
    """Return the name of the world of one edge between two members."""
    return f"edge:{upstream}:{downstream}"


def weights_world(donor: str, member: str) -> str:
    """Return the name of the world over which ``member`` takes its weights from ``donor`` (or from the controller)."""
    return f"weights:{donor}:{member}"


def as_tensor(message: bytes) -> Tensor:
    """Return an encoded message as uint8 ``[n]``."""
    return torch.frombuffer(bytearray(message), dtype=torch.uint8)


def as_bytes(payload: Payload) -> bytes:
    """Return what ``as_tensor`` made a tensor of. Raises ProtocolError for anything else."""
    if not isinstance(payload, Tensor) or payload.dtype is not torch.uint8 or payload.dim() != 1:
        raise ProtocolError(f"a control message is a tensor of bytes, not {type(payload).__name__}")
    return bytes(payload.tolist())
