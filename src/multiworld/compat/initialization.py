"""A world's initialization that goes on whether or not somebody awaits it: what ``initialize_world`` returns.

multiworld 0.0.x had a plain function there, and 0.2.x a coroutine. This is started at once, so that programs for 0.0.x
need not await it, and it is a coroutine to all that asyncio does with one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any

logger = logging.getLogger(__name__)


class Initialization(Coroutine[Any, Any, None]):
    """``work`` forms the world. Awaited, this raises its error; else the log shows it, and each operation raises it.

    ``when_over`` is called when it has ended, also if it was cancelled before its first step and so never ran.
    """

    def __init__(self, world_name: str, work: Coroutine[Any, Any, None], when_over: Callable[[], None]) -> None:
        self._world_name, self._when_over = world_name, when_over
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(self._ended)
        self._waiting: Generator[Any, Any, None] | None = None

    def __await__(self) -> Generator[Any, Any, None]:
        """Wait anew, each time."""
        self._waiting = self._task.__await__()
        return self._waiting

    def send(self, value: Any) -> Any:
        return self._present_waiting().send(value)

    def throw(
        self, kind: type[BaseException] | BaseException, value: object = None, traceback: TracebackType | None = None
    ) -> Any:
        error = kind if isinstance(kind, BaseException) else kind() if value is None else value
        assert isinstance(error, BaseException)
        return self._present_waiting().throw(error)

    def close(self) -> None:
        """End the waiting; the initialization goes on."""
        if self._waiting is not None:
            self._waiting.close()

    def _present_waiting(self) -> Generator[Any, Any, None]:
        return self.__await__() if self._waiting is None else self._waiting

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._when_over()
        error = None if task.cancelled() else task.exception()
        if error is not None and self._waiting is None:
            logger.error("world %r could not be initialized: %s", self._world_name, error)
