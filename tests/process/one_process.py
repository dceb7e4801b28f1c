"""Several members of one world in this process, each with a manager of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import multiworld as mw
from multiworld.testing import scaled


@contextmanager
def worlds(size: int, backend: str = "tcp") -> Iterator[list[mw.World]]:
    """Form a world and close everything in the end."""
    managers = [mw.WorldManager() for _ in range(size)]

    async def form() -> list[mw.World]:
        url = managers[0].serve_store("tcp://127.0.0.1:0")
        joins = [manager.join("w", rank, size, url, backend=backend) for rank, manager in enumerate(managers)]
        return list(await asyncio.gather(*joins))

    try:
        yield asyncio.run(form())
    finally:
        for manager in managers:
            manager.close(timeout_s=0.2)


class _Running:
    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call, args), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            self._value = call(*args)
        except BaseException as error:  # it belongs to the test
            self._error = error

    def result(self, timeout_s: float = 10.0) -> Any:
        """Wait for the call's end and return its value, or raise its error."""
        self._thread.join(scaled(timeout_s))
        assert not self._thread.is_alive(), "it did not end"
        if self._error is not None:
            raise self._error
        return self._value


def in_thread(call: Callable[..., Any], *args: Any) -> _Running:
    """Start a call on a thread of its own."""
    return _Running(call, args)
