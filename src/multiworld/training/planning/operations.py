"""What a rank of a pipeline computes: forwards and backwards of its stages, one at a time."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Kind(enum.Enum):
    """Of an operation. With a split backward, BACKWARD makes the gradients of inputs only, and WEIGHT the others."""

    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHT = "weight"


class Operation(NamedTuple):
    """One kind of work of one stage on one micro-batch."""

    kind: Kind
    stage: int
    micro_batch: int
