"""The communicator of multiworld 0.0.x and 0.2.x: one object whose operations name the world that they belong to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from torch import Tensor
from torch.distributed import ReduceOp

from ..errors import BrokenWorldException, InvalidTypeError, WorldBrokenError, WorldClosedError
from ..world.state import WorldState
from ..world.world import World
from .named_worlds import NamedWorlds

DEFAULT_WORLD_NAME = ""
"""What 0.2.x calls torch's default process group. It is not ours to use, so an operation has to name its world."""


class WorldCommunicator:
    """Communicates in any world of one manager. Get it from ``WorldManager.communicator``.

    Every operation raises ``BrokenWorldException`` when its world is broken, removed or unknown; the typed error
    (``PeerDiedError``, ``PeerLeftError`` …) is its ``__cause__``. Unlike ``World``'s own methods they take no tag and
    no deadline; ``asyncio.wait_for`` sets one, and nothing is written into the tensor after it.
    """

    def __init__(self, worlds: NamedWorlds) -> None:
        self._worlds = worlds

    def is_broken(self, world_name: str) -> bool:
        """Return whether operations on the world must fail: it broke, was removed, or was never here."""
        world = self._worlds.find_world(world_name)
        if world is None:
            return not self._worlds.is_forming(world_name)
        return world.state not in (WorldState.FORMING, WorldState.ACTIVE)

    async def send(
        self, tensor: Tensor | Sequence[Tensor], dst: int | str, world_name: str | int = DEFAULT_WORLD_NAME
    ) -> None:
        """Send a tensor to rank ``dst``; returns when its memory may be changed again.

        ``send(tensors, world_name, rank)``, with one tensor or a list of them, is the call of 0.0.x: a name and a rank
        are told apart by their types.
        """
        tensors, rank, name = _in_order(tensor, dst, world_name)
        for each in tensors:
            await self._run(name, lambda world, each=each: world.send(each, rank))  # type: ignore[misc]

    async def recv(
        self, tensor: Tensor | Sequence[Tensor], src: int | str, world_name: str | int = DEFAULT_WORLD_NAME
    ) -> None:
        """Receive from rank ``src`` into ``tensor``, which has the dtype and shape that was sent.

        ``recv(tensors, world_name, rank)`` is the call of 0.0.x, as for ``send``.
        """
        tensors, rank, name = _in_order(tensor, src, world_name)
        for each in tensors:
            await self._run(name, lambda world, each=each: world.recv(each, rank))  # type: ignore[misc]

    async def broadcast(self, tensor: Tensor, src: int, world_name: str = DEFAULT_WORLD_NAME) -> None:
        """Copy the tensor of rank ``src`` into that of every rank."""
        await self._run(world_name, lambda world: world.broadcast(tensor, src))

    async def all_reduce(self, tensor: Tensor, op: Any = ReduceOp.SUM, world_name: str = DEFAULT_WORLD_NAME) -> None:
        """Reduce over all ranks, in place."""
        await self._run(world_name, lambda world: world.all_reduce(tensor, op))

    async def reduce(
        self, tensor: Tensor, dst: int, op: Any = ReduceOp.SUM, world_name: str = DEFAULT_WORLD_NAME
    ) -> None:
        """Reduce into the tensor of rank ``dst``."""
        await self._run(world_name, lambda world: world.reduce(tensor, dst, op))

    async def all_gather(self, tensors: list[Tensor], tensor: Tensor, world_name: str = DEFAULT_WORLD_NAME) -> None:
        """Gather every rank's ``tensor`` into ``tensors`` (``[world_size]``, in rank order)."""
        await self._run(world_name, lambda world: world.all_gather(tensors, tensor))

    async def gather(
        self,
        tensor: Tensor,
        gather_list: list[Tensor] | None = None,
        dst: int = 0,
        world_name: str = DEFAULT_WORLD_NAME,
    ) -> None:
        """Gather every rank's tensor into ``gather_list`` on rank ``dst``; the others pass None."""
        await self._run(world_name, lambda world: world.gather(tensor, gather_list, dst))

    async def scatter(
        self,
        tensor: Tensor,
        scatter_list: list[Tensor] | None = None,
        src: int = 0,
        world_name: str = DEFAULT_WORLD_NAME,
    ) -> None:
        """Fill each rank's tensor with its part of ``scatter_list`` on rank ``src``; the others pass None."""
        await self._run(world_name, lambda world: world.scatter(tensor, scatter_list, src))

    async def _run(self, world_name: str, operation: Callable[[World], Awaitable[None]]) -> None:
        await self._worlds.wait_initialized(world_name)
        world = self._worlds.find_world(world_name)
        if world is None:
            raise self._missing(world_name) from self._worlds.why_failed(world_name)
        try:
            await operation(world)
        except WorldBrokenError as error:
            raise BrokenWorldException.of(error) from error
        except WorldClosedError as error:
            raise BrokenWorldException(world_name, "it was removed from this process while it was in use") from error

    def _missing(self, world_name: str) -> Exception:
        if self._worlds.is_forming(world_name):
            return ValueError(f"world {world_name!r} was added, but not initialized: call initialize_world() first")
        if world_name == DEFAULT_WORLD_NAME:
            return BrokenWorldException(world_name, "no world_name was given; there is no default world")
        failure = self._worlds.why_failed(world_name)
        if failure is not None:
            return BrokenWorldException(world_name, f"it could not be initialized: {failure}")
        return BrokenWorldException(
            world_name, "there is no world of this name in this process; it was removed, or never initialized"
        )


def _in_order(
    tensor: Tensor | Sequence[Tensor], peer: int | str, world_name: str | int
) -> tuple[Sequence[Tensor], int, str]:
    """Return tensors, rank and name, of a call in the order of 0.2.x or of 0.0.x."""
    tensors = [tensor] if isinstance(tensor, Tensor) else tensor
    if isinstance(peer, str) and isinstance(world_name, int):
        return tensors, world_name, peer
    if isinstance(peer, str) or isinstance(world_name, int):
        raise InvalidTypeError(
            f"got {peer!r} and {world_name!r}: expected a rank and a world's name (0.2.x), or a name and a rank (0.0.x)"
        )
    if not isinstance(tensors, list | tuple):
        raise InvalidTypeError(f"expected a tensor or a list of tensors, got {type(tensor).__name__}")
    return tensors, peer, world_name
