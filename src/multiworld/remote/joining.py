"""The second of the two worlds that master and node share: it is given up as soon as the first one breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ..world.world import World


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
