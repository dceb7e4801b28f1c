"""One end of a pair whose messages are measured: raw Gloo and our worlds, open side by side."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

import multiworld as mw

from .known_data import fill, holds, spoil
from .lanes import LaneMember

ITEM_BYTES = 4


class PairMember(LaneMember):
    def __init__(self, manager: mw.WorldManager, rank: int, size: int) -> None:
        super().__init__(manager, rank, size)
        self._signal = torch.zeros(1)
        self._buffers: list[Tensor] = []

    async def allocate(self, size_bytes: int, window: int) -> None:
        """Make the buffers that every lane will use in turn."""
        self._buffers = []  # give the old ones back first
        self._buffers = [torch.empty(size_bytes // ITEM_BYTES) for _ in range(window)]
        for buffer in self._buffers:
            fill(buffer)

    async def stream(self, lane: str, count: int) -> float:
        """Stream from rank 0; return the seconds until rank 1 had everything. Raises if that is not what was sent."""
        chosen = self._lanes[lane]
        if self.rank == 1:
            for buffer in self._buffers:
                spoil(buffer)
        await chosen.echo(self._signal, 1)  # both are here
        began = time.perf_counter()
        await chosen.stream(self._buffers, count)
        await chosen.echo(self._signal, 1)
        took_s = time.perf_counter() - began
        if not all(map(holds, self._buffers)):
            raise AssertionError(f"{lane} delivered something other than what was sent")
        return took_s

    async def echo(self, lane: str, size_bytes: int, count: int) -> list[float]:
        """Make round trips; return their median and 99th percentile in seconds. Raises if something else came back."""
        tensor = torch.empty(size_bytes // ITEM_BYTES)
        if self.rank == 0:
            fill(tensor)
        else:
            spoil(tensor)
        times = sorted(await self._lanes[lane].echo(tensor, count))
        if not holds(tensor):
            raise AssertionError(f"{lane} delivered something other than what was sent")
        return [median(times), times[len(times) * 99 // 100]]

    async def copy(self, count: int) -> float:
        """Copy as many messages within this process on one thread; return the seconds of the faster way to do it."""
        return min(self._copy(count, Tensor.copy_), self._copy(count, _memmove))

    def _copy(self, count: int, how: Callable[[Tensor, Tensor], object]) -> float:
        buffers, half = self._buffers, len(self._buffers) // 2
        began = time.perf_counter()
        for number in range(count):
            how(buffers[(number + half) % len(buffers)], buffers[number % len(buffers)])
        return time.perf_counter() - began


def _memmove(target: Tensor, source: Tensor) -> None:
    ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
