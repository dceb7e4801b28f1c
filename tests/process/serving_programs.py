"""The works of pipelines that tests deploy: what they do to a request hangs on its values."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor

KILLS, RAISES, GIVES_GARBAGE, LOSES_ROWS, EXITS, TAKES_LONG, HAS_NO_TEXT = range(-7, 0)
CANCELS, AWAITS_LONG = -200, -202
LONG_S = 1.0


def add_one(x: Tensor) -> Tensor:
    return x + 1


def double(x: Tensor) -> Tensor:
    return x * 2


def triple(x: Tensor) -> Tensor:
    return x * 3


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


class NoText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Moody:
    """Does, for the first value, what is asked of it; otherwise doubles."""

    def __call__(self, x: Tensor) -> object:
        wishes = set(x.flatten()[:: max(1, x[0].numel())].to(torch.int64).tolist()) if x.dim() and x.numel() else set()
        if KILLS in wishes:
            os.kill(os.getpid(), signal.SIGKILL)
        if RAISES in wishes:
            raise ValueError("as it was asked to")
        if GIVES_GARBAGE in wishes:
            return "garbage"
        if LOSES_ROWS in wishes and len(wishes) > 1:
            return x[1:] * 2
        if EXITS in wishes:
            raise SystemExit(3)
        if TAKES_LONG in wishes:
            time.sleep(LONG_S)
        if HAS_NO_TEXT in wishes:
            raise NoText
        return x * 2


class Slow:
    """Doubles, in 50 ms."""

    def __call__(self, x: Tensor) -> Tensor:
        time.sleep(0.05)
        return x * 2


class AsyncMoody:
    """The same for coroutines: what it awaits may be cancelled, or take long."""

    async def __call__(self, x: Tensor) -> Tensor:
        wish = int(x.flatten()[0]) if x.numel() else 0
        if wish == CANCELS:
            task = asyncio.ensure_future(asyncio.sleep(60))
            task.cancel()
            await task
        if wish == AWAITS_LONG:
            await asyncio.sleep(LONG_S)
        return x * 2


class SameBuffer:
    """Gives the same memory each time, with another content."""

    def __init__(self) -> None:
        self._buffers: dict[torch.Size, Tensor] = {}

    def __call__(self, x: Tensor) -> Tensor:
        buffer = self._buffers.setdefault(x.shape, torch.empty(x.shape))
        return buffer.copy_(x).mul_(2)


class Echo:
    """Gives back what it gets, of whatever structure."""

    def __call__(self, x: object) -> object:
        return x


class Counting:
    """Writes down each execution by its first value, in a file that the environment names."""

    def __call__(self, x: Tensor) -> Tensor:
        path = Path(os.environ["COUNTING_FILE"])
        with path.open("a") as file:
            file.write(f"{int(x.flatten()[0])}\n")
        time.sleep(0.002)
        return x * 2


def add_zero(x: Tensor) -> Tensor:
    return x + 0


def add_three(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return x + y + z


class Broken:
    """Cannot be set up."""

    def __init__(self) -> None:
        raise FileNotFoundError("weights.pt")

    def __call__(self, x: Tensor) -> Tensor:
        return x
