"""A world that knows which of its operations are under way, so that a check that hangs can say in what."""

from __future__ import annotations

import inspect
import time
from typing import Any

from torch import Tensor

from ...world.world import World


class PendingCalls:
    """The calls that have begun and not ended, oldest first."""

    def __init__(self) -> None:
        self._calls: dict[object, tuple[float, str]] = {}

    def begin(self, text: str) -> object:
        key = object()
        self._calls[key] = (time.monotonic(), text)
        return key

    def end(self, key: object) -> None:
        del self._calls[key]

    def describe(self) -> str:
        now = time.monotonic()
        texts = [f"{text} for {now - at:.1f} s" for at, text in self._calls.values()]
        if not texts:
            return "none of its operations"
        return ", ".join(texts[:6]) + (f" and {len(texts) - 6} more" if len(texts) > 6 else "")


class WatchedWorld:
    """Stands for a ``World``: its coroutine methods are noted while they run."""

    def __init__(self, world: World, pending: PendingCalls) -> None:
        self._world, self._pending = world, pending

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._world, name)
        if not inspect.iscoroutinefunction(value):
            return value

        async def call(*args: Any, **kwargs: Any) -> Any:
            key = self._pending.begin(f"{name}({_text(args, kwargs)})")
            try:
                return await value(*args, **kwargs)
            finally:
                self._pending.end(key)

        return call


def _text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    texts = [_short(value) for value in args] + [f"{name}={_short(value)}" for name, value in kwargs.items()]
    return ", ".join(texts)


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, dict)):
        return f"{type(value).__name__} of {len(value)}"
    return str(value)
