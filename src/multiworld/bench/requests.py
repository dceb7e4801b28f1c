"""Operations of a world that are under way while one thread goes on: start, go on, wait."""

from __future__ import annotations

from torch import Tensor

from ..wire.operation import Operation
from ..world.world import World

__all__ = ["Request", "irecv", "isend"]


class Request:
    """One operation; ``wait`` returns when it is done."""

    def __init__(self, world: World, operation: Operation[None], peer: int | None) -> None:
        self._world, self._operation, self._peer = world, operation, peer

    def wait(self) -> None:
        self._world.wait_thread(self._operation, self._peer, None)


def isend(world: World, tensor: Tensor, dst: int) -> Request:
    return Request(world, world.start_send(tensor, dst, 0, None), None)


def irecv(world: World, tensor: Tensor, src: int) -> Request:
    return Request(world, world.start_recv(tensor, src, 0, None), src)
