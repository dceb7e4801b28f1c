"""One rank of a group whose collectives are measured: raw Gloo and a world per backend, open side by side."""

from __future__ import annotations

import multiworld as mw

from .collective_calls import Tensors
from .lanes import LaneMember
from .samples import RAW

UNKNOWN = {(RAW, "reduce")}  # it computes in the other ranks' tensors, so those give something else the next time


class GroupMember(LaneMember):
    def __init__(self, manager: mw.WorldManager, rank: int, size: int) -> None:
        super().__init__(manager, rank, size)
        self._tensors: Tensors | None = None

    async def allocate(self, size_bytes: int) -> None:
        """Make the tensors that every lane will use in turn."""
        self._tensors = None  # give the old ones back first
        self._tensors = Tensors.make(size_bytes, self.rank, self.size)

    async def repeat(self, lane: str, kind: str, count: int) -> float:
        """Call a collective ``count`` times; return the seconds of one. Raises if the result is wrong."""
        tensors = self._tensors
        assert tensors is not None
        tensors.prepare(kind)
        took_s = await self._lanes[lane].repeat(kind, tensors, count)
        if (lane, kind) not in UNKNOWN and not tensors.hold(kind, count):
            raise AssertionError(f"{kind}, {lane}: a wrong result on rank {self.rank}")
        return took_s
