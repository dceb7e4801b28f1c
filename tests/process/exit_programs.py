"""Programs that end without cleaning up, each in its own way."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from typing import Any

import torch

import multiworld as mw
from multiworld.testing.worker import report

_kept: list[Any] = []


async def _join(url: str, backend: str) -> mw.World:
    manager = mw.WorldManager()
    _kept.append(manager)
    atexit.register(report, "atexit")
    world = await manager.join("w", rank=1, world_size=2, store=url, backend=backend)
    report("joined")
    return world


async def return_from_main(url: str, backend: str) -> None:
    _kept.append(await _join(url, backend))


async def forget_everything(url: str, backend: str) -> None:
    await _join(url, backend)
    _kept.clear()


async def return_with_a_receive_pending(url: str, backend: str) -> None:
    world = await _join(url, backend)
    _kept.append(asyncio.create_task(world.recv(torch.zeros(1), 0)))
    await asyncio.sleep(0)


async def return_with_a_thread_blocked(url: str, backend: str) -> None:
    world = await _join(url, backend)

    def receive() -> None:
        try:
            world.blocking.recv(torch.zeros(1), 0)
        except mw.MultiworldError as error:
            report("thread raised", error=type(error).__name__)

    threading.Thread(target=receive, daemon=True).start()


async def call_sys_exit(url: str, backend: str) -> None:
    _kept.append(await _join(url, backend))
    sys.exit(0)


async def raise_an_error(url: str, backend: str) -> None:
    _kept.append(await _join(url, backend))
    raise LookupError("as planned")


async def return_after_a_fork(url: str, backend: str) -> None:
    """A forked child ends first, without harm to the worlds of its parent."""
    world = await _join(url, backend)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    await world.send(torch.ones(1), 0)
    report("sent after fork")


async def return_while_gloo_connects(url: str, rank: int, delay_s: float) -> None:
    """Let the end follow soon after the first large payload, which makes both sides connect over Gloo."""
    manager = mw.WorldManager()
    _kept.append(manager)
    world = await manager.join("w", rank, 2, url, backend="gloo")
    large = torch.ones(2_500_000)  # 10 MB
    await (world.recv(large, 0) if rank else world.send(large, 1))
    await asyncio.sleep(delay_s)
