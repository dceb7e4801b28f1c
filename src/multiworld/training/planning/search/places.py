"""Where stages run: on which node each is, with which speed and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..arrays import Floats
from ..nodes import Node


@dataclass(frozen=True, kw_only=True)
class Places:
    """Of a pipeline's stages, [num_stages]. Fewer stages take the last of them.

    ``devices``: of each stage; ``per_node``: stages on each node, one after the other.
    """

    speeds: Floats
    memory_bytes: Floats
    devices: int = 1
    per_node: int = 1

    @classmethod
    def of(cls, nodes: Sequence[Node], devices: int = 1, per_node: int = 1) -> Places:
        """Return those of these nodes in order, each with ``per_node`` stages on so many devices."""
        memory_bytes = [np.inf if each.memory_bytes is None else float(each.memory_bytes) for each in nodes]
        return cls(
            speeds=np.repeat(np.array([each.speed for each in nodes]), per_node),
            memory_bytes=np.repeat(np.array(memory_bytes), per_node),
            devices=devices,
            per_node=per_node,
        )

    @property
    def num_stages(self) -> int:
        return len(self.speeds)

    def last(self, num_stages: int) -> Places:
        """Return those of the last so many stages."""
        return replace(self, speeds=self.speeds[-num_stages:], memory_bytes=self.memory_bytes[-num_stages:])

    @property
    def crosses(self) -> Floats:
        """Return 1 for each stage whose successor is on another node, 0 where a transfer stays within one."""
        behind = np.arange(self.num_stages)[::-1]
        crosses: Floats = (behind % self.per_node == 0).astype(float)
        return crosses
