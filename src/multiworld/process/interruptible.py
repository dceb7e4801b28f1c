"""Run a coroutine that a signal cancels: it has the time that it needs to end what it has started."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from .interruption import Interrupted, handled_by

Result = TypeVar("Result")


def run_interruptible(work: Coroutine[Any, Any, Result]) -> Result:
    """Return what it returns. Raises Interrupted when it has ended after a signal; a second one ends the process."""
    came: list[int] = []

    async def attend() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

        def cancel(signum: int) -> None:
            came.append(signum)
            loop.call_soon_threadsafe(task.cancel)

        with handled_by(cancel):
            return await task

    try:
        return asyncio.run(attend())
    except asyncio.CancelledError:
        if not came:
            raise
    raise Interrupted(came[0])
