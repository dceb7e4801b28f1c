"""The two worlds that master and node share: the second is given up as soon as the first one breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ..world.manager import WorldManager
from ..world.world import World


async def join_shared(
    manager: WorldManager, name: str, rank: int, store: str | None, backend: str, timeout_s: float
) -> World:
    """Form one of the two. Its ranks mean nothing to people: the log of the manager does not warn of its loss."""
    world = await manager.join(name, rank=rank, world_size=2, store=store, backend=backend, timeout_s=timeout_s)
    world.is_inner = True
    return world


async def join_beside(first: World, join: Coroutine[Any, Any, World]) -> World:
    """Return the world that ``join`` forms with the peer of ``first``.

    The peer may die between the two. Raises the error of ``first`` if that breaks, and what ``join`` raises.
    """
    joining = asyncio.ensure_future(join)
    broken = asyncio.ensure_future(first.wait_broken())
    try:
        await asyncio.wait((joining, broken), return_when=asyncio.FIRST_COMPLETED)
        if not joining.done():
            raise broken.result()
        return joining.result()
    finally:
        for each in (joining, broken):
            each.cancel()
        await asyncio.gather(joining, broken, return_exceptions=True)
