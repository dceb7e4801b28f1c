"""Operations that are under way at the same time, and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(*operations: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run coroutines at once, begun in this order, and return their results.

    The first error cancels the others, and is raised when they have ended.
    """
    tasks = [asyncio.create_task(operation) for operation in operations]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        raise
